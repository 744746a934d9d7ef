"""Right embeddings: what passes and what does not, from a real HTTP server."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from embedfleetctl import probe

SPEC: dict[str, Any] = {
    "model": "m",
    "dimension": 3,
    "texts": ["q", "n", "f"],
    "near": 0.8,
    "far": 0.6,
    "tolerance": 0.02,
}
Q, N, F = [1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [0.6, 0.0, 0.8]


class Engine(ThreadingHTTPServer):
    """Answers /health and /v1/embeddings with the vectors it is told to."""

    vectors: dict[str, list[float]] = {"q": Q, "n": N, "f": F}  # noqa: RUF012
    status = 200
    alone: list[float] | None = None


class Handler(BaseHTTPRequestHandler):
    server: Engine

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
        rows = [{"index": i, "embedding": self.server.vectors[text]} for i, text in enumerate(texts)]
        if len(texts) == 1 and self.server.alone is not None:
            rows[0]["embedding"] = self.server.alone
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(json.dumps({"data": rows[::-1]}).encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[Engine]:
    server = Engine(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def url(engine: Engine) -> str:
    return f"http://127.0.0.1:{engine.server_port}"


def test_right_vectors(engine: Engine) -> None:
    found = probe.wait_right(url(engine), SPEC, 5)
    assert (found.dimension, round(found.near, 3), round(found.far, 3)) == (3, 0.8, 0.6)


@pytest.mark.parametrize(
    ("vectors", "word"),
    [
        ({"n": F, "f": N}, "wrong order"),
        ({"q": [2.0, 0, 0]}, "norm"),
        ({"q": [1.0, 0]}, "dimension"),
        ({"q": [math.nan, 0, 0]}, "NaN"),
        ({"q": [0.0, 0, 0]}, "zeros"),
        ({"n": [0.95, math.sqrt(1 - 0.95**2), 0]}, "similarity near"),
    ],
)
def test_wrong_vectors(engine: Engine, vectors: dict[str, list[float]], word: str) -> None:
    engine.vectors = {**Engine.vectors, **vectors}
    with pytest.raises(probe.Wrong, match=word):
        probe.probe(url(engine), SPEC)


def test_a_text_alone_must_equal_it_in_a_batch(engine: Engine) -> None:
    engine.alone = N
    with pytest.raises(probe.Wrong, match="in a batch differ"):
        probe.probe(url(engine), SPEC)


def test_an_error_says_what_the_server_said(engine: Engine) -> None:
    engine.status = 503
    with pytest.raises(probe.Wrong, match="HTTP 503"):
        probe.probe(url(engine), SPEC)


def test_no_server_ends_with_its_process() -> None:
    with pytest.raises(probe.Wrong, match="ended while it was starting"):
        probe.wait_right("http://127.0.0.1:9", SPEC, 60, alive=lambda: False)


def test_no_server_ends_at_the_limit() -> None:
    with pytest.raises(probe.Wrong, match="within 0 s"):
        probe.wait_right("http://127.0.0.1:9", SPEC, 0.05, interval=0.01)

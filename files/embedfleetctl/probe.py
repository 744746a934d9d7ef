"""Proven means embedded: ask for real vectors and judge them.

An open port, /health or a log line say nothing (vllm#39863, #15313: healthy before it can serve, or while hung).
Right is: the dimension, finite numbers, norm 1, the known order of similarities (and their known values, which a
model with wrong weights misses), and a text alone equal to the same text in a batch (vllm#27034).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from embedfleetctl import http


class Wrong(Exception):
    """The server answered, but not with right embeddings (or did not answer at all)."""


@dataclass
class Vectors:
    """What a right answer looked like: dimension, the largest deviation of a norm from 1, two cosine similarities."""

    model: str
    dimension: int
    norm: float
    near: float
    far: float
    batch_difference: float
    seconds: float


def embed(url: str, model: str, texts: list[str], limit: float) -> list[list[float]]:
    """POST /v1/embeddings and return the vectors, in the order of `texts`.

    :raises Wrong: for every way in which the answer is not that
    """
    body = json.dumps({"model": model, "input": texts}).encode()
    try:
        status, answer = http.post(f"{url}/v1/embeddings", body, limit)
        if status != 200:
            raise Wrong(f"HTTP {status}: {answer[:300].decode('utf-8', 'replace').strip()}")
        rows = sorted(json.loads(answer)["data"], key=lambda row: row["index"])
        vectors = [[float(x) for x in row["embedding"]] for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Wrong(f"{type(error).__name__}: {error}") from None
    if len(vectors) != len(texts):
        raise Wrong(f"{len(vectors)} vectors for {len(texts)} texts")
    return vectors


def _cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def judge(spec: dict[str, Any], batch: list[list[float]], single: list[float], seconds: float = 0.0) -> Vectors:
    """Judge the vectors of [query, near, far] and of the query alone.

    :param spec: probe.json of a release: model, dimension, texts, near, far, tolerance
    :raises Wrong: with everything that is wrong
    """
    wrong: list[str] = []
    for vector in [*batch, single]:
        if len(vector) != spec["dimension"]:
            raise Wrong(f"dimension {len(vector)}, expected {spec['dimension']}")
        if not all(math.isfinite(x) for x in vector) or not any(vector):
            raise Wrong("a vector holds NaN, infinity or only zeros")
    norms = [math.sqrt(sum(x * x for x in vector)) for vector in [*batch, single]]
    worst = max(norms, key=lambda norm: abs(norm - 1))
    if abs(worst - 1) > 1e-3:
        wrong.append(f"norm {worst:.4f}, expected 1")
    near, far = _cosine(batch[0], batch[1]), _cosine(batch[0], batch[2])
    if not near > far:
        wrong.append(f"similarities in the wrong order: related {near:.4f}, unrelated {far:.4f}")
    for name, value in (("near", near), ("far", far)):
        expected = spec.get(name)
        if expected is not None and abs(value - expected) > spec["tolerance"]:
            wrong.append(f"similarity {name} {value:.4f}, expected {expected} within {spec['tolerance']}")
    difference = 1 - _cosine(batch[0], single)
    if difference > 1e-3:
        wrong.append(f"a text alone and in a batch differ: cosine {1 - difference:.5f}")
    if wrong:
        raise Wrong("; ".join(wrong))
    return Vectors(spec["model"], spec["dimension"], worst, near, far, difference, seconds)


def probe(url: str, spec: dict[str, Any], limit: float = 30) -> Vectors:
    """Ask `url` for embeddings and judge them. :raises Wrong: when they are not right."""
    start = time.monotonic()
    batch = embed(url, spec["model"], spec["texts"], limit)
    single = embed(url, spec["model"], spec["texts"][:1], limit)[0]
    return judge(spec, batch, single, time.monotonic() - start)


def listening(url: str) -> bool:
    """Say whether anything answers /health at all: cheap, asked before the real question while a server starts."""
    try:
        return http.get(f"{url}/health")[0] == 200
    except OSError:
        return False


def wait_right(
    url: str, spec: dict[str, Any], limit: float, alive: Callable[[], bool] = lambda: True, interval: float = 0.5
) -> Vectors:
    """Wait until a starting server gives right embeddings.

    Wrong vectors of a server that is up do not become right by waiting: they are final at once. So is a server whose
    process has ended.

    :param alive: says whether the server's process is still there
    :raises Wrong: after `limit` seconds, when the process has ended, or when the vectors are wrong
    """
    end = time.monotonic() + limit
    while not listening(url):
        if not alive():
            raise Wrong("the server ended while it was starting")
        if time.monotonic() >= end:
            raise Wrong(f"no answer from {url}/health within {limit:.0f} s")
        time.sleep(interval)
    return probe(url, spec, max(30.0, end - time.monotonic()))


def as_dict(vectors: Vectors) -> dict[str, Any]:
    """Return the answer for JSON, rounded to what is meaningful."""
    return {key: round(value, 6) if isinstance(value, float) else value for key, value in asdict(vectors).items()}

"""The server: vLLM's endpoints for embeddings, its health and its metrics, over vectors that need no torch.

A text's vector is the sum of its words' rows in the model's table: texts that share words are similar, a text alone is equal to
itself in a batch, and a model with other numbers gives other similarities, which is what a deploy has to notice.
"""

import array
import base64
import hashlib
import json
import math
import re
import signal
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path


class Model:
    """config.json and model.safetensors of a folder."""

    def __init__(self, folder):
        config = json.loads((folder / "config.json").read_text())
        self.dimension, self.rows = config["hidden_size"], config["vocab_size"]
        data = (folder / "model.safetensors").read_bytes()
        (header,) = struct.unpack_from("<Q", data)
        begin, end = json.loads(data[8 : 8 + header])["embeddings"]["data_offsets"]
        self.table = array.array("f")
        self.table.frombytes(data[8 + header + begin : 8 + header + end])

    def tokens(self, text):
        """Row numbers of a text's words."""
        words = re.findall(r"[a-z0-9]+", text.lower()) or [""]
        return [int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "little") % self.rows for word in words]

    def embed(self, tokens):
        """A vector of norm 1."""
        total = [0.0] * self.dimension
        for token in tokens:
            row = self.table[token * self.dimension : (token + 1) * self.dimension]
            total = [a + b for a, b in zip(total, row)]
        norm = math.sqrt(sum(x * x for x in total)) or 1.0
        return [x / norm for x in total]


class Counts:
    """What /metrics tells."""

    def __init__(self):
        self.lock = threading.Lock()
        self.running = self.served = self.tokens = 0
        self.seconds = 0.0

    def text(self, name):
        """Prometheus's text format, with vLLM's names and labels."""
        label = f'{{engine="0",model_name="{name}"}}'
        return "".join(
            f"# TYPE {key} {kind}\n{key}{label.replace('}', extra + '}')} {value}\n"
            for key, kind, extra, value in (
                ("vllm:num_requests_running", "gauge", "", float(self.running)),
                ("vllm:num_requests_waiting", "gauge", "", 0.0),
                ("vllm:request_success_total", "counter", ',finished_reason="stop"', float(self.served)),
                ("vllm:prompt_tokens_total", "counter", "", float(self.tokens)),
                ("vllm:e2e_request_latency_seconds_sum", "counter", "", self.seconds),
                ("vllm:e2e_request_latency_seconds_count", "counter", "", float(self.served)),
            )
        )


class Handler(BaseHTTPRequestHandler):
    """One connection; `model`, `names`, `limit` and `counts` are set on a subclass."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """No access log."""

    def do_GET(self):
        path = self.path.partition("?")[0]
        if path in ("/health", "/ping"):
            self.answer(200, b"")
        elif path == "/version":
            self.json(200, {"version": version("vllm")})
        elif path == "/v1/models":
            rows = [{"id": name, "object": "model", "max_model_len": self.limit} for name in self.names]
            self.json(200, {"object": "list", "data": rows})
        elif path == "/metrics":
            self.answer(200, self.counts.text(self.names[0]).encode(), "text/plain; version=0.0.4")
        else:
            self.json(404, {"detail": "Not Found"})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.partition("?")[0] != "/v1/embeddings":
            self.json(404, {"detail": "Not Found"})
            return
        begun = time.monotonic()
        with self.counts.lock:
            self.counts.running += 1
        try:
            self.embeddings(json.loads(body))
        except (ValueError, TypeError, KeyError) as error:
            self.error(400, "BadRequestError", str(error))
        finally:
            with self.counts.lock:
                self.counts.running -= 1
                self.counts.seconds += time.monotonic() - begun

    def embeddings(self, asked):
        """POST /v1/embeddings of one text, a list of texts, or lists of token ids."""
        if asked.get("model") not in self.names:
            self.error(404, "NotFoundError", f"The model `{asked.get('model')}` does not exist.")
            return
        if "dimensions" in asked:
            raise ValueError("Model does not support Matryoshka embeddings")
        texts = asked["input"]
        texts = [texts] if isinstance(texts, str) or (texts and isinstance(texts[0], int)) else texts
        if not texts:
            raise ValueError("input must hold at least one text")
        tokens = [self.model.tokens(text) if isinstance(text, str) else list(text) for text in texts]
        longest = max(map(len, tokens))
        if longest > self.limit:
            raise ValueError(f"This model's maximum context length is {self.limit} tokens, your input has {longest}")
        rows = []
        for index, row in enumerate(tokens):
            vector = self.model.embed(row)
            if asked.get("encoding_format") == "base64":
                vector = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
            rows.append({"index": index, "object": "embedding", "embedding": vector})
        count = sum(map(len, tokens))
        with self.counts.lock:
            self.counts.served += len(rows)
            self.counts.tokens += count
        usage = {"prompt_tokens": count, "total_tokens": count, "completion_tokens": 0}
        self.json(200, {"object": "list", "model": self.names[0], "data": rows, "usage": usage})

    def error(self, status, kind, message):
        """An error as vLLM's."""
        self.json(status, {"error": {"message": message, "type": kind, "param": None, "code": status}})

    def json(self, status, value):
        """Answer with JSON."""
        self.answer(status, json.dumps(value).encode(), "application/json")

    def answer(self, status, body, kind="text/plain"):
        """Answer."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve(args):
    """Serve until SIGTERM; requests at work are finished first, as vLLM waits for its clients."""
    limit = int(args.max_model_len or 512)
    names = args.served_model_name or [args.model_tag]
    shared = {"model": Model(Path(args.model_tag)), "names": names, "limit": limit, "counts": Counts()}
    server = ThreadingHTTPServer((args.host or "0.0.0.0", int(args.port or 8000)), type("Server", (Handler,), shared))
    server.daemon_threads = True
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"stand-in for vLLM {version('vllm')} serves {args.model_tag} on {server.server_address}", flush=True)
    server.serve_forever(poll_interval=0.2)
    while shared["counts"].running:
        time.sleep(0.05)
    return 0

"""A local mirror that can fail on demand: package index, wheels, conda, apt, rpm and ModelScope's routes.

One file of standard library, because it runs inside the mirror container as it is.

    mirror_server.py --root DIR [--port 8080] [--bind 0.0.0.0]

    DIR/{simple,wheels,conda,apt,rpm}     static files (ranges, ETag)
    DIR/.variants/<mode>/<path>           what a fault of that mode serves instead of /<path>, where there is one
    DIR/models/<owner>/<name>/<revision>/ model repositories under ModelScope's /api/v1/models/...
    GET|POST|DELETE /_control             faults (see `Fault`); GET|DELETE /_log; GET /_health
"""

from __future__ import annotations

import argparse
import email.utils
import hashlib
import json
import re
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

STATIC = ("simple", "wheels", "conda", "apt", "rpm")
VARIANTS = ("stale", "expired-release", "expired-key", "new-key", "badsig")
MODES = ("cut", "404", "503", "slow", "corrupt", *VARIANTS)
CHUNK = 64 * 1024
TYPES = {".html": "text/html", ".json": "application/json", ".yaml": "application/yaml", ".yml": "application/yaml"}


@dataclass
class Fault:
    """What to do to the next `count` requests (None: all) whose path and query contain `match`.

    cut: send `after_bytes` of the body, then close. 404, 503: answer so. slow: `rate` bytes a second.
    corrupt: same length, but the bytes from `after_bytes` on (16 of them) are flipped.
    A repository's index gone wrong, from DIR/.variants: stale (an older one, which lists packages that are gone),
    expired-release (valid until the day before yesterday), expired-key, new-key (signed by those), badsig.
    """

    match: str
    mode: str
    count: int | None = None
    after_bytes: int = 0
    rate: int = 64 * 1024
    hits: int = 0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r} is none of {', '.join(MODES)}")
        if not isinstance(self.match, str):
            raise ValueError("match must be a string (empty: every request)")
        for name, least in (("count", 1), ("after_bytes", 0), ("rate", 1)):
            value = getattr(self, name)
            if value is None and name == "count":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} must be a whole number, {least} or more")


@dataclass
class State:
    """What the handler threads share."""

    root: Path
    sleep: Callable[[float], None] = time.sleep
    faults: list[Fault] = field(default_factory=list)
    log: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=2000))
    sums: dict[tuple[str, int, int], str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take_fault(self, target: str) -> Fault | None:
        """The first fault that fits and isn't used up; counts the hit."""
        plain = unquote(target)
        with self.lock:
            for fault in self.faults:
                if (fault.match in target or fault.match in plain) and (
                    fault.count is None or fault.hits < fault.count
                ):
                    fault.hits += 1
                    return fault
        return None

    def sha256(self, path: Path) -> str:
        """A file's checksum, computed once for each content it has had."""
        stat = path.stat()
        key = (str(path), stat.st_size, stat.st_mtime_ns)
        if key not in self.sums:
            with path.open("rb") as handle:
                self.sums[key] = hashlib.file_digest(handle, "sha256").hexdigest()
        return self.sums[key]


class Handler(BaseHTTPRequestHandler):
    """One connection; `state` is set on a subclass made by `serve`."""

    protocol_version = "HTTP/1.1"
    server_version = "embedfleet-mirror"
    state: ClassVar[State]
    entry: dict[str, Any]
    fault: Fault | None

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: /_log has the requests."""

    def do_GET(self) -> None:
        self._request()

    do_HEAD = do_POST = do_DELETE = do_GET

    def _request(self) -> None:
        path = urlsplit(self.path).path
        self.fault = None
        self.entry = {"status": 0, "bytes": 0}
        if path.startswith("/_"):  # not logged and never at fault: tests look at the others
            self._own(path)
            return
        self.entry = {
            "method": self.command,
            "path": self.path,
            "status": 0,
            "bytes": 0,
            "range": self.headers.get("Range"),
            "agent": self.headers.get("User-Agent"),
            "fault": None,
        }
        with self.state.lock:
            self.state.log.append(self.entry)
        if self.command not in ("GET", "HEAD"):
            self._json(405, {"Code": 405, "Success": False, "Message": f"{self.command} isn't served here"})
            return
        self.fault = self.state.take_fault(self.path)
        if self.fault is not None:
            self.entry["fault"] = self.fault.mode
            if self.fault.mode in ("404", "503"):
                self._json(
                    int(self.fault.mode), {"Code": int(self.fault.mode), "Success": False, "Message": "injected"}
                )
                return
        first = path.lstrip("/").split("/", 1)[0]
        if first in STATIC:
            self._static(path)
        elif path.startswith("/api/v1/"):
            self._modelscope(path)
        else:
            self._json(404, {"error": f"nothing at {path}; there are /{'/ /'.join(STATIC)}/ /api/v1/"})

    # ---- the mirror's own routes

    def _own(self, path: str) -> None:
        state = self.state
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        match self.command, path:
            case "GET", "/_health":
                self._json(200, {"ok": True})
            case "GET", "/_log":
                with state.lock:
                    entries = [dict(entry) for entry in state.log]
                self._json(200, entries)
            case "DELETE", "/_log":
                state.log.clear()
                self._json(200, {"cleared": True})
            case "GET", "/_control":
                self._json(200, [asdict(fault) for fault in state.faults])
            case "DELETE", "/_control":
                with state.lock:
                    state.faults.clear()
                self._json(200, {"cleared": True})
            case "POST", "/_control":
                try:
                    wanted = json.loads(body)
                    wanted.pop("hits", None)
                    fault = Fault(**wanted)
                except (ValueError, TypeError, AttributeError) as error:
                    self._json(400, {"error": str(error)})
                    return
                with state.lock:
                    state.faults.append(fault)
                self._json(201, asdict(fault))
            case _:
                self._json(404, {"error": f"no {self.command} {path}"})

    # ---- static files

    def _static(self, path: str) -> None:
        # "/./" is in the paths of flat apt repositories, and nothing to other servers
        parts = [unquote(part) for part in path.split("/") if part not in ("", ".")]
        if any(part in (".", "..") or "/" in part or "\0" in part for part in parts):
            self._json(404, {"error": "no such path"})
            return
        file = self.state.root.joinpath(*parts)
        if file.is_dir():
            if not path.endswith("/"):  # relative links in an index need the slash
                self._head(301, {"Location": f"{path}/", "Content-Length": "0"})
                return
            file /= "index.html"
        if self.fault is not None and self.fault.mode in VARIANTS:
            variant = self.state.root.joinpath(".variants", self.fault.mode, *parts)
            file = variant if variant.is_file() else file
        self._file(file)

    def _file(self, file: Path) -> None:
        """Send a file, or the part of it that a Range header asks for."""
        try:
            handle = file.open("rb")
        except OSError:
            self._json(404, {"Code": 404, "Success": False, "Message": f"no file {file.name}"})
            return
        with handle:
            stat = file.stat()
            etag = f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'
            headers = {
                "Content-Type": TYPES.get(file.suffix, "application/octet-stream"),
                "Accept-Ranges": "bytes",
                "ETag": etag,
                "Last-Modified": email.utils.formatdate(stat.st_mtime, usegmt=True),
            }
            if self.headers.get("If-None-Match") == etag:
                self._head(304, headers)
                return
            start, end, status = 0, stat.st_size, 200
            if self.headers.get("If-Range", etag) == etag and (wanted := self.headers.get("Range")):
                span = parse_range(wanted, stat.st_size)
                if span == (-1, -1):
                    self._head(416, {"Content-Range": f"bytes */{stat.st_size}", "Content-Length": "0"})
                    return
                if span is not None:
                    (start, end), status = span, 206
                    headers["Content-Range"] = f"bytes {start}-{end - 1}/{stat.st_size}"
            self._head(status, {**headers, "Content-Length": str(end - start)})
            if self.command == "HEAD":
                return
            handle.seek(start)
            left = end - start
            while left and (chunk := handle.read(min(CHUNK, left))):
                left -= len(chunk)
                if not self._body(chunk):
                    return

    # ---- ModelScope (knowledge: the routes that modelscope 1.40 asks for)

    def _modelscope(self, path: str) -> None:
        match = re.fullmatch(r"/api/v1/models/([^/]+)/([^/]+)(/repo/files|/repo|/revisions)?", path)
        if match is None:
            self._json(404, {"Code": 404, "Success": False, "Message": f"no route {path}"})
            return
        owner, name, route = unquote(match[1]), unquote(match[2]), match[3]
        repository = self.state.root / "models" / owner / name
        if ".." in (owner, name) or not repository.is_dir():
            self._json(404, {"Code": 10010205001, "Success": False, "Message": f"model {owner}/{name} not exists"})
            return
        revisions = sorted(entry.name for entry in repository.iterdir() if entry.is_dir())
        if route is None:
            self._json(200, _data({"Path": owner, "Name": name, "Id": 1, "Revision": "master", "Visibility": 5}))
            return
        if route == "/revisions":
            tags = [{"Revision": revision, "CreatedAt": 0} for revision in revisions]
            self._json(200, _data({"RevisionMap": {"Branches": [{"Revision": "master"}], "Tags": tags}}))
            return
        query = parse_qs(urlsplit(self.path).query)
        revision = query.get("Revision", ["master"])[0]
        if revision not in revisions:
            self._json(404, {"Code": 404, "Success": False, "Message": f"{owner}/{name} has no revision {revision}"})
            return
        tree = repository / revision
        if route == "/repo/files":
            root = query.get("Root", [""])[0].strip("/")
            recursive = query.get("Recursive", ["False"])[0].lower() == "true"
            self._json(200, _data({"Files": self._listing(tree, root, recursive)}))
            return
        parts = query.get("FilePath", [""])[0].split("/")
        if any(part in ("", ".", "..") for part in parts):
            self._json(404, {"Code": 404, "Success": False, "Message": "FilePath names no file"})
            return
        self._file(tree.joinpath(*parts))

    def _listing(self, tree: Path, root: str, recursive: bool) -> list[dict[str, Any]]:
        top = tree / root if ".." not in root.split("/") else tree
        found: list[dict[str, Any]] = []
        for path in sorted(top.rglob("*") if recursive else top.glob("*")):
            entry = {
                "Path": path.relative_to(tree).as_posix(),
                "Name": path.name,
                "Revision": tree.name,
                "Mode": "33188",
            }
            if path.is_dir():
                found.append({**entry, "Type": "tree", "Size": 0, "Sha256": ""})
            else:
                found.append({**entry, "Type": "blob", "Size": path.stat().st_size, "Sha256": self.state.sha256(path)})
        return found

    # ---- sending

    def _json(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self._head(status, {"Content-Type": "application/json", "Content-Length": str(len(body))})
        if self.command != "HEAD":
            self._body(body)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.entry["status"] = status
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()

    def _body(self, data: bytes) -> bool:
        """Send a piece of the body through the fault, if there is one; False: the connection is over."""
        fault, sent = self.fault, self.entry["bytes"]
        if fault is not None and fault.mode == "corrupt":
            data = flip(data, fault.after_bytes - sent, 16)
        cut = fault is not None and fault.mode == "cut" and sent + len(data) > fault.after_bytes
        if fault is not None and cut:
            data = data[: max(0, fault.after_bytes - sent)]
        self.entry["bytes"] = sent + len(data)  # before the write: whoever has the last byte may read the log at once
        try:
            if fault is not None and fault.mode == "slow":
                for position in range(0, len(data), step := max(1, fault.rate // 10)):
                    piece = data[position : position + step]
                    self.state.sleep(len(piece) / fault.rate)
                    self.wfile.write(piece)
                    self.wfile.flush()
            else:
                self.wfile.write(data)
            if not cut:
                return True
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # the client went away, which is its right
            pass
        self.close_connection = True
        return False


def _data(value: dict[str, Any]) -> dict[str, Any]:
    """ModelScope's envelope."""
    return {"Code": 200, "Success": True, "Message": "success", "RequestId": "rig", "Data": value}


def parse_range(header: str, size: int) -> tuple[int, int] | None:
    """(start, end) of a single byte range; (-1, -1) can't be satisfied; None is to be ignored (several ranges)."""
    match = re.fullmatch(r"\s*bytes=(\d*)-(\d*)\s*", header)
    if match is None or match.groups() == ("", ""):
        return None
    if not match[1]:
        length = min(int(match[2]), size)
        return (size - length, size) if length else (-1, -1)
    start, end = int(match[1]), min(int(match[2]) + 1, size) if match[2] else size
    return (start, end) if start < size and start < end else (-1, -1)


def flip(data: bytes, start: int, length: int) -> bytes:
    """The same data with the bytes [start, start + length) inverted, as far as they lie in it."""
    first, last = max(0, start), min(len(data), start + length)
    if first >= last:
        return data
    return data[:first] + bytes(byte ^ 0xFF for byte in data[first:last]) + data[last:]


def make_server(root: Path, bind: str, port: int, sleep: Callable[[float], None] = time.sleep) -> ThreadingHTTPServer:
    """A server ready for serve_forever(); its state is `server.RequestHandlerClass.state`."""
    handler = type("MirrorHandler", (Handler,), {"state": State(root, sleep)})
    server = ThreadingHTTPServer((bind, port), handler)
    server.daemon_threads = True
    return server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--bind", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8080)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # as PID 1 it would be ignored otherwise
    make_server(args.root, args.bind, args.port).serve_forever()


if __name__ == "__main__":
    main()

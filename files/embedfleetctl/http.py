"""HTTP to this host's own servers, never through a site's proxy.

By plain sockets: every deploy asks, and importing http.client takes as long as asking (45 ms on a slow core). HTTP/1.0, so an
answer ends where the connection does. `limit` holds for all of it, not for each read.
"""

from __future__ import annotations

import re
import socket
import time
from urllib.parse import urlsplit


def get(url: str, limit: float = 5) -> tuple[int, bytes]:
    """GET a URL: status and body. :raises OSError: when there is no whole answer within `limit` seconds."""
    return _ask(url, None, limit)


def post(url: str, body: bytes, limit: float) -> tuple[int, bytes]:
    """POST JSON: status and body, whatever the status. :raises OSError: when there is no whole answer in time."""
    return _ask(url, body, limit)


def _ask(url: str, body: bytes | None, limit: float) -> tuple[int, bytes]:
    end = time.monotonic() + limit
    parts = urlsplit(url)
    lines = [f"{'GET' if body is None else 'POST'} {parts.path or '/'} HTTP/1.0", f"Host: {parts.netloc}"]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    request = "\r\n".join([*lines, "", ""]).encode() + (body or b"")
    answer = b""
    with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=limit) as door:
        door.sendall(request)
        while True:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no whole answer within {limit:.0f} s")
            door.settimeout(left)
            block = door.recv(1 << 16)
            if not block:
                break
            answer += block
    head, _, content = answer.partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/1\.[01] (\d{3}) ?", head)
    if not status:
        raise OSError("the answer is not HTTP")
    length = re.search(rb"(?im)^content-length: *(\d+)\r?$", head)
    if length and len(content) < int(length[1]):
        raise OSError("the answer was cut off")
    return int(status[1]), content

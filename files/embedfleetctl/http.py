"""HTTP to this host's own servers, never through a site's proxy."""

from __future__ import annotations

from typing import Any


def get(url: str, limit: float = 5) -> tuple[int, bytes]:
    """GET a URL: status and body. :raises OSError: when there is no answer within `limit` seconds."""
    return _ask(url, None, limit)


def post(url: str, body: bytes, limit: float) -> tuple[int, bytes]:
    """POST JSON: status and body, whatever the status. :raises OSError: when there is no answer in time."""
    return _ask(url, body, limit)


def _ask(url: str, body: bytes | None, limit: float) -> tuple[int, bytes]:
    # Imported here: `embedfleetctl state` asks nobody, runs in every deploy, and this import is a third of its time.
    import http.client
    import urllib.error
    import urllib.request

    request: Any = urllib.request.Request(url, body, {"Content-Type": "application/json"} if body else {})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=limit) as answer:
            return int(answer.status), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except http.client.HTTPException as error:
        raise OSError(f"{type(error).__name__}: {error}") from None

"""The mirror's server: ranges, ModelScope's routes, and each fault it can inject."""

from __future__ import annotations

import hashlib
import http.client
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.targets.mirror_server import CHUNK, State, flip, make_server, parse_range

MODEL = "/api/v1/models/acme/tiny"
WEIGHTS = bytes(range(256)) * 1024  # 256 KiB: several chunks


@dataclass
class Reply:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Mirror:
    """A server on a free port, and a client that makes one connection per request."""

    def __init__(self, root: Path) -> None:
        self.sleeps: list[float] = []
        self.server = make_server(root, "127.0.0.1", 0, sleep=self.sleeps.append)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def state(self) -> State:
        state: State = self.server.RequestHandlerClass.state  # type: ignore[attr-defined]
        return state

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def ask(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_address[1], timeout=10)
        try:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, json.dumps(body) if body is not None else None, sent)
            reply = connection.getresponse()
            return Reply(reply.status, reply.headers, reply.read())
        finally:
            connection.close()

    def fault(self, **fault: Any) -> Reply:
        return self.ask("/_control", "POST", fault)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {
        "simple/torch/index.html": b"<a href='../../wheels/torch-1%2Bcpu.whl'>torch-1+cpu.whl</a>",
        "wheels/torch-1+cpu.whl": WEIGHTS,
        "wheels/empty.whl": b"",
        "conda/noarch/repodata.json": b"{}",
        "models/acme/tiny/v1/config.json": b'{"v": 1}',
        "models/acme/tiny/v1/1_Pooling/config.json": b'{"pool": 1}',
        "models/acme/tiny/v1/model.safetensors": WEIGHTS,
        "models/acme/tiny/v2/config.json": b'{"v": 2}',
        "secret.txt": b"not served",
    }
    for name, data in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "models/acme/tiny/master").symlink_to("v1")
    return tmp_path


@pytest.fixture
def mirror(root: Path) -> Iterator[Mirror]:
    mirror = Mirror(root)
    yield mirror
    mirror.close()


# ---- static files


def test_index_page_and_wheel_with_a_plus_in_its_name(mirror: Mirror) -> None:
    assert mirror.ask("/simple/torch/").headers["Content-Type"] == "text/html"
    assert mirror.ask("/wheels/torch-1%2Bcpu.whl").body == WEIGHTS
    assert mirror.ask("/conda/noarch/repodata.json").json == {}


def test_a_folder_without_slash_is_redirected(mirror: Mirror) -> None:
    reply = mirror.ask("/simple/torch")
    assert (reply.status, reply.headers["Location"]) == (301, "/simple/torch/")


@pytest.mark.parametrize("path", ["/simple/none/", "/wheels/../secret.txt", "/wheels/%2e%2e/secret.txt", "/secret.txt"])
def test_what_is_not_served(mirror: Mirror, path: str) -> None:
    assert mirror.ask(path).status == 404


def test_head_has_the_length_and_no_body(mirror: Mirror) -> None:
    reply = mirror.ask("/wheels/torch-1%2Bcpu.whl", "HEAD")
    assert (reply.status, reply.headers["Content-Length"], reply.body) == (200, str(len(WEIGHTS)), b"")


@pytest.mark.parametrize(
    ("header", "start", "end"),
    [("bytes=100-", 100, None), ("bytes=0-9", 0, 10), ("bytes=-5", -5, None), ("bytes=5-999999999", 5, None)],
)
def test_range(mirror: Mirror, header: str, start: int, end: int | None) -> None:
    reply = mirror.ask("/wheels/torch-1%2Bcpu.whl", Range=header)
    assert (reply.status, reply.body) == (206, WEIGHTS[start:end])
    first = start if start >= 0 else len(WEIGHTS) + start
    assert reply.headers["Content-Range"] == f"bytes {first}-{first + len(reply.body) - 1}/{len(WEIGHTS)}"


def test_range_behind_the_end(mirror: Mirror) -> None:
    reply = mirror.ask("/wheels/torch-1%2Bcpu.whl", Range=f"bytes={len(WEIGHTS)}-")
    assert (reply.status, reply.headers["Content-Range"]) == (416, f"bytes */{len(WEIGHTS)}")


def test_range_of_a_file_that_changed_since_sends_all(mirror: Mirror) -> None:
    assert mirror.ask("/wheels/torch-1%2Bcpu.whl", Range="bytes=5-", If_Range='"other"').status == 200


def test_etag_spares_a_second_transfer(mirror: Mirror) -> None:
    etag = mirror.ask("/conda/noarch/repodata.json").headers["ETag"]
    assert mirror.ask("/conda/noarch/repodata.json", If_None_Match=etag).status == 304


@pytest.mark.parametrize("header", ["items=0-1", "bytes=0-1,3-4", "bytes=-", "nonsense"])
def test_ranges_that_are_ignored(header: str) -> None:
    assert parse_range(header, 10) is None


@pytest.mark.parametrize(("header", "size"), [("bytes=0-", 0), ("bytes=-0", 10), ("bytes=5-4", 10)])
def test_ranges_that_cannot_be_had(header: str, size: int) -> None:
    assert parse_range(header, size) == (-1, -1)


# ---- ModelScope


def test_listing_has_size_and_checksum(mirror: Mirror) -> None:
    reply = mirror.ask(f"{MODEL}/repo/files?Revision=v1&Recursive=True").json
    assert (reply["Code"], reply["Success"]) == (200, True)
    files = {entry["Path"]: entry for entry in reply["Data"]["Files"]}
    assert set(files) == {"config.json", "1_Pooling", "1_Pooling/config.json", "model.safetensors"}
    weights = files["model.safetensors"]
    assert (weights["Type"], weights["Size"]) == ("blob", len(WEIGHTS))
    assert weights["Sha256"] == hashlib.sha256(WEIGHTS).hexdigest()
    assert files["1_Pooling"]["Type"] == "tree"


def test_listing_of_one_level_and_below_a_folder(mirror: Mirror) -> None:
    flat = mirror.ask(f"{MODEL}/repo/files?Revision=v1").json["Data"]["Files"]
    assert "1_Pooling/config.json" not in [entry["Path"] for entry in flat]
    below = mirror.ask(f"{MODEL}/repo/files?Revision=v1&Root=1_Pooling&Recursive=True").json["Data"]["Files"]
    assert [entry["Path"] for entry in below] == ["1_Pooling/config.json"]


def test_checksum_follows_the_file(mirror: Mirror, root: Path) -> None:
    path = f"{MODEL}/repo/files?Revision=v2&Recursive=True"
    before = mirror.ask(path).json["Data"]["Files"][0]["Sha256"]
    (root / "models/acme/tiny/v2/config.json").write_bytes(b'{"v": 22}')
    assert mirror.ask(path).json["Data"]["Files"][0]["Sha256"] != before


@pytest.mark.parametrize(("revision", "value"), [("v1", 1), ("v2", 2), ("master", 1)])
def test_revision_selects_the_tree(mirror: Mirror, revision: str, value: int) -> None:
    assert mirror.ask(f"{MODEL}/repo?Revision={revision}&FilePath=config.json").json == {"v": value}


def test_file_in_a_folder_and_range(mirror: Mirror) -> None:
    assert mirror.ask(f"{MODEL}/repo?Revision=v1&FilePath={quote('1_Pooling/config.json', safe='')}").json == {
        "pool": 1
    }
    part = mirror.ask(f"{MODEL}/repo?Revision=v1&FilePath=model.safetensors", Range="bytes=1000-")
    assert (part.status, part.body) == (206, WEIGHTS[1000:])


def test_revisions_and_details(mirror: Mirror) -> None:
    tags = mirror.ask(f"{MODEL}/revisions").json["Data"]["RevisionMap"]["Tags"]
    assert [tag["Revision"] for tag in tags] == ["master", "v1", "v2"]
    assert mirror.ask(MODEL).json["Data"]["Name"] == "tiny"


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/models/acme/none/repo/files?Revision=v1",
        f"{MODEL}/repo/files?Revision=none",
        f"{MODEL}/repo?Revision=v1&FilePath=none.json",
        f"{MODEL}/repo?Revision=v1&FilePath=../v2/config.json",
        f"{MODEL}/repo?Revision=v1",
        f"{MODEL}/repo?Revision=..&FilePath=tiny/v1/config.json",
        "/api/v1/models/../acme/repo/files",
        "/api/v1/repos/internalAccelerationInfo",
    ],
)
def test_unknown_things_are_404_with_a_reason(mirror: Mirror, path: str) -> None:
    reply = mirror.ask(path)
    assert (reply.status, reply.json["Success"]) == (404, False)
    assert reply.json["Message"]


# ---- faults


def test_cut_sends_so_much_and_closes_once(mirror: Mirror) -> None:
    after = CHUNK + 1000
    mirror.fault(match="model.safetensors", mode="cut", count=1, after_bytes=after)
    path = f"{MODEL}/repo?Revision=v1&FilePath=model.safetensors"
    with pytest.raises(http.client.IncompleteRead) as cut:
        mirror.ask(path)
    assert cut.value.partial == WEIGHTS[:after]
    rest = mirror.ask(path, Range=f"bytes={after}-")
    assert cut.value.partial + rest.body == WEIGHTS
    assert [(e["fault"], e["bytes"]) for e in mirror.ask("/_log").json] == [("cut", after), (None, len(rest.body))]


@pytest.mark.parametrize("status", [404, 503])
def test_status_faults_until_cleared(mirror: Mirror, status: int) -> None:
    mirror.fault(match="/simple/", mode=str(status))
    assert [mirror.ask("/simple/torch/").status for _ in range(3)] == [status] * 3
    assert mirror.ask("/wheels/torch-1%2Bcpu.whl").status == 200
    assert mirror.ask("/_control").json[0]["hits"] == 3
    mirror.ask("/_control", "DELETE")
    assert mirror.ask("/simple/torch/").status == 200


@pytest.mark.parametrize("after", [0, 5, CHUNK - 3])
def test_corrupt_keeps_the_length(mirror: Mirror, after: int) -> None:
    mirror.fault(match="torch-1+cpu.whl", mode="corrupt", count=1, after_bytes=after)
    bad = mirror.ask("/wheels/torch-1%2Bcpu.whl")
    assert (bad.status, len(bad.body)) == (200, len(WEIGHTS))
    assert [i for i in range(len(WEIGHTS)) if bad.body[i] != WEIGHTS[i]] == list(range(after, after + 16))
    assert mirror.ask("/wheels/torch-1%2Bcpu.whl").body == WEIGHTS


def test_slow_sends_all_at_the_rate(mirror: Mirror) -> None:
    mirror.fault(match="torch", mode="slow", rate=len(WEIGHTS) // 2)
    assert mirror.ask("/wheels/torch-1%2Bcpu.whl").body == WEIGHTS
    assert sum(mirror.sleeps) == pytest.approx(2.0)


def test_faults_are_used_up_in_order(mirror: Mirror) -> None:
    mirror.fault(match="torch", mode="503", count=1)
    mirror.fault(match="torch", mode="404", count=2)
    assert [mirror.ask("/simple/torch/").status for _ in range(4)] == [503, 404, 404, 200]


@pytest.mark.parametrize(
    "fault",
    [
        {"match": "x", "mode": "explode"},
        {"match": "x"},
        {"match": 1, "mode": "cut"},
        {"match": "x", "mode": "cut", "count": 0},
        {"match": "x", "mode": "cut", "after_bytes": "5"},
        {"match": "x", "mode": "slow", "rate": 0},
        {"match": "x", "mode": "cut", "typo": 1},
        ["cut"],
    ],
)
def test_wrong_faults_are_refused(mirror: Mirror, fault: Any) -> None:
    reply = mirror.ask("/_control", "POST", fault)
    assert reply.status == 400
    assert reply.json["error"]
    assert mirror.ask("/_control").json == []


def test_flip_outside_the_data_changes_nothing() -> None:
    assert flip(b"abc", 3, 2) == flip(b"abc", -2, 2) == b"abc"
    assert flip(b"\x00\x00", -1, 2) == b"\xff\x00"


# ---- log


def test_log_has_requests_but_not_the_mirrors_own(mirror: Mirror) -> None:
    mirror.ask("/_health")
    mirror.ask("/wheels/torch-1%2Bcpu.whl", Range="bytes=10-")
    mirror.ask("/wheels/none.whl", "HEAD")
    mirror.ask("/wheels/empty.whl", "POST")
    seen = [(e["method"], e["path"], e["status"], e["bytes"], e["range"]) for e in mirror.ask("/_log").json]
    assert seen[0] == ("GET", "/wheels/torch-1%2Bcpu.whl", 206, len(WEIGHTS) - 10, "bytes=10-")
    assert seen[1] == ("HEAD", "/wheels/none.whl", 404, 0, None)
    assert seen[2][:3] == ("POST", "/wheels/empty.whl", 405)
    mirror.ask("/_log", "DELETE")
    assert mirror.ask("/_log").json == []


# ---- repositories


def test_variant_stands_in_for_what_it_has_and_for_nothing_else(mirror: Mirror, root: Path) -> None:
    for path, text in {
        "apt/x/InRelease": "good",
        "apt/x/Packages": "list",
        ".variants/stale/apt/x/InRelease": "old",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    mirror.ask("/_control", "POST", {"match": "/apt/", "mode": "stale"})
    assert mirror.ask("/apt/x/InRelease").body == b"old"
    assert mirror.ask("/apt/x/./Packages").body == b"list"  # as flat apt repositories write it
    mirror.ask("/_control", "DELETE")
    assert mirror.ask("/apt/x/InRelease").body == b"good"
    assert mirror.ask("/.variants/stale/apt/x/InRelease").status == 404

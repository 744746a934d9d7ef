"""The host's program where it decides: gateway state, what is pruned, whether a model is whole, locks of conda."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from embedfleetctl import activate, common, gateway, jobs, prune
from embedfleetctl.common import Failure
from embedfleetctl.instances import Instance
from embedfleetctl.make import model
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host's directories below `tmp_path`, two instances, and a gateway that is what the files say."""
    for module in (common, gateway, prune, jobs):
        for name in ("ROOT", "WORK", "SPECS", "RESULTS", "LOGS", "HOST_JSON", "STATE", "UPSTREAMS"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, tmp_path / name.lower())
    common.write_atomic(tmp_path / "host_json", json.dumps({"instances": [8000, 8001]}))
    (tmp_path / "state").mkdir()
    monkeypatch.setattr(gateway, "applied", lambda: True)
    monkeypatch.setattr(gateway, "enabled_ports", lambda: {8000, 8001})
    monkeypatch.setattr(gateway, "drained", lambda port, limit: True)
    monkeypatch.setattr(gateway, "lock", lambda *a, **k: _nothing())
    return tmp_path


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def test_render_marks_who_is_out() -> None:
    assert gateway.render([8000, 8001], {8001}) == "server 127.0.0.1:8000 max_fails=0;\nserver 127.0.0.1:8001 down;\n"


def test_an_instance_gets_nothing_before_it_was_proven(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "enabled_ports", lambda: {8000, 7000})
    assert gateway.wanted_upstreams() == gateway.render([7000, 8000, 8001], {8001}), (
        "and an old one goes on until it is taken away"
    )


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("::", "http://[::1]:1"),
        ("10.0.0.7", "http://10.0.0.7:1"),
        ("fd00::7", "http://[fd00::7]:1"),
    ],
)
def test_where_the_gateway_is_asked(monkeypatch: pytest.MonkeyPatch, address: str, expected: str) -> None:
    monkeypatch.setattr(gateway, "host_settings", lambda: {"gateway": {"host": address, "port": 1}})
    assert gateway.url() == expected


def test_out_and_in(host: Path) -> None:
    gateway.take_out(8000, "anna", "a look", 1)
    assert gateway.outs()[8000]["by"] == "anna"
    gateway.take_out(8000, "rollout", "again", 1)
    assert gateway.outs()[8000]["by"] == "anna", "who took it out first stays the owner"
    gateway.put_in(8000)
    assert gateway.outs() == {}


def test_the_last_instance_stays_in(host: Path) -> None:
    gateway.take_out(8000, "anna", "", 1)
    with pytest.raises(Failure, match="last instance"):
        gateway.take_out(8001, "anna", "", 1)
    gateway.take_out(8001, "anna", "", 1, last=True)
    assert set(gateway.outs()) == {8000, 8001}


def test_unknown_port(host: Path) -> None:
    with pytest.raises(Failure, match="no instance"):
        gateway.take_out(9000, "anna", "", 1)


def test_requests_that_do_not_end(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "drained", lambda port, limit: False)
    with pytest.raises(Failure, match="stays out") as caught:
        gateway.take_out(8000, "anna", "", 1)
    assert caught.value.setting == "drain_timeout"
    assert 8000 in gateway.outs()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('vllm:num_requests_running{engine="0"} 2.0\nvllm:num_requests_waiting{engine="0"} 1.0\n', 3.0),
        ('vllm:num_requests_running{engine="0"} 0.0\nvllm:num_requests_waiting_by_reason{r="x"} 9.0\n', 0.0),
        ("nothing of that kind", None),
    ],
)
def test_load(monkeypatch: pytest.MonkeyPatch, text: str, expected: float | None) -> None:
    monkeypatch.setattr(gateway.http, "get", lambda url, limit=5: (200, text.encode()))
    assert gateway.load(8000) == expected


def _part(root: Path, kind: str, name: str, **spec: Any) -> None:
    (root / kind / name).mkdir(parents=True)
    (root / kind / name / "manifest.json").write_text(json.dumps({"spec": spec}))


def test_prune_keeps_what_runs_and_what_it_needs(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = host / "root"
    for index in range(5):
        _part(root, "releases", f"r{index}", engines=f"e{index}", models="m")
        _part(root, "engines", f"e{index}", conda="c")
        os.utime(root / f"releases/r{index}/manifest.json", (index, index))
    _part(root, "models", "m")
    _part(root, "models", "other")
    _part(root, "conda", "c")
    (root / "engines" / "half").mkdir()
    (host / "work" / "engines-half").mkdir(parents=True)
    (host / "work" / "home").mkdir()
    for path in [
        *root.glob("engines/*/manifest.json"),
        *root.glob("models/*/manifest.json"),
        root / "engines" / "half",
        host / "work" / "engines-half",
    ]:
        os.utime(path, (1, 1))
    _part(root, "models", "young")
    (root / "engines" / "young").mkdir()
    monkeypatch.setattr("embedfleetctl.make.ROOT", root)
    monkeypatch.setattr(prune, "release_of", lambda link: {"current": "r4", "previous": "r0"}.get(link))
    monkeypatch.setattr(prune, "present_ports", list)
    monkeypatch.setattr(prune, "states", lambda ports: [])
    monkeypatch.setattr(prune, "_busy", lambda kind, part: False)
    prune.prune(3)
    left = sorted(str(path.parent.relative_to(root)) for path in root.glob("*/*/manifest.json"))
    assert left == [
        "conda/c",
        "engines/e0",
        "engines/e3",
        "engines/e4",
        "models/m",
        "models/young",
        "releases/r0",
        "releases/r3",
        "releases/r4",
    ]
    assert sorted(path.name for path in (root / "engines").iterdir()) == ["e0", "e3", "e4", "young"]
    assert [path.name for path in (host / "work").iterdir()] == ["home"]


def test_a_running_job_keeps_its_work(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (host / "work" / "models-a-b").mkdir(parents=True)
    os.utime(host / "work" / "models-a-b", (1, 1))
    monkeypatch.setattr(prune, "_busy", lambda kind, part: (kind, part) == ("models", "a-b"))
    prune.leftovers()
    assert (host / "work" / "models-a-b").exists()


def _model(tmp_path: Path, **config: object) -> Path:
    for name, text in {
        "config.json": json.dumps({"model_type": "bert", "position_embedding_type": "absolute", **config}),
        "tokenizer_config.json": "{}",
        "model.safetensors": "weights",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


SPEC: dict[str, Any] = {"model_id": "a/b", "revision": "v1", "sha256": {}, "known_sha256": {}}


def test_a_whole_model(tmp_path: Path) -> None:
    files = model.check(_model(tmp_path), SPEC)
    assert files["model.safetensors"]["sha256"] == hashlib.sha256(b"weights").hexdigest()


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "model.safetensors"])
def test_a_model_that_lacks_a_file(tmp_path: Path, name: str) -> None:
    (_model(tmp_path) / name).unlink()
    with pytest.raises(Failure, match="lacks"):
        model.check(tmp_path, SPEC)


def test_pins_that_differ_or_are_missing(tmp_path: Path) -> None:
    _model(tmp_path)
    with pytest.raises(Failure, match="is missing"):
        model.check(tmp_path, {**SPEC, "sha256": {"other.bin": "0" * 64}})
    with pytest.raises(Failure, match="has sha256"):
        model.check(tmp_path, {**SPEC, "sha256": {"model.safetensors": "0" * 64}})
    assert not (tmp_path / "model.safetensors").exists(), "the next run fetches it again"


def test_known_contents_count_only_where_they_are(tmp_path: Path) -> None:
    _model(tmp_path)
    model.check(tmp_path, {**SPEC, "known_sha256": {"pytorch_model.bin": "0" * 64}})
    with pytest.raises(Failure, match="has sha256"):
        model.check(tmp_path, {**SPEC, "known_sha256": {"model.safetensors": "0" * 64}})


def test_config_saved_again_by_transformers_5(tmp_path: Path) -> None:
    path = _model(tmp_path) / "config.json"
    path.write_text(json.dumps({"model_type": "xlm-roberta"}))
    with pytest.raises(Failure, match="position_embedding_type"):
        model.check(tmp_path, SPEC)


@given(st.lists(st.text(alphabet="ab#> \n", max_size=20), max_size=8))
def test_a_job_s_log_is_followed_line_by_line(lines: list[str]) -> None:
    """Whatever the log holds, following it ends and shows exactly its progress lines."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        logs, results = Path(folder) / "logs", Path(folder) / "results"
        logs.mkdir()
        patch.setattr(jobs, "LOGS", logs)
        patch.setattr(jobs, "RESULTS", results)
        patch.setattr(jobs, "running", lambda name: False)
        text = "".join(line + "\n" for line in lines)
        (logs / "j.log").write_text(text)
        jobs.finish("j", None)
        shown: list[str] = []
        patch.setattr("builtins.print", lambda *words, **_: shown.append(" ".join(words)))
        jobs.follow("j")
        assert shown == [line[3:].rstrip() for line in text.splitlines() if line.startswith("#> ")]


def test_a_job_without_a_result_was_ended_from_outside(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "running", lambda name: False)
    (host / "logs").mkdir()
    (host / "logs" / "j.log").write_text("#> at work\nlast words\n")
    with pytest.raises(Failure, match="ended from outside") as caught:
        jobs.follow("j")
    assert "last words" in caught.value.reason


def test_conda_lock_lines() -> None:
    pytest.importorskip("rattler")
    from embedfleetctl.make import conda_install

    assert conda_install.LINE.fullmatch("linux-64/python-3.11.2-h1_0.tar.bz2#sha256:" + "a" * 64)
    assert not conda_install.LINE.fullmatch("linux-64/python-3.11.2-h1_0.tar.bz2")


def test_a_failed_start_is_told_by_what_is_telling() -> None:
    lines = [
        "Starting embedfleet-candidate@8900.service - embedfleet candidate on port 8900...",
        "ValueError: of an earlier attempt",
        "Starting embedfleet-candidate@8900.service - embedfleet candidate on port 8900...",
        "INFO: loading",
        "embedfleetctl failed: model_id",
        "port 8900: similarities in the wrong order",
        "cure: journalctl",
        "INFO:     Shutting down",
    ]
    assert activate.telling(lines) == ["port 8900: similarities in the wrong order"]
    crash = [*lines[:4], "(Worker pid=1) ERROR ValueError: Available memory on node 0", "INFO: bye"]
    assert activate.telling(crash) == ["(Worker pid=1) ERROR ValueError: Available memory on node 0"]
    assert activate.telling(["a", "b"]) == ["a", "b"]


def _instances(monkeypatch: pytest.MonkeyPatch, *rows: tuple[int, str, str]) -> None:
    made = {port: Instance(port, active, "", True, True, release) for port, active, release in rows}
    monkeypatch.setattr(activate, "states", lambda ports: [made[port] for port in ports])


def test_instances_that_serve_nobody_are_switched_first(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _instances(monkeypatch, (8000, "active", "r1"), (8001, "failed", "r1"), (8002, "active", "r2"))
    assert [instance.port for instance in activate.behind("r2", [8000, 8001, 8002])] == [8001, 8000]


def test_a_rollout_never_takes_out_whom_people_left(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _instances(monkeypatch, (8000, "active", "r1"), (8001, "active", "r1"))
    activate.somebody_answers("r2", [8000, 8001])
    gateway.take_out(8001, "anna", "a look", 1)
    activate.somebody_answers("r1", [8000, 8001])
    with pytest.raises(Failure, match=r"8001 by anna \(a look\); switching 8000 would leave nobody"):
        activate.somebody_answers("r2", [8000, 8001])
    activate.somebody_answers("r2", [8000])


def test_a_proven_instance_is_put_back_before_the_next_is_taken_out(host: Path) -> None:
    """A rollout killed between an instance's proof and its return would else leave nobody in (seen: 3,000 answers 502)."""
    gateway.take_out(8000, "rollout", "switch", 1)
    gateway.take_out(8001, "anna", "a look", 1, last=True)
    activate.put_back(except_for={8000})
    assert set(gateway.outs()) == {8000, 8001}
    activate.put_back(except_for=set())
    assert set(gateway.outs()) == {8001}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\nabc", "abc"),
        (b"HTTP/1.1 404 Not Found\r\n\r\nabc", ""),
        (b"\x00\xff garbage", ""),
        (b"", ""),
    ],
)
def test_what_the_running_gateway_tells(host: Path, answer: bytes, expected: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def tell() -> None:
            caller, _ = server.accept()
            with caller:
                caller.recv(4096)
                caller.sendall(answer)

        thread = threading.Thread(target=tell)
        thread.start()
        port = server.getsockname()[1]
        common.write_atomic(host / "host_json", json.dumps({"gateway": {"host": "0.0.0.0", "port": port}}))
        assert gateway.live() == expected
        thread.join(10)
    assert gateway.live() == "", "nobody listens any more"

"""The rig's parts that need neither root, nor a network, nor an engine."""

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import struct
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.targets import emulation, engine, gitrepo, naming, rig, upstream, wheelhouse
from tests.targets.aptsource import debian_source
from tests.targets.host import RigError, cache_dir
from tests.targets.models import shuffle_rows


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EMBEDFLEET_CACHE", str(tmp_path / "cache"))
    return cache_dir()


# ---- names


def test_names_differ_between_checkouts_and_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EMBEDFLEET_RIG", raising=False)
    here = naming.names()
    monkeypatch.setattr(naming, "CHECKOUT", Path("/elsewhere"))
    assert naming.names() != here
    monkeypatch.setenv("EMBEDFLEET_RIG", "mine")
    assert naming.names().target("x86") == "embedfleet-mine-x86"


@pytest.mark.parametrize("name", ["a b", "../x", "-x", "Ä", "Up"])
def test_names_that_no_container_can_have(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("EMBEDFLEET_RIG", name)
    with pytest.raises(RigError, match="host name"):
        naming.names()


# ---- the machine's Debian mirror


def _etc(tmp_path: Path, os_release: str, **files: str) -> tuple[Path, Path]:
    (tmp_path / "apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "os-release").write_text(os_release)
    for name, text in files.items():
        (tmp_path / "apt" / name.replace("__", "/").replace("_", ".")).write_text(text)
    return tmp_path / "apt", tmp_path / "os-release"


DEBIAN = "ID=debian\nVERSION_CODENAME=trixie\n"
WANTED = ["deb http://m.example/debian bookworm main", "deb http://m.example/debian bookworm-updates main"]


def test_mirror_from_one_line_sources(tmp_path: Path) -> None:
    text = (
        "# deb http://old.example/debian trixie main\n"
        "deb-src http://src.example/debian trixie main\n"
        "deb [signed-by=/x] http://m.example/debian trixie main contrib\n"
        "deb http://s.example/security trixie-security main\n"
    )
    source = debian_source("bookworm", *_etc(tmp_path, DEBIAN, sources_list=text))
    assert source.lines == [*WANTED, "deb http://s.example/security bookworm-security main"]


def test_mirror_from_deb822_sources(tmp_path: Path) -> None:
    text = (
        "Types: deb\nURIs: http://off.example/debian\nSuites: trixie\nComponents: main\nEnabled: no\n\n"
        "# a comment\nTypes: deb deb-src\nURIs: http://m.example/debian\n"
        "Suites: trixie trixie-updates\nComponents: main\n\n"
        "Types: deb\nURIs: https://vendor.example/x\nSuites: nodistro\nComponents: main\n"
    )
    source = debian_source("bookworm", *_etc(tmp_path, DEBIAN, sources_list_d__debian_sources=text))
    assert source.lines == WANTED
    assert not source.https


def test_ubuntu_leaves_the_mirror_to_mmdebstrap(tmp_path: Path) -> None:
    text = "deb http://u.example/ubuntu noble main\n"
    etc = _etc(tmp_path, "ID=ubuntu\nVERSION_CODENAME=noble\n", sources_list=text)
    assert debian_source("bookworm", *etc).lines == []


# ---- the engine


def _fake_engine(folder: Path, monkeypatch: pytest.MonkeyPatch, dockerd: str) -> None:
    """A `docker` that answers once dockerd has made a file."""
    folder.mkdir()
    for name, body in {"docker": f"test -e {folder}/up && echo 1", "dockerd": dockerd, "iptables": ":"}.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(engine, "as_root", list)
    monkeypatch.setattr(engine, "SYSTEMD", folder / "none")


def test_engine_is_started_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "bin"
    _fake_engine(folder, monkeypatch, f"echo started; touch {folder}/up")
    engine.ensure_engine()
    assert "no Docker engine answers: starting one" in capsys.readouterr().err
    engine.ensure_engine()
    assert capsys.readouterr().err == ""
    assert (cache_dir() / "dockerd.log").read_text() == "started\n"


def test_engine_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_engine(tmp_path / "bin", monkeypatch, "echo no cgroups >&2; exit 3")
    with pytest.raises(RigError, match=r"(?s)ended with 3:\nno cgroups.*cure: read"):
        engine.ensure_engine()


# ---- wheels


def test_index_page_names_and_checksums(tmp_path: Path) -> None:
    wheels, simple = tmp_path / "wheels", tmp_path / "simple"
    wheels.mkdir()
    simple.mkdir()
    (wheels / "Foo_Bar.baz-1.0+cpu-py3-none-any.whl").write_bytes(b"x")
    wheelhouse.render_index(wheels, simple, tmp_path / "sums.json")
    page = (simple / "foo-bar-baz/index.html").read_text()
    digest = hashlib.sha256(b"x").hexdigest()
    assert f'href="../../wheels/Foo_Bar.baz-1.0%2Bcpu-py3-none-any.whl#sha256={digest}"' in page
    assert 'href="foo-bar-baz/"' in (simple / "index.html").read_text()


def test_each_lock_is_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def download(what: list[str], folder: Path, label: str, machine: str) -> None:
        asked.append(label)
        folder.mkdir()
        (folder / f"{re.sub('[^a-z]', '', label)}-1-py3-none-any.whl").write_bytes(label.encode())

    monkeypatch.setattr(wheelhouse, "_pip_download", download)
    lock = tmp_path / "a.txt"
    lock.write_text("a==1 --hash=sha256:00\n")
    for _ in range(2):
        house = wheelhouse.ensure_wheelhouse({lock: ("x86_64", "aarch64")}, [], ["b==1"])
    assert asked == ["a.txt for x86_64", "a.txt for aarch64", "b==1 for x86_64"]
    lock.write_text("a==2 --hash=sha256:00\n")
    wheelhouse.ensure_wheelhouse({lock: ("x86_64",)}, [], ["b==1"])
    assert asked[3:] == ["a.txt for x86_64"]
    assert (house / "simple/atxtforx/index.html").exists()


def test_a_wheel_that_the_rig_made_is_served(tmp_path: Path) -> None:
    made = tmp_path / "made-1-py3-none-any.whl"
    made.write_bytes(b"x")
    house = wheelhouse.ensure_wheelhouse({}, [made], [])
    assert (house / "wheels" / made.name).read_bytes() == b"x"
    assert (house / "simple/made/index.html").exists()


# ---- the repository


def _sdist(path: Path, mode: int) -> Path:
    files = {
        "vllm/version.py": "# SPDX-License-Identifier: Apache-2.0\nx = 1\n",
        "vllm/_version.py": "generated\n",
        ".gitignore": "*.so\n",
        "kept.so": "ignored by git, but in the sdist\n",
        "PKG-INFO": "generated\n",
    }
    for name, text in files.items():
        file = path / "vllm-9.9" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
    with tarfile.open(path / "vllm-9.9.tar.gz", "w:gz") as archive:
        archive.add(path / "vllm-9.9", "vllm-9.9")
    return path / "vllm-9.9.tar.gz"


def test_repository_is_the_same_wherever_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = set()
    for place, mode in (("one", 0o600), ("two", 0o664)):
        monkeypatch.setenv("EMBEDFLEET_CACHE", str(tmp_path / place / "cache"))
        bare = gitrepo.ensure_vllm_repo(_sdist(tmp_path / place, mode), "9.9")
        commits.add((gitrepo.commit_of(bare, "v9.9"), gitrepo.commit_of(bare, "v9.9.post1")))
    assert len(commits) == 1
    assert gitrepo._git(bare, "ls-tree", "-r", "--name-only", "v9.9").split() == [
        ".gitignore",
        "kept.so",
        "vllm/version.py",
    ]
    changed = gitrepo._git(bare, "diff", "v9.9", "v9.9.post1")
    assert [line for line in changed.splitlines() if re.match(r"[+-][^+-]", line)] == [
        "-# SPDX-License-Identifier: Apache-2.0",
        "+# SPDX-License-Identifier: Apache-2.0 (embedfleet test rig: post1)",
    ]


# ---- the wrong model


def test_shuffled_rows_are_the_same_rows_in_another_order(tmp_path: Path) -> None:
    rows = [struct.pack("<2f", i, -i) for i in range(50)]
    header = json.dumps(
        {
            "first": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            "matrix": {"dtype": "F32", "shape": [50, 2], "data_offsets": [4, 404]},
        }
    ).encode()
    whole = struct.pack("<Q", len(header)) + header + b"\0\0\x80?" + b"".join(rows)
    path, other = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    path.write_bytes(whole)
    os.link(path, other)
    shuffle_rows(path, "matrix")
    changed, start = path.read_bytes(), len(whole) - 400
    assert changed[:start] == whole[:start]
    after = [changed[i : i + 8] for i in range(start, len(changed), 8)]
    assert sorted(after) == sorted(rows)
    assert after != rows
    assert other.read_bytes() == whole
    with pytest.raises(RigError, match="no tensor"):
        shuffle_rows(path, "none")


def test_settings_of_the_targets_do_not_stop_a_run_where_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyinfra reads every file of group_data in every run, with inventory/prod.py too."""
    monkeypatch.setenv("EMBEDFLEET_CACHE", str(tmp_path))
    found = runpy.run_path(str(Path(__file__).parents[2] / "group_data/docker.py"))
    assert not [name for name in found if not name.startswith("_")]


# ---- emulation


def test_only_what_the_rig_registered_is_removed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binfmt = tmp_path / "binfmt"
    binfmt.mkdir()
    (binfmt / "register").touch()
    (binfmt / "jar").write_text("enabled\n")
    asked: list[list[str]] = []

    def run(words: list[Any], **_: Any) -> str:
        asked.append([str(word) for word in words])
        if "--enable" in words:
            (binfmt / "qemu-ppc64le").write_text("enabled\ninterpreter /usr/bin/qemu\nflags: POF\n")
        return ""

    monkeypatch.setattr(emulation, "BINFMT", binfmt)
    monkeypatch.setattr(emulation, "run", run)
    monkeypatch.setattr(emulation, "find_tool", lambda tool: f"/usr/bin/{tool}")
    monkeypatch.setattr(emulation, "native", lambda: "amd64")
    emulation.ensure_emulation("amd64")
    assert asked == []
    emulation.ensure_emulation("ppc64el")
    (binfmt / "later").touch()
    asked.clear()
    emulation.ensure_emulation("ppc64el")
    assert asked == [], "what is registered is used as it is"
    emulation.remove_emulation()
    assert [words[-1] for words in asked] == [str(binfmt / "qemu-ppc64le")]


def test_an_emulator_that_containers_cannot_use_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "register").touch()
    (tmp_path / "qemu-aarch64").write_text("enabled\ninterpreter /usr/bin/qemu\nflags: P\n")
    monkeypatch.setattr(emulation, "BINFMT", tmp_path)
    monkeypatch.setattr(emulation, "run", lambda words, **_: "")
    monkeypatch.setattr(emulation, "find_tool", lambda tool: f"/usr/bin/{tool}")
    monkeypatch.setattr(emulation, "native", lambda: "amd64")
    with pytest.raises(RigError, match="flag F"):
        emulation.ensure_emulation("arm64")


def test_each_target_can_be_asked_for_by_name() -> None:
    always = [host for host, target in naming.TARGETS.items() if not target.on_demand]
    assert rig.asked(naming.Names("none-such"), []) == always
    assert rig.asked(naming.Names("none-such"), ["gpu"]) == ["gpu"]
    with pytest.raises(RigError, match="no target is called mars"):
        rig.asked(naming.Names("none-such"), ["mars"])


@pytest.mark.parametrize("base", ["fedora", "1"])
def test_a_base_that_is_none(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARGET_BASE", base)
    with pytest.raises(RigError, match="is no base"):
        upstream.wanted()

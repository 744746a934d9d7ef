"""Package sources: what ours look like, and what becomes of entries for the same place."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedfleet.facts.repositories import parse
from embedfleet.operations.repositories import apt_name
from embedfleet.repositories import OFF, Repository, place, switched_off
from embedfleet.systems import DEBIAN, RHEL9

CUDA = Repository(
    "nvidia",
    "NVIDIA's packages",
    "https://packages.example/cuda/ubuntu2404/sbsa/",
    "https://packages.example/cuda/key.pub",
    ("EB693B3035CD5710E231E123A4B469963BF863CC",),
    held=("nvidia-*",),
)
TOOLKIT = Repository(
    "toolkit", "Toolkit", "https://toolkit.example/deb/arm64", "https://toolkit.example/key", ("A" * 40,), ("metadata",)
)


def test_a_deb822_file_names_the_pinned_key() -> None:
    assert CUDA.path(DEBIAN) == "/etc/apt/sources.list.d/embedfleet-nvidia.sources"
    assert CUDA.key(DEBIAN) == "/usr/share/keyrings/embedfleet-nvidia-3bf863cc.asc"
    lines = CUDA.text(DEBIAN).splitlines()[1:]
    assert lines == ["Types: deb", f"URIs: {CUDA.uri}", "Suites: /", f"Signed-By: {CUDA.key(DEBIAN)}"]


def test_a_repo_file_checks_what_is_signed_and_holds_the_driver() -> None:
    text = CUDA.text(RHEL9)
    assert "gpgcheck=1\nrepo_gpgcheck=0\n" in text
    assert "excludepkgs=nvidia-*\n" in text
    assert "gpgcheck=0\nrepo_gpgcheck=1\n" in TOOLKIT.text(RHEL9)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://Packages.example/a/b/", "http://packages.example/a/b"),
        ("https://user:secret@packages.example/a", "https://packages.example/a/"),
        ("https://toolkit.example/deb/$(ARCH)", "https://toolkit.example/deb/arm64"),
        ("https://toolkit.example/rpm/$basearch", "https://toolkit.example/rpm/aarch64"),
        ("https://toolkit.example:443/rpm/${basearch}", "https://toolkit.example/rpm/aarch64"),
        ('"https://toolkit.example/rpm"', "https://toolkit.example/rpm"),
    ],
)
def test_the_same_place(one: str, other: str) -> None:
    assert place(one, "aarch64") == place(other, "aarch64")
    assert place("https://packages.example/A", "aarch64") != place("https://packages.example/a", "aarch64")


def test_others_entries_for_our_places_are_switched_off_and_nothing_else() -> None:
    files = {
        "/etc/apt/sources.list": "deb https://deb.example/debian stable main\n",
        "/etc/apt/sources.list.d/cuda.list": (
            "# NVIDIA\ndeb [signed-by=/usr/share/keyrings/cuda.gpg] https://packages.example/cuda/ubuntu2404/sbsa /\n"
            "deb-src [a=b] https://packages.example/cuda/ubuntu2404/sbsa/ /\ndeb https://other.example/ /\n"
        ),
        "/etc/apt/sources.list.d/toolkit.list": "deb https://toolkit.example/deb/$(ARCH) /\n",
    }
    found = switched_off(files, (CUDA, TOOLKIT), "aarch64")
    assert set(found) == set(list(files)[1:])
    lines = found["/etc/apt/sources.list.d/cuda.list"].splitlines()
    assert [line.startswith(OFF) for line in lines] == [False, True, True, False]
    assert switched_off(found, (CUDA, TOOLKIT), "aarch64") == {}, "a second time there is nothing left to do"


DGX = """Types: deb
URIs: https://packages.example/cuda/ubuntu2404/sbsa/
Suites: /
Signed-By: /usr/share/keyrings/dgx.gpg

Types: deb
Enabled: yes
URIs: https://repo.example/dgx
  https://packages.example/cuda/ubuntu2404/sbsa/
Suites: noble
"""


def test_stanzas() -> None:
    path = "/etc/apt/sources.list.d/dgx.sources"
    found = switched_off({path: DGX}, (CUDA,), "aarch64")[path]
    first, second = found.split("\n\n")
    assert "Enabled: no\nURIs: https://packages.example" in first
    assert "URIs: https://repo.example/dgx\nSuites" in second, "the other place of that stanza stays"
    assert "Enabled: yes" in second
    assert switched_off({path: found}, (CUDA,), "aarch64") == {}


def test_repo_sections() -> None:
    path = "/etc/yum.repos.d/cuda.repo"
    text = f"[cuda]\nname=cuda\nbaseurl={CUDA.uri[:-1]}\nenabled=1\ngpgcheck=1\n[other]\nbaseurl=https://o.example\nenabled=1\n"
    found = switched_off({path: text}, (CUDA,), "aarch64")[path]
    cuda, other = re.split(r"(?m)^(?=\[other)", found)
    assert "enabled=0\nbaseurl" in cuda
    assert "enabled=1" not in cuda
    assert "enabled=1" in other
    assert switched_off({path: found}, (CUDA,), "aarch64") == {}


@given(st.text(max_size=400), st.sampled_from([".list", ".sources", ".repo", ".disabled"]))
def test_files_without_our_places_are_never_touched(text: str, end: str) -> None:
    assert switched_off({f"/etc/x{end}": text}, (CUDA,), "aarch64") == {}


def test_an_address_that_is_none_is_nobodys_place() -> None:
    assert place("https://[MIRROR]/x", "aarch64") == "https://[MIRROR]/x"
    assert switched_off({"/etc/a.sources": "URIs: http://[fe80::1/x\n"}, (CUDA,), "aarch64") == {}


def test_what_a_host_has() -> None:
    found = parse(
        ["@@file /etc/apt/sources.list", "deb https://d.example stable main", "", "@@end", "@@file /etc/a.repo", "[x]", "@@end",
         "@@key /usr/share/keyrings/embedfleet-nvidia-3bf863cc.asc", "@@list packages.example_cuda_InRelease"]
    )  # fmt: skip
    assert found.files == {"/etc/apt/sources.list": "deb https://d.example stable main\n", "/etc/a.repo": "[x]\n"}
    assert found.keys == {"/usr/share/keyrings/embedfleet-nvidia-3bf863cc.asc"}
    assert found.lists == {"packages.example_cuda_InRelease"}


@given(st.lists(st.text(max_size=60), max_size=30))
def test_parsing_never_raises(lines: list[str]) -> None:
    parse(lines)


def test_how_apt_names_its_lists() -> None:
    assert apt_name("https://user:word@packages.example/cuda/repos/ubuntu2404/x86_64/") == (
        "packages.example_cuda_repos_ubuntu2404_x86%5f64"
    )

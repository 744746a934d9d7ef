"""The plan: pure, stable, and refusing what cannot work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from embedfleet.checks import disk_problems, problems_of
from embedfleet.facts.cpu import Cpu
from embedfleet.facts.survey import Survey
from embedfleet.facts.system import Listener
from embedfleet.plan import Plan, jobs, make_plan
from embedfleet.platforms import PLATFORMS
from embedfleet.problems import Refused
from embedfleet.settings import Settings
from embedfleet.sources import Sources, read

ROOT = Path(__file__).parents[2]
X86 = PLATFORMS["x86-cpu"]
HOST = Survey(
    machine="x86_64", os_id="ubuntu", os_version="24.04", cpu=Cpu(count=8), memory_mib=64000, available_mib=60000, pci=(),
    init="systemd", root=True, managers=("apt-get",), glibc="2.39", free_mib={"/opt": 90000, "/var": 90000, "/tmp": 9000},
)  # fmt: skip
BASE: dict[str, Any] = {"conda_lock": "pyproject.toml", "model_id": "sentence-transformers/all-MiniLM-L6-v2"}


def sources(**settings: Any) -> Sources:
    return read("h1", Settings(**BASE | settings), X86, ROOT)


def plan(survey: Survey = HOST, **settings: Any) -> Plan:
    chosen = Settings(**BASE | settings)
    return make_plan("h1", chosen, X86, survey, read("h1", chosen, X86, ROOT))


def test_the_same_input_gives_the_same_plan() -> None:
    assert plan() == plan()


@pytest.mark.parametrize(
    ("setting", "value", "changed"),
    [
        ("vllm_git_ref", "v0.32.0.post1", {"engine", "release"}),
        ("vllm_cmake_args", ["-DX=1"], {"engine", "release"}),
        ("vllm_build_env", {"CFLAGS": "-O3"}, {"engine", "release"}),
        ("model_revision", "v2", {"model", "release"}),
        ("model_sha256", {"config.json": "0" * 64}, {"model", "release"}),
        ("max_num_seqs", 7, {"release"}),
        ("serve_env", {"A": "b"}, {"release"}),
        ("start_timeout", 60, {"release"}),
        # Where things come from, and how fast they are made, changes nothing of what they are.
        ("vllm_git_url", "git://elsewhere/vllm.git", set()),
        ("model_endpoint", "http://mirror", set()),
        ("conda_channel", "http://mirror/conda", set()),
        ("python_index_url", "http://mirror/simple", set()),
        ("build_jobs", 1, set()),
        ("gateway_port", 9090, set()),
        ("keep_releases", 5, set()),
    ],
)
def test_a_setting_changes_exactly_the_parts_it_goes_into(setting: str, value: Any, changed: set[str]) -> None:
    old, new = plan(), plan(**{setting: value})
    differ = {name for name in ("tools", "conda", "engine", "model") if getattr(old, name).id != getattr(new, name).id}
    if old.release != new.release:
        differ.add("release")
    assert differ == changed


def test_a_changed_unit_is_a_new_release() -> None:
    base = sources()
    other = replace(
        base, templates={**base.templates, "instance.service.j2": base.templates["instance.service.j2"] + "#"}
    )
    settings = Settings(**BASE)
    assert make_plan("h", settings, X86, HOST, base).release != make_plan("h", settings, X86, HOST, other).release


def test_free_memory_is_no_part_of_any_id() -> None:
    assert plan().engine.id == plan(replace(HOST, available_mib=3000)).engine.id


@pytest.mark.parametrize(
    ("available", "cores", "expected"), [(60000, 8, 8), (9000, 8, 4), (100, 8, 1), (None, None, 1)]
)
def test_build_jobs_fit_the_memory(available: int | None, cores: int | None, expected: int) -> None:
    assert jobs(Settings(), X86, replace(HOST, available_mib=available, cpu=Cpu(count=cores))) == expected


def test_flags_that_newer_vllm_removed_are_not_used() -> None:
    for row in PLATFORMS.values():
        made = make_plan("h", Settings(**BASE), row, HOST, sources())
        args = made.release_part.spec["serve"]["args"]
        assert not {"--task", "--device", "--swap-space", "--override-pooler-config", "--disable-log-requests"} & set(
            args
        )
        length, batched = args.index("--max-model-len"), args.index("--max-num-batched-tokens")
        assert int(args[batched + 1]) >= int(args[length + 1])


def test_names_do_not_show_contents() -> None:
    assert repr(plan().engine).startswith("engines/vllm-0.32.0-cpu-")
    assert all(repr(file) == file.path for file in plan().files)


def reasons(survey: Survey = HOST, **settings: Any) -> list[str]:
    found = problems_of("h1", Settings(**BASE | settings), X86, survey, sources())
    return [f"{problem.setting}: {problem.reason}" for problem in found if problem.fatal]


def test_a_fit_host_has_no_fatal_problem() -> None:
    assert reasons() == []


def test_a_port_of_another_program() -> None:
    other = replace(HOST, listeners=(Listener(8000, "python3", "jupyter.service"),))
    assert reasons(other) == ["instance_ports: port 8000 is in use by python3 (jupyter.service)"]


def test_our_own_listeners_are_no_problem() -> None:
    ours = (
        Listener(8000, "python", "embedfleet-vllm@8000.service"),
        Listener(8080, "nginx", "embedfleet-gateway.service"),
    )
    assert reasons(replace(HOST, listeners=ours)) == []
    swapped = (Listener(8001, "python", "embedfleet-vllm@8000.service"),)
    assert len(reasons(replace(HOST, listeners=swapped))) == 1


def test_too_little_disk_counts_only_what_is_missing() -> None:
    small, made = replace(HOST, free_mib={"/opt": 2000}), plan()
    assert "/opt has 2.0 GiB free" in disk_problems(made, small)[0].reason
    there = frozenset({f"engines/{made.engine.id}", f"models/{made.model.id}"})
    assert disk_problems(made, replace(small, parts=there)) == []
    others = frozenset({"engines/vllm-0.32.0-cpu-0000000000", "models/all-MiniLM-L6-v2-0000000000"})
    assert disk_problems(made, replace(small, parts=others)), "a part of the same name is not this part"
    assert not disk_problems(made, replace(HOST, free_mib={}))[0].fatal


@pytest.mark.parametrize(
    ("change", "word"),
    [({"root": False}, "_sudo"), ({"init": "tini"}, "systemd"), ({"managers": ("dnf",)}, "none that embedfleet knows")],
)
def test_a_host_that_cannot_be_deployed(change: dict[str, Any], word: str) -> None:
    assert any(word in reason for reason in reasons(replace(HOST, **change)))


def test_a_compiler_that_vllm_refuses_is_refused_before_the_build() -> None:
    debian = replace(HOST, os_id="debian", os_version="12", os_name="Debian 12")
    assert "12.2" in reasons(debian)[0]
    assert reasons(debian, vllm_precompiled={"url": "http://m/x.whl", "sha256": "0" * 64}) == []


def test_indexes_of_the_platform_unless_there_is_a_mirror() -> None:
    assert plan().engine.spec["extra_index_urls"] == list(X86.indexes)
    assert plan(python_index_url="http://mirror/simple/").engine.spec["extra_index_urls"] == []


def test_every_problem_at_once() -> None:
    bad = replace(HOST, root=False, managers=(), free_mib={"/opt": 1}, listeners=(Listener(8000, "x", ""),))
    assert len(reasons(bad)) == 3


def test_who_listens_may_be_unknown_on_a_host_that_runs_us() -> None:
    for program in ("", "nginx"):
        nobody = replace(HOST, listeners=(Listener(8080, program, ""),))
        assert len(reasons(nobody)) == 1
        assert reasons(replace(nobody, current="0.32.0-bge-m3-x")) == []
    assert len(reasons(replace(HOST, current="x", listeners=(Listener(8080, "java", ""),)))) == 1


def test_threads_are_not_guessed() -> None:
    assert "number of cores is unknown" in reasons(replace(HOST, cpu=Cpu()))[0]


def test_the_compiler_that_is_there_counts_not_the_release_alone() -> None:
    debian = replace(HOST, os_id="debian", os_version="12", os_name="Debian 12")
    assert reasons(replace(debian, compilers={"g++": "13.3.0"})) == []
    assert "9.4" in reasons(replace(HOST, compilers={"g++": "9.4.0"}))[0]


def test_files_that_are_missing_or_changed_are_all_told(tmp_path: Path) -> None:
    patch = {"file": "files/patches/vllm-0.32.0-cpu-extra-kernels.patch", "sha256": "0" * 64}
    settings = Settings(
        **BASE | {"conda_lock": "no.lock", "vllm_patches": [patch], "site_ca_certificates": ["pyproject.toml"]}
    )
    with pytest.raises(Refused) as caught:
        read("h1", settings, X86, ROOT)
    assert {problem.setting for problem in caught.value.problems} == {
        "conda_lock",
        "vllm_patches",
        "site_ca_certificates",
    }

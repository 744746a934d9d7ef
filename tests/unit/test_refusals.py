"""A full plan for every platform, a refusal for what cannot work, and what the plan function never does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedfleet.checks import problems_of
from embedfleet.facts.survey import Survey, parse
from embedfleet.forecast import forecast, render
from embedfleet.plan import Plan, make_plan
from embedfleet.platforms import PLATFORMS, Platform
from embedfleet.problems import Problem, Refused
from embedfleet.recognise import choose
from embedfleet.settings import Settings
from embedfleet.sources import Sources
from tests.unit.hosts import HOSTS, ROWS, lines, survey
from tests.unit.test_plan import sources as real_sources

TEMPLATES = real_sources().templates
SOURCES = Sources(
    {"tools": "uv==1", "conda": "linux-aarch64/python-3.11.14-h1_0.conda#sha256:0", "engine": "torch==2.13.0"},
    templates=TEMPLATES,
)


def problems(host: str | Survey, row: str = "auto", **settings: Any) -> list[Problem]:
    found = survey(host) if isinstance(host, str) else host
    chosen = Settings(**settings)
    return problems_of("h1", chosen, choose("h1", row, found), found, SOURCES)


def refused(host: str | Survey, row: str = "auto", **settings: Any) -> dict[str, Problem]:
    """The fatal problems by their setting; each says why and how to cure it."""
    fatal = [problem for problem in problems(host, row, **settings) if problem.fatal]
    assert all(problem.reason and problem.cure for problem in fatal)
    return {problem.setting: problem for problem in fatal}


def plan(host: str | Survey, **settings: Any) -> Plan:
    found = survey(host) if isinstance(host, str) else host
    return make_plan("h1", Settings(**settings), choose("h1", "auto", found), found, SOURCES)


EXPECTED: dict[str, dict[str, Any]] = {
    "gh200": {"arch": "9.0", "dtype": "float16", "cuda": True},
    "gh200 without a driver": {"arch": "9.0", "dtype": "float16", "cuda": True},
    "gb200": {"arch": "10.0", "dtype": "float16", "cuda": True},
    "gb300": {"arch": "10.3", "dtype": "float16", "cuda": True},
    "gb10": {"arch": "12.1", "dtype": "float16", "cuda": True},
    "arm-gpu": {"arch": "8.6", "dtype": "float16", "cuda": True},
    "x86-gpu": {"arch": "9.0", "dtype": "float16", "cuda": True},
    "H200": {"arch": "9.0", "dtype": "float16", "cuda": True},
    "grace-cpu": {"dtype": "bfloat16"},
    "power9": {"dtype": "float32", "flags": "-mcpu=power9 -mtune=power9"},
    "power10": {"dtype": "bfloat16", "flags": "-mcpu=power10 -mtune=power10"},
    "power11": {"dtype": "bfloat16", "flags": "-mcpu=power10 -mtune=power10"},
    "power11 that says POWER10": {"dtype": "bfloat16", "flags": "-mcpu=power10 -mtune=power10"},
    "x86-cpu": {"dtype": "float32"},
}


@pytest.mark.parametrize("host", sorted(EXPECTED))
def test_a_full_plan_for_every_platform(host: str) -> None:
    want, made = EXPECTED[host], plan(host)
    build, serve = made.engine.spec["build_env"], made.release_part.spec["serve"]
    assert build["VLLM_TARGET_DEVICE"] == ("cuda" if want.get("cuda") else "cpu")
    assert build.get("TORCH_CUDA_ARCH_LIST") == want.get("arch")
    assert build.get("CFLAGS") == build.get("CXXFLAGS") == want.get("flags")
    assert ("CUDA_HOME" in build) is want.get("cuda", False)
    args = serve["args"]
    assert args[args.index("--dtype") + 1] == want["dtype"]
    assert args[args.index("--max-model-len") + 1] == "8192"
    assert ("--gpu-memory-utilization" in args) is want.get("cuda", False)
    assert made.conda.spec["subdir"] == PLATFORMS[ROWS[host]].conda_subdir
    assert made.engine.spec["version"] == "0.32.0"
    told = render([forecast(made, survey(host))])
    assert f"none -> {made.release}" in told
    assert "restarts:  8000, 8001; reboot: no" in told


@pytest.mark.parametrize(
    ("host", "threads"), [("power10", "40"), ("power9", "80"), ("grace-cpu", "36"), ("x86-cpu", "1")]
)
def test_threads_of_an_instance(host: str, threads: str) -> None:
    assert plan(host).release_part.spec["serve"]["env"]["OMP_NUM_THREADS"] == threads


def test_gb10_shares_its_memory_with_the_host() -> None:
    args = plan("gb10").release_part.spec["serve"]["args"]
    assert float(args[args.index("--gpu-memory-utilization") + 1]) <= 0.3


def test_a_host_that_is_fit_has_no_fatal_problem() -> None:
    assert refused("x86-gpu") == {}
    assert refused("gh200") == {}
    assert refused("gb10", install="source") == {}
    assert refused("grace-cpu") == {}
    assert refused("power10", vllm_version="0.32.0") == {}


def test_v100_on_power_for_cuda() -> None:
    problem = refused("power9", device="cuda")["device"]
    assert "AC922 with V100" in problem.reason
    assert "cpu" in problem.cure
    assert "7.5" in problem.matters
    assert problem.source
    assert refused("power9") == {}, "its CPUs serve all the same"


def test_power8_even_when_named() -> None:
    power8 = survey("power9", cpu="cpu\t\t: POWER8NVL (raw)\nrevision\t: 1.0 (pvr 004c 0100)")
    assert "POWER9 or newer" in refused(power8, "power9")["platform"].reason


def test_kernels_for_a_newer_power_than_the_host_s() -> None:
    assert "power10 on a host in POWER9 mode" in refused("power9", "power10")["platform"].reason


def test_compute_capability_under_7_5() -> None:
    old = survey("x86-gpu", pci="bus\n0000:18:00.0 0x10de 0x1db5 0x030200 nvidia", smi="0000:18:00.0, Tesla V100-SXM2-32GB, 7.0, 32768, 30, Enabled\n@rc=0")  # fmt: skip
    problem = refused(old)["platform"]
    assert "7.0 (V100 SXM2 32GB) is under 7.5" in problem.reason
    assert problem.source


def test_an_old_card_beside_a_good_one_is_left_out() -> None:
    rows = (
        "0000:18:00.0, NVIDIA H200, 9.0, 143771, 30, Enabled\n0000:19:00.0, NVIDIA GT 1030, 6.1, 2000, 30, [N/A]\n@rc=0"
    )
    both = survey("x86-gpu", smi=rows)
    assert refused(both) == {}
    assert any("6.1 (NVIDIA GT 1030)" in problem.reason and not problem.fatal for problem in problems(both))
    made = make_plan("h1", Settings(), PLATFORMS["x86-gpu"], both, SOURCES)
    assert made.engine.spec["build_env"]["TORCH_CUDA_ARCH_LIST"] == "9.0"


def test_bfloat16_on_a_card_that_has_none() -> None:
    t4 = survey("x86-gpu", pci="bus\n0000:18:00.0 0x10de 0x1eb8 0x030200 nvidia", smi="0000:18:00.0, Tesla T4, 7.5, 15360, 30, Enabled\n@rc=0")  # fmt: skip
    assert "dtype" in refused(t4, dtype="bfloat16")
    assert refused(t4) == {}


def test_a_toolkit_of_another_cuda() -> None:
    old = survey("x86-gpu", compilers="g++ 13.3.0\nnvcc 11.8, V11.8.89")
    assert refused(old) == {}, "the pinned one comes beside it"
    assert "nvcc is 11.8" in refused(old, cuda_toolkit="none")["host"].reason
    bare = survey("gb10", compilers="g++ 13.3.0")
    assert "no nvcc" in refused(bare, install="source", cuda_toolkit="none")["host"].reason
    assert "not of CUDA 13" in refused(bare, install="source", cuda_toolkit="cuda-toolkit-12-8")["cuda_toolkit"].reason


def test_a_loaded_proprietary_module_on_grace() -> None:
    closed = survey("gh200", banner="NVRM version: NVIDIA UNIX aarch64 Kernel Module  580.95.05  Wed Jan 22 2026")
    assert "580.95.05 is loaded" in refused(closed)["kernel_modules"].reason


def test_versions_that_differ_want_a_reboot() -> None:
    told = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n@rc=18"
    assert refused(survey("gh200", smi=told)) == {}, "the driver's own step cures it"
    assert "reboot" in refused(survey("gh200", smi=told), driver="keep")["driver"].cure


def test_a_row_for_another_gpu() -> None:
    assert "the GPUs have 9.0" in refused("gh200", "gb200")["platform"].reason


def test_cuda_13_with_an_old_driver() -> None:
    old = {"banner": "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.86.15  Release Build"}
    problem = refused(survey("gb10", **old), install="source")["driver"]
    assert "570.86.15 is kept, and these wheels need branch 580" in problem.reason
    assert problem.source
    assert "older than 580" in refused("gh200", driver_branch=570)["driver_branch"].reason


@pytest.mark.parametrize(("host", "floor"), [("gh200", "2.34"), ("power10", "2.34"), ("x86-cpu", "2.28")])
def test_glibc_under_the_wheels_floor(host: str, floor: str) -> None:
    problem = refused(survey(host, glibc="glibc 2.27"))["host"]
    assert f"glibc 2.27 is older than {floor}" in problem.reason
    assert problem.source


def test_an_unknown_glibc_is_a_warning() -> None:
    assert any(
        "glibc is unknown" in problem.reason and not problem.fatal for problem in problems(survey("gh200", glibc=""))
    )


def test_python_outside_vllm_s_range() -> None:
    for version, bad in (("3.10.1", True), ("3.11.9", False), ("3.14.0", False), ("3.15.0", True)):
        locked = replace(SOURCES, locks={**SOURCES.locks, "conda": f"linux-64/python-{version}-h1_0.conda#sha256:0"})
        found = survey("x86-cpu")
        told = problems_of("h1", Settings(), PLATFORMS["x86-cpu"], found, locked)
        assert any(problem.setting == "conda_lock" and problem.fatal for problem in told) is bad, version


@pytest.mark.parametrize("host", ["gh200", "gb200", "gb300", "gb10"])
def test_the_proprietary_module_on_grace_and_blackwell(host: str) -> None:
    problem = refused(host, kernel_modules="proprietary")["kernel_modules"]
    assert "open kernel modules alone" in problem.reason
    assert problem.source


def test_the_proprietary_module_elsewhere() -> None:
    assert "kernel_modules" not in refused("x86-gpu", kernel_modules="proprietary")
    blackwell = survey("x86-gpu", pci="bus\n0000:18:00.0 0x10de 0x2901 0x030200 nvidia", smi="")
    assert "kernel_modules" in refused(blackwell, kernel_modules="proprietary")


def test_fewer_batched_tokens_than_a_text_may_have() -> None:
    problem = refused("x86-cpu", max_num_batched_tokens=4096)["max_num_batched_tokens"]
    assert "under the 8192 tokens" in problem.reason
    assert problem.source
    assert refused("x86-cpu", max_num_batched_tokens=4096, max_model_len=4096).get("max_num_batched_tokens") is None


@pytest.mark.parametrize("flag", ["task", "--task", "device", "swap-space", "swap_space", "override-pooler-config"])
def test_a_flag_that_vllm_has_removed(flag: str) -> None:
    problem = refused("x86-cpu", serve_args={flag: "embed"})["serve_args"]
    assert "any more" in problem.reason
    assert problem.source


@pytest.mark.parametrize("flag", ["host", "port", "dtype", "api-key"])
def test_a_flag_that_the_deploy_sets_itself(flag: str) -> None:
    assert "set by the deploy" in refused("x86-cpu", serve_args={flag: "x"})["serve_args"].reason


@pytest.mark.parametrize("kind", ["awq", "gptq", "fp8"])
def test_a_quantisation_that_bge_m3_has_no_weights_for(kind: str) -> None:
    problem = refused("x86-cpu", serve_args={"quantization": kind})["serve_args"]
    assert kind in problem.reason
    assert problem.source


def test_the_driver_of_dgx_os_is_kept_unless_forced_by_name() -> None:
    assert "DGX OS (DGX Spark)" in refused("gb10", install="source", driver="install")["driver"].reason
    assert refused("gb10", install="source", driver="install", dgx_os_driver="replace") == {}


@pytest.mark.parametrize("told", ["@hung", "NVIDIA-SMI has failed\n@rc=9", ""])
def test_a_kept_driver_that_does_not_work(told: str) -> None:
    assert "nvidia-smi" in refused(survey("gb10", smi=told), install="source")["driver"].reason


def test_a_host_without_a_driver_gets_one() -> None:
    assert refused("gh200 without a driver") == {}
    told = render([forecast(plan("gh200 without a driver"), survey("gh200 without a driver"))])
    assert "NVIDIA driver none -> 580 open, from the distribution" in told
    assert "cuda-toolkit-13-0: to be installed" in told
    assert "reboot: no" in told, "a module that is merely missing is loaded"


def test_a_driver_that_works_and_is_not_ours_is_kept_and_told() -> None:
    told = [problem for problem in problems("x86-gpu") if problem.setting == "driver"]
    assert "it is kept" in told[0].reason
    assert not told[0].fatal
    assert plan("x86-gpu").driver.action == "keep"
    forced = survey("x86-gpu", os='ID=ubuntu\nVERSION_ID="24.04"')
    assert make_plan("h1", Settings(driver="install"), PLATFORMS["x86-gpu"], forced, SOURCES).driver.action == "install"
    ours = survey("x86-gpu", packages="linux-modules-nvidia-580-server-open-6.8.0-60-generic 1")
    made = make_plan("h1", Settings(), PLATFORMS["x86-gpu"], ours, SOURCES)
    assert made.driver.action == "install"
    assert "reboot: yes" in render([forecast(made, ours)]), "its proprietary modules give way to the open ones"


@pytest.mark.parametrize(
    ("settings", "setting", "word"),
    [
        ({"nvidia_repository_url": "http://mirror.example/cuda"}, "nvidia_repository_url", "not https"),
        ({"nvidia_key_url": "http://mirror.example/key"}, "nvidia_repository_url", "not https"),
        ({"driver_version": "580.95.05", "driver_branch": 620}, "driver_version", "not of branch 620"),
        ({"imex_nodes": ["10.0.0.1"]}, "imex_nodes", "no NVLink to other nodes"),
    ],
)
def test_driver_settings_that_cannot_be(settings: dict[str, Any], setting: str, word: str) -> None:
    assert word in refused("gh200 without a driver", **settings)[setting].reason


def test_a_password_in_an_address_is_not_told() -> None:
    found = refused("gh200 without a driver", nvidia_repository_url="http://bob:s3cret@mirror.example/cuda")
    assert "http://mirror.example/cuda" in found["nvidia_repository_url"].reason
    assert not any("s3cret" in problem.reason + problem.cure for problem in found.values())


def test_a_driver_of_nvidias_installer_is_not_covered_with_packages() -> None:
    there = survey("gh200 without a driver", runfile="/usr/bin/nvidia-uninstall")
    assert "came by NVIDIA's installer" in refused(there)["driver"].reason
    assert refused(survey("gh200", runfile="/usr/bin/nvidia-uninstall")) == {}, "one that works is kept"


def test_modules_built_on_the_host_and_secure_boot() -> None:
    locked = survey("gh200 without a driver", secureboot="1")
    assert refused(locked) == {}, "Canonical's are signed"
    assert "Secure Boot is on" in refused(locked, driver_source="nvidia")["driver_source"].reason


def test_no_proprietary_modules_in_new_branches() -> None:
    found = refused("x86-gpu", driver="install", kernel_modules="proprietary", driver_branch=620)
    assert "branch 620 has no proprietary modules" in found["kernel_modules"].reason


def test_a_system_that_nvidia_has_no_repository_for() -> None:
    other = survey("gh200 without a driver", os="ID=debian\nVERSION_ID=99\nPRETTY_NAME=Debian 99")
    assert "no repository for Debian 99 on aarch64" in refused(other)["nvidia_repository_url"].reason
    assert "nvidia_repository_url" not in refused(other, driver="keep", cuda_toolkit="none")


def test_every_reason_at_once() -> None:
    bad = survey("gh200", glibc="glibc 2.27", uid="1000", smi="@hung")
    found = refused(
        bad, kernel_modules="proprietary", driver_branch=550, serve_args={"task": "embed", "quantization": "awq"}
    )
    assert {"_sudo", "host", "kernel_modules", "driver_branch", "serve_args"} <= set(found)


def test_warnings_do_not_refuse() -> None:
    waiting = survey("gh200", pagesize="4096", kernels="6.8.0-1039-nvidia-64k\n6.8.0-1041-nvidia-64k")
    told = {problem.reason for problem in problems(waiting) if not problem.fatal}
    assert any("a reboot is pending" in reason for reason in told)
    assert any("64 KiB are advised" in reason for reason in told)


def test_a_flag_with_and_without_dashes() -> None:
    args = plan("x86-cpu", serve_args={"seed": 1, "--pooler-config.task": "embed", "--seed": "2"}).release_part.spec[
        "serve"
    ]["args"]
    assert "--pooler-config.task" in args
    assert not [arg for arg in args if arg.startswith("----")]


_SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "platform": st.sampled_from(["auto", *PLATFORMS]),
        "device": st.sampled_from(["platform", "cpu", "cuda"]),
        "driver": st.sampled_from(["platform", "install", "keep"]),
        "driver_branch": st.integers(400, 999),
        "kernel_modules": st.sampled_from(["open", "proprietary"]),
        "vllm_version": st.sampled_from(["0.26.0", "0.32.0", "0.33.0", "0.99.0"]),
        "serve_args": st.dictionaries(
            st.text(max_size=12), st.one_of(st.text(max_size=5), st.booleans(), st.integers()), max_size=3
        ),
        "model_id": st.sampled_from(["BAAI/bge-m3", "a/b"]),
        "build_jobs": st.integers(1, 512),
    },
)


@given(st.sampled_from(sorted(HOSTS)), _SETTINGS, st.data())
def test_planning_raises_nothing_but_its_own_refusal_and_is_stable(
    name: str, wanted: dict[str, Any], data: st.DataObject
) -> None:
    section = data.draw(st.sampled_from(sorted(HOSTS[name])))
    found = parse(lines(HOSTS[name] | {section: data.draw(st.text(max_size=60))}))
    settings = Settings(**wanted)

    def planned() -> tuple[Plan, list[Problem]]:
        row: Platform = choose("h1", settings.platform, found)
        return make_plan("h1", settings, row, found, SOURCES), problems_of("h1", settings, row, found, SOURCES)

    try:
        first = planned()
    except Refused:
        return
    assert planned() == first
    render([forecast(first[0], found)])


@given(st.permutations(sorted(HOSTS)))
def test_the_order_of_the_inventory_changes_no_plan(order: list[str]) -> None:
    assert {host: plan(host).release for host in order} == {host: plan(host).release for host in sorted(HOSTS)}

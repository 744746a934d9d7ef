"""What vLLM, torch, CUDA, driver, Python, glibc and the hardware need of one another: the rules that refuse a host.

The driver's and the container toolkit's are in embedfleet/nvidia_refusals.py. Solved together and told together, each with its reason, its cure and the source of the rule. Pure.
"""

from __future__ import annotations

import re

from embedfleet.driver import cuda_toolkit, toolkit_version
from embedfleet.facts.survey import Survey
from embedfleet.gpus import GPUS, VFIO
from embedfleet.nvidia_refusals import container_toolkit, driver
from embedfleet.platforms import Platform
from embedfleet.problems import Problem
from embedfleet.recognise import ac922, capabilities
from embedfleet.rule import Found, refusal
from embedfleet.settings import Settings
from embedfleet.sources import Sources
from embedfleet.stack import GLIBC, MIN_CAPABILITY, OWN_FLAGS, REMOVED_FLAGS, VERSIONS, numbers


def stack_problems(
    host: str, settings: Settings, platform: Platform, survey: Survey, sources: Sources
) -> list[Problem]:
    """Return what does not go together on `host`."""
    rules = (_device, _silicon, _gpu, driver, container_toolkit, _libraries, _python, _flags)
    return [
        Problem(host, setting, reason, cure, fatal, matters, source)
        for rule in rules
        for setting, reason, cure, fatal, matters, source in rule(settings, platform, survey, sources)
    ]


def _device(settings: Settings, platform: Platform, survey: Survey, _: Sources) -> Found:
    if settings.device in ("platform", platform.device):
        return
    if survey.machine == "ppc64le":
        machine = "AC922 with V100: " if ac922(survey) else ""
        yield refusal(
            "device",
            f"{machine}there is no CUDA for vLLM on ppc64le",
            "set device to cpu: vLLM runs on the POWER cores",
            matters="CUDA 12.4 was the last toolkit for POWER, torch has no CUDA wheel for ppc64le, and V100 (7.0) is under vLLM's 7.5",
            source="CUDA 12.5 release notes; vLLM CMakeLists.txt:119-135; vllm PR#39878",
        )
        return
    other = {"gh200": "grace-cpu", "gb200": "grace-cpu", "gb300": "grace-cpu", "x86-gpu": "x86-cpu"}.get(
        platform.name, ""
    )
    cure = (
        f"name the platform: {other}"
        if other and settings.device == "cpu"
        else "name a platform with that device, or none"
    )
    yield refusal("device", f"{platform.name} is a row for {platform.device}, not {settings.device}", cure)


def _silicon(settings: Settings, platform: Platform, survey: Survey, _: Sources) -> Found:
    level = min(filter(None, (survey.cpu.power, survey.cpu.power_mode)), default=None)
    if platform.machine == "ppc64le" and level:
        if level < 9:
            yield refusal(
                "platform",
                f"POWER{level}: vLLM's CPU kernels need POWER9 or newer",
                "use a newer host",
                source="vLLM cmake/cpu_extension.cmake:103-105",
            )
        elif level < int(platform.name.removeprefix("power")):
            yield refusal(
                "platform",
                f"{platform.name} on a host in POWER{level} mode",
                "leave platform at auto, or take the partition out of its compatibility mode",
                matters="the kernels would die of illegal instructions",
            )
    have = capabilities(survey)
    if platform.capability and have and not set(have) & set(platform.capability):
        yield refusal(
            "platform",
            f"{platform.name} is for compute capability {', '.join(platform.capability)}, the GPUs have {', '.join(have)}",
            "leave platform at auto, or name the right one",
            matters="CUDA answers 'no kernel image is available'",
            source="LocalAI#9948, vllm#19185",
        )


def _gpu(settings: Settings, platform: Platform, survey: Survey, _: Sources) -> Found:
    if platform.device != "cuda":
        return
    have = capabilities(survey)
    old = [value for value in have if float(value) < MIN_CAPABILITY]
    if old:
        yield refusal(
            "platform",
            f"compute capability {', '.join(old)} ({_cards(survey, old)}) is under {MIN_CAPABILITY}",
            "use a GPU of Turing or newer, or name a CPU platform",
            matters="vLLM has no kernels for it, and CUDA 13 none of its libraries",
            source="vLLM 0.33 CMakeLists.txt:119-135; vllm PR#39878",
            fatal=old
            == list(have),  # an old display card beside others is left out of the build, and of CUDA by its list
        )
    if settings.dtype == "bfloat16" and any(float(value) < 8 for value in have):
        yield refusal("dtype", f"compute capability {have[0]} has no bfloat16", "leave dtype at platform: float16", source="vLLM vllm/config/model.py:2423-2495")  # fmt: skip
    nvcc = survey.compilers.get("nvcc", "").partition(",")[0]
    toolkit = cuda_toolkit(settings, platform)
    if toolkit and not toolkit_version(toolkit).startswith("13."):
        yield refusal("cuda_toolkit", f"{toolkit} is not of CUDA 13, with which torch and the wheels are built", f"use {platform.toolkit}", source="vLLM 0.33 envs.py:91; vllm#36099")  # fmt: skip
    elif not toolkit and nvcc and numbers(nvcc)[:1] != (13,):
        yield refusal("host", f"nvcc is {nvcc}, torch and the wheels are built with CUDA 13", f"install {platform.toolkit}", source="vLLM 0.33 envs.py:91; vllm#36099")  # fmt: skip
    elif not toolkit and not nvcc and settings.install != "wheel":
        yield refusal("host", "there is no nvcc, and vLLM is built from source", f"install {platform.toolkit}")
    count = max(len(survey.gpus), len([gpu for gpu in survey.pci or () if gpu.driver not in VFIO]))
    if count > 1:
        yield refusal("instance_ports", f"{count} GPUs, and instances are not bound to one yet", "set CUDA_VISIBLE_DEVICES in serve_env to choose the one", matters="every instance takes the first GPU", fatal=False)  # fmt: skip
    if not platform.arch_list and not capabilities(survey):
        yield refusal(
            "platform",
            "the compute capability of the GPUs is unknown, and the arch list comes from it",
            "add the PCI id to embedfleet/gpus.py, or install a driver that tells it",
        )


def _cards(survey: Survey, values: list[str]) -> str:
    known = [GPUS[gpu.device] for gpu in survey.pci or () if gpu.device in GPUS]
    named = {gpu.name for gpu in known if gpu.capability in values}
    return ", ".join(sorted(named or {gpu.name for gpu in survey.gpus if gpu.capability in values}))


def _libraries(settings: Settings, platform: Platform, survey: Survey, _: Sources) -> Found:
    floor, have = GLIBC.get(platform.machine, (0, 0)), numbers(survey.glibc)
    wanted = ".".join(map(str, floor))
    if not have:
        yield refusal(
            "host", f"the version of glibc is unknown, {wanted} is needed", "see that getconf works", fatal=False
        )
    elif have < floor:
        yield refusal(
            "host",
            f"glibc {survey.glibc} is older than {wanted}, which the wheels on {platform.machine} need",
            "use a newer system: Ubuntu 24.04 or Debian 13",
            source="tilelang has manylinux_2_34 wheels alone on aarch64 (vLLM docker/Dockerfile:229-233); vllm#30065, #48540",
        )
    if (settings.install if settings.install != "platform" else platform.install) == "wheel":
        yield refusal(
            "install",
            "wheels are not installed by this version of embedfleet yet",
            "set install to source",
            source="on GB10 source builds broke repeatedly: vllm#36835, PR#38484",
        )


def _python(settings: Settings, platform: Platform, _: Survey, sources: Sources) -> Found:
    version = platform.version(settings.vllm_version)
    known = VERSIONS.get(version)
    if known is None:
        yield refusal(
            "vllm_version",
            f"nothing is known of vLLM {version}: whether it goes with Python, torch and driver is not checked",
            "add it to embedfleet/stack.py",
            fatal=False,
        )
        return
    low, high = platform.vllm_works
    if not numbers(low) <= numbers(version) <= numbers(high):
        yield refusal("vllm_version", f"{platform.name} is thought to work with vLLM {low} to {high}, not {version}", "try it on one host first", fatal=False)  # fmt: skip
    found = re.search(r"^[a-z0-9-]+/python-(\d+\.\d+)\S*-", sources.locks.get("conda", ""), re.MULTILINE)
    if found and not numbers(known.python[0]) <= numbers(found[1]) < numbers(known.python[1]):
        yield refusal(
            "conda_lock",
            f"its Python is {found[1]}, vLLM {version} needs {known.python[0]} or newer, under {known.python[1]}",
            f"python -m embedfleet.conda_lock CHANNEL {platform.conda_subdir} FILE 'python {known.python[0]}.*'",
            source=f"metadata of vLLM {version}",
        )


def _flags(settings: Settings, platform: Platform, _: Survey, __: Sources) -> Found:
    for name, value in settings.serve_args.items():
        flag = name.removeprefix("--").replace("_", "-")
        if flag in REMOVED_FLAGS:
            yield refusal("serve_args", f"vLLM {platform.version(settings.vllm_version)} has no --{flag} any more", f"take it out; {REMOVED_FLAGS[flag]}", source="vLLM 0.32 run: exit 2")  # fmt: skip
        elif flag in OWN_FLAGS:
            yield refusal("serve_args", f"--{flag} is set by the deploy", f"instead: {OWN_FLAGS[flag]}")
        elif flag == "quantization":
            yield refusal(
                "serve_args",
                f"{settings.model_id} has no weights for quantization {value!r}",
                "take it out: it is 1.1 GB in float16",
                matters="vLLM fails to load the model",
                source="vLLM's model loader; there is no AWQ or GPTQ copy of BGE-M3",
            )
    model = settings.model
    length = settings.max_model_len or (model.max_len if model else 0)
    if settings.max_num_batched_tokens and settings.max_num_batched_tokens < length:
        yield refusal(
            "max_num_batched_tokens",
            f"{settings.max_num_batched_tokens} is under the {length} tokens that a text may have",
            f"raise it to {length}, or lower max_model_len",
            matters="vLLM refuses it at start for models that cannot chunk",
            source="vLLM vllm/config/scheduler.py:318-328; vllm#30126, #21179",
        )
    if model and settings.max_model_len and settings.max_model_len > model.max_len:
        yield refusal(
            "max_model_len", f"{settings.max_model_len} is over the model's {model.max_len}", f"at most {model.max_len}"
        )

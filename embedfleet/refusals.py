"""What vLLM, torch, CUDA, driver, Python, glibc and the hardware need of one another: the rules that refuse a host.

Solved together and told together, each with its reason, its cure and the source of the rule. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from embedfleet.containers import ARCHITECTURES, SAFE, toolkit_repository, wants_toolkit
from embedfleet.driver import (
    DISTRIBUTIONS,
    LAST_PROPRIETARY,
    cuda_toolkit,
    driver_action,
    foreign,
    plan_driver,
    repository,
    toolkit_version,
)
from embedfleet.facts.survey import Survey
from embedfleet.gpus import GPUS, VFIO, blackwell
from embedfleet.platforms import Platform
from embedfleet.problems import Problem
from embedfleet.recognise import ac922, capabilities
from embedfleet.repositories import Repository
from embedfleet.settings import Settings
from embedfleet.sources import Sources
from embedfleet.stack import GLIBC, MIN_CAPABILITY, OWN_FLAGS, REMOVED_FLAGS, VERSIONS, numbers
from embedfleet.systems import system_of


def stack_problems(
    host: str, settings: Settings, platform: Platform, survey: Survey, sources: Sources
) -> list[Problem]:
    """Return what does not go together on `host`."""
    rules = (_device, _silicon, _gpu, _driver, _containers, _libraries, _python, _flags)
    return [
        Problem(host, setting, reason, cure, fatal, matters, source)
        for rule in rules
        for setting, reason, cure, fatal, matters, source in rule(settings, platform, survey, sources)
    ]


Found = Iterator[tuple[str, str, str, bool, str, str]]


def _no(
    setting: str, reason: str, cure: str, *, matters: str = "", source: str = "", fatal: bool = True
) -> tuple[str, str, str, bool, str, str]:
    return setting, reason, cure, fatal, matters, source


def _device(settings: Settings, platform: Platform, survey: Survey, _: Sources) -> Found:
    if settings.device in ("platform", platform.device):
        return
    if survey.machine == "ppc64le":
        machine = "AC922 with V100: " if ac922(survey) else ""
        yield _no(
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
    yield _no("device", f"{platform.name} is a row for {platform.device}, not {settings.device}", cure)


def _silicon(settings: Settings, platform: Platform, survey: Survey, _: Sources) -> Found:
    level = min(filter(None, (survey.cpu.power, survey.cpu.power_mode)), default=None)
    if platform.machine == "ppc64le" and level:
        if level < 9:
            yield _no(
                "platform",
                f"POWER{level}: vLLM's CPU kernels need POWER9 or newer",
                "use a newer host",
                source="vLLM cmake/cpu_extension.cmake:103-105",
            )
        elif level < int(platform.name.removeprefix("power")):
            yield _no(
                "platform",
                f"{platform.name} on a host in POWER{level} mode",
                "leave platform at auto, or take the partition out of its compatibility mode",
                matters="the kernels would die of illegal instructions",
            )
    have = capabilities(survey)
    if platform.capability and have and not set(have) & set(platform.capability):
        yield _no(
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
        yield _no(
            "platform",
            f"compute capability {', '.join(old)} ({_cards(survey, old)}) is under {MIN_CAPABILITY}",
            "use a GPU of Turing or newer, or name a CPU platform",
            matters="vLLM has no kernels for it, and CUDA 13 none of its libraries",
            source="vLLM 0.33 CMakeLists.txt:119-135; vllm PR#39878",
            fatal=old
            == list(have),  # an old display card beside others is left out of the build, and of CUDA by its list
        )
    if settings.dtype == "bfloat16" and any(float(value) < 8 for value in have):
        yield _no("dtype", f"compute capability {have[0]} has no bfloat16", "leave dtype at platform: float16", source="vLLM vllm/config/model.py:2423-2495")  # fmt: skip
    nvcc = survey.compilers.get("nvcc", "").partition(",")[0]
    toolkit = cuda_toolkit(settings, platform)
    if toolkit and not toolkit_version(toolkit).startswith("13."):
        yield _no("cuda_toolkit", f"{toolkit} is not of CUDA 13, with which torch and the wheels are built", f"use {platform.toolkit}", source="vLLM 0.33 envs.py:91; vllm#36099")  # fmt: skip
    elif not toolkit and nvcc and numbers(nvcc)[:1] != (13,):
        yield _no("host", f"nvcc is {nvcc}, torch and the wheels are built with CUDA 13", f"install {platform.toolkit}", source="vLLM 0.33 envs.py:91; vllm#36099")  # fmt: skip
    elif not toolkit and not nvcc and settings.install != "wheel":
        yield _no("host", "there is no nvcc, and vLLM is built from source", f"install {platform.toolkit}")
    count = max(len(survey.gpus), len([gpu for gpu in survey.pci or () if gpu.driver not in VFIO]))
    if count > 1:
        yield _no("instance_ports", f"{count} GPUs, and instances are not bound to one yet", "set CUDA_VISIBLE_DEVICES in serve_env to choose the one", matters="every instance takes the first GPU", fatal=False)  # fmt: skip
    if not platform.arch_list and not capabilities(survey):
        yield _no(
            "platform",
            "the compute capability of the GPUs is unknown, and the arch list comes from it",
            "add the PCI id to embedfleet/gpus.py, or install a driver that tells it",
        )


def _cards(survey: Survey, values: list[str]) -> str:
    known = [GPUS[gpu.device] for gpu in survey.pci or () if gpu.device in GPUS]
    named = {gpu.name for gpu in known if gpu.capability in values}
    return ", ".join(sorted(named or {gpu.name for gpu in survey.gpus if gpu.capability in values}))


def _driver(settings: Settings, platform: Platform, survey: Survey, _: Sources) -> Found:
    if platform.device != "cuda":
        return
    driver, action = survey.driver, driver_action(settings, platform, survey)
    newest = VERSIONS.get(platform.version(settings.vllm_version))
    floor = newest.driver if newest else platform.driver.branch
    branch = settings.driver_branch or platform.driver.branch
    if branch < floor:
        yield _no(
            "driver_branch",
            f"branch {branch} is older than {floor}, which the CUDA {newest.cuda if newest else '13'} of these wheels needs",
            f"set driver_branch to {floor} or newer",
            source="vLLM docs/getting_started/installation/gpu.cuda.inc.md:346",
        )
    if survey.dgx and settings.driver == "install" and settings.dgx_os_driver == "keep":
        yield _no(
            "driver",
            f"this is DGX OS ({survey.dgx.get('DGX_PLATFORM') or survey.dgx.get('DGX_NAME') or 'DGX'}), which brings its own driver",
            "leave driver at platform; to replace it all the same, set dgx_os_driver = 'replace'",
            matters="its kernel, driver and firmware are tested together",
            source="NVIDIA DGX Spark documentation; start-technologies PR#3693",
        )
    modern = any(blackwell(value) for value in (*capabilities(survey), *platform.capability))
    if settings.kernel_modules == "proprietary" and (platform.driver.open_only or modern):
        yield _no(
            "kernel_modules",
            f"{platform.name} works with the open kernel modules alone",
            "leave kernel_modules at open",
            matters="the proprietary module fails with RmInitAdapter and Xid 169",
            source="NVIDIA/cloud-native-docs PR#6; start-technologies PR#3693",
        )
    if driver.loaded_open is False and (platform.driver.open_only or modern):
        yield _no("kernel_modules", f"the proprietary module {driver.loaded} is loaded", "change to the open modules", source="start-technologies PR#3693")  # fmt: skip
    if settings.imex_nodes and platform.name not in ("gb200", "gb300"):
        yield _no("imex_nodes", f"{platform.name} has no NVLink to other nodes", "take imex_nodes away", source="k8s-dra-driver-gpu#294; Azure/aks-gpu#170")  # fmt: skip
    yield from _repository(settings, platform, survey)
    if action == "install":
        yield from _install(settings, platform, survey)
        return
    if settings.driver == "platform" and platform.driver.action == "install" and not survey.dgx and foreign(survey):
        yield _no("driver", f"driver {driver.version} works, and is of no package that a deploy installs: it is kept", "set driver to keep to say so, or to install to have it replaced", fatal=False)  # fmt: skip
    if "mismatch" in driver.smi:
        yield _no("driver", f"the driver is kept, and nvidia-smi says: {driver.smi}", "reboot the host: module and libraries are of different versions")  # fmt: skip
        return
    if driver.smi != "ok":
        yield _no(
            "driver",
            f"the driver is kept, and nvidia-smi {_smi(driver.smi)}",
            "repair the driver with the vendor's tools (docs/driver-troubleshooting.md), or set driver to install",
        )
    elif driver.branch is not None and driver.branch < floor:
        yield _no("driver", f"driver {driver.version} is kept, and these wheels need branch {floor}", "update the driver with the vendor's tools", source="vLLM gpu.cuda.inc.md:346")  # fmt: skip


def _smi(how: str) -> str:
    return {"absent": "is not there", "hung": "hangs (a GPU that fell off the bus?)"}.get(how, f"says: {how}")


def _install(settings: Settings, platform: Platform, survey: Survey) -> Found:
    system = system_of(survey)
    if system is None:
        return  # refused for that
    wanted = plan_driver(settings, platform, system, survey)
    if re.match(r"\d", wanted.version) and wanted.version.partition(".")[0] != str(wanted.branch):
        yield _no(
            "driver_version",
            f"{wanted.version} is not of branch {wanted.branch}",
            "set driver_branch to the same branch",
        )
    if not wanted.open and wanted.branch > LAST_PROPRIETARY:
        yield _no("kernel_modules", f"branch {wanted.branch} has no proprietary modules", "leave kernel_modules at open", source="release notes of R620")  # fmt: skip
    if settings.driver_source == "distribution" and survey.os_id != "ubuntu":
        yield _no(
            "driver_source",
            f"{survey.os_name} brings no driver of NVIDIA's that is kept up",
            "leave driver_source at platform",
        )
    if wanted.dkms and survey.secure_boot and survey.driver.smi != "ok":
        yield _no(
            "driver_source",
            "Secure Boot is on, and modules that are built on the host are signed with a key that it does not know",
            "on Ubuntu leave driver_source at platform: Canonical's modules are signed; else enrol DKMS's key at the console first (mokutil --import), or turn Secure Boot off",
            matters="the module would be refused, and no unattended run can enrol a key",
            source="start-technologies PR#3693",
        )


def _repository(settings: Settings, platform: Platform, survey: Survey) -> Found:
    system = system_of(survey)
    if system is None or platform.device != "cuda":
        return
    installs = driver_action(settings, platform, survey) == "install"
    nvidia = installs and plan_driver(settings, platform, system, survey).source == "nvidia"
    toolkit = cuda_toolkit(settings, platform)
    if not (nvidia or toolkit):
        return
    found = repository(settings, system, survey)
    if found is None:
        yield _no(
            "nvidia_repository_url",
            f"NVIDIA has no repository for {survey.os_name or 'this system'} on {survey.machine}",
            f"use {', '.join(sorted(' '.join(each) for each in DISTRIBUTIONS))}; or bring driver and CUDA yourself: driver = 'keep', cuda_toolkit = 'none'",
            source="docs/driver.md",
        )
    elif not settings.allow_http_repositories and not _secure(found):
        yield _plain("nvidia_repository_url", found)


def _secure(found: Repository) -> bool:
    return all(url.startswith("https://") for url in (found.uri, found.key_url))


def _plain(setting: str, found: Repository) -> tuple[str, str, str, bool, str, str]:
    return _no(
        setting,
        f"{found.uri if found.uri.startswith('http:') else found.key_url} is not https",
        "use https, or set allow_http_repositories = True for a mirror that you trust the way to",
        matters="proxies on the way break signatures, and anybody on it sees what is installed",
        source="NVIDIA/deepops#732",
    )


def _containers(settings: Settings, platform: Platform, survey: Survey, _: Sources) -> Found:
    system = system_of(survey)
    if system is None or not wants_toolkit(settings, platform, survey):
        return
    if survey.machine not in ARCHITECTURES:
        yield _no(
            "container_toolkit",
            f"there is no container toolkit for {survey.machine}",
            "leave container_toolkit at auto",
            matters="its packages for ppc64le were removed, and CUDA has none for POWER either",
            source="NVIDIA/nvidia-container-toolkit#1339",
        )
        return
    if platform.device != "cuda":
        yield _no(
            "container_toolkit",
            f"{platform.name} is a row for {platform.device}: containers would find no GPU",
            "leave container_toolkit at auto, or name the platform of the GPU",
        )
    found = toolkit_repository(settings, system, survey)
    if found and not settings.allow_http_repositories and not _secure(found):
        yield _plain("container_toolkit_url", found)
    if numbers(settings.container_toolkit_version) < SAFE:
        yield _no(
            "container_toolkit_version",
            f"a container can take the host over by {settings.container_toolkit_version}",
            f"set it to {'.'.join(map(str, SAFE))} or newer",
            source="CVE-2025-23266",
            fatal=False,
        )


def _libraries(settings: Settings, platform: Platform, survey: Survey, _: Sources) -> Found:
    floor, have = GLIBC.get(platform.machine, (0, 0)), numbers(survey.glibc)
    wanted = ".".join(map(str, floor))
    if not have:
        yield _no("host", f"the version of glibc is unknown, {wanted} is needed", "see that getconf works", fatal=False)
    elif have < floor:
        yield _no(
            "host",
            f"glibc {survey.glibc} is older than {wanted}, which the wheels on {platform.machine} need",
            "use a newer system: Ubuntu 24.04 or Debian 13",
            source="tilelang has manylinux_2_34 wheels alone on aarch64 (vLLM docker/Dockerfile:229-233); vllm#30065, #48540",
        )
    if (settings.install if settings.install != "platform" else platform.install) == "wheel":
        yield _no(
            "install",
            "wheels are not installed by this version of embedfleet yet",
            "set install to source",
            source="on GB10 source builds broke repeatedly: vllm#36835, PR#38484",
        )


def _python(settings: Settings, platform: Platform, _: Survey, sources: Sources) -> Found:
    version = platform.version(settings.vllm_version)
    known = VERSIONS.get(version)
    if known is None:
        yield _no(
            "vllm_version",
            f"nothing is known of vLLM {version}: whether it goes with Python, torch and driver is not checked",
            "add it to embedfleet/stack.py",
            fatal=False,
        )
        return
    low, high = platform.vllm_works
    if not numbers(low) <= numbers(version) <= numbers(high):
        yield _no("vllm_version", f"{platform.name} is thought to work with vLLM {low} to {high}, not {version}", "try it on one host first", fatal=False)  # fmt: skip
    found = re.search(r"^[a-z0-9-]+/python-(\d+\.\d+)\S*-", sources.locks.get("conda", ""), re.MULTILINE)
    if found and not numbers(known.python[0]) <= numbers(found[1]) < numbers(known.python[1]):
        yield _no(
            "conda_lock",
            f"its Python is {found[1]}, vLLM {version} needs {known.python[0]} or newer, under {known.python[1]}",
            f"python -m embedfleet.conda_lock CHANNEL {platform.conda_subdir} FILE 'python {known.python[0]}.*'",
            source=f"metadata of vLLM {version}",
        )


def _flags(settings: Settings, platform: Platform, _: Survey, __: Sources) -> Found:
    for name, value in settings.serve_args.items():
        flag = name.removeprefix("--").replace("_", "-")
        if flag in REMOVED_FLAGS:
            yield _no("serve_args", f"vLLM {platform.version(settings.vllm_version)} has no --{flag} any more", f"take it out; {REMOVED_FLAGS[flag]}", source="vLLM 0.32 run: exit 2")  # fmt: skip
        elif flag in OWN_FLAGS:
            yield _no("serve_args", f"--{flag} is set by the deploy", f"instead: {OWN_FLAGS[flag]}")
        elif flag == "quantization":
            yield _no(
                "serve_args",
                f"{settings.model_id} has no weights for quantization {value!r}",
                "take it out: it is 1.1 GB in float16",
                matters="vLLM fails to load the model",
                source="vLLM's model loader; there is no AWQ or GPTQ copy of BGE-M3",
            )
    model = settings.model
    length = settings.max_model_len or (model.max_len if model else 0)
    if settings.max_num_batched_tokens and settings.max_num_batched_tokens < length:
        yield _no(
            "max_num_batched_tokens",
            f"{settings.max_num_batched_tokens} is under the {length} tokens that a text may have",
            f"raise it to {length}, or lower max_model_len",
            matters="vLLM refuses it at start for models that cannot chunk",
            source="vLLM vllm/config/scheduler.py:318-328; vllm#30126, #21179",
        )
    if model and settings.max_model_len and settings.max_model_len > model.max_len:
        yield _no(
            "max_model_len", f"{settings.max_model_len} is over the model's {model.max_len}", f"at most {model.max_len}"
        )

"""What NVIDIA's driver, its repositories and the container toolkit need: the rules that refuse a host for them. Pure.

The rest is in embedfleet/refusals.py, which tells all of it together.
"""

from __future__ import annotations

import re

from embedfleet.containers import ARCHITECTURES, SAFE, toolkit_repository, wants_toolkit
from embedfleet.driver import (
    DISTRIBUTIONS,
    LAST_PROPRIETARY,
    cuda_toolkit,
    driver_action,
    foreign,
    plan_driver,
    repository,
)
from embedfleet.facts.survey import Survey
from embedfleet.gpus import blackwell
from embedfleet.platforms import Platform
from embedfleet.recognise import capabilities
from embedfleet.repositories import Repository, without_password
from embedfleet.rule import Found, refusal
from embedfleet.settings import Settings
from embedfleet.sources import Sources
from embedfleet.stack import VERSIONS, numbers
from embedfleet.systems import system_of


def driver(settings: Settings, platform: Platform, survey: Survey, _: Sources) -> Found:
    if platform.device != "cuda":
        return
    driver, action = survey.driver, driver_action(settings, platform, survey)
    newest = VERSIONS.get(platform.version(settings.vllm_version))
    floor = newest.driver if newest else platform.driver.branch
    branch = settings.driver_branch or platform.driver.branch
    if branch < floor:
        yield refusal(
            "driver_branch",
            f"branch {branch} is older than {floor}, which the CUDA {newest.cuda if newest else '13'} of these wheels needs",
            f"set driver_branch to {floor} or newer",
            source="vLLM docs/getting_started/installation/gpu.cuda.inc.md:346",
        )
    if survey.dgx and settings.driver == "install" and settings.dgx_os_driver == "keep":
        yield refusal(
            "driver",
            f"this is DGX OS ({survey.dgx.get('DGX_PLATFORM') or survey.dgx.get('DGX_NAME') or 'DGX'}), which brings its own driver",
            "leave driver at platform; to replace it all the same, set dgx_os_driver = 'replace'",
            matters="its kernel, driver and firmware are tested together",
            source="NVIDIA DGX Spark documentation; start-technologies PR#3693",
        )
    modern = any(blackwell(value) for value in (*capabilities(survey), *platform.capability))
    if settings.kernel_modules == "proprietary" and (platform.driver.open_only or modern):
        yield refusal(
            "kernel_modules",
            f"{platform.name} works with the open kernel modules alone",
            "leave kernel_modules at open",
            matters="the proprietary module fails with RmInitAdapter and Xid 169",
            source="NVIDIA/cloud-native-docs PR#6; start-technologies PR#3693",
        )
    if driver.loaded_open is False and (platform.driver.open_only or modern):
        yield refusal("kernel_modules", f"the proprietary module {driver.loaded} is loaded", "change to the open modules", source="start-technologies PR#3693")  # fmt: skip
    if settings.imex_nodes and platform.name not in ("gb200", "gb300"):
        yield refusal("imex_nodes", f"{platform.name} has no NVLink to other nodes", "take imex_nodes away", source="k8s-dra-driver-gpu#294; Azure/aks-gpu#170")  # fmt: skip
    yield from _repository(settings, platform, survey)
    if action == "install":
        yield from _install(settings, platform, survey)
        return
    if settings.driver == "platform" and platform.driver.action == "install" and not survey.dgx and foreign(survey):
        yield refusal("driver", f"driver {driver.version} works, and is of no package that a deploy installs: it is kept", "set driver to keep to say so, or to install to have it replaced", fatal=False)  # fmt: skip
    if "mismatch" in driver.smi:
        yield refusal("driver", f"the driver is kept, and nvidia-smi says: {driver.smi}", "reboot the host: module and libraries are of different versions")  # fmt: skip
        return
    if driver.smi != "ok":
        yield refusal(
            "driver",
            f"the driver is kept, and nvidia-smi {_smi(driver.smi)}",
            "repair the driver with the vendor's tools (docs/driver-troubleshooting.md), or set driver to install",
        )
    elif driver.branch is not None and driver.branch < floor:
        yield refusal("driver", f"driver {driver.version} is kept, and these wheels need branch {floor}", "update the driver with the vendor's tools", source="vLLM gpu.cuda.inc.md:346")  # fmt: skip


def _smi(how: str) -> str:
    return {"absent": "is not there", "hung": "hangs (a GPU that fell off the bus?)"}.get(how, f"says: {how}")


def _install(settings: Settings, platform: Platform, survey: Survey) -> Found:
    system = system_of(survey)
    if system is None:
        return  # refused for that
    wanted = plan_driver(settings, platform, system, survey)
    if re.match(r"\d", wanted.version) and wanted.version.partition(".")[0] != str(wanted.branch):
        yield refusal(
            "driver_version",
            f"{wanted.version} is not of branch {wanted.branch}",
            "set driver_branch to the same branch",
        )
    if not wanted.open and wanted.branch > LAST_PROPRIETARY:
        yield refusal("kernel_modules", f"branch {wanted.branch} has no proprietary modules", "leave kernel_modules at open", source="release notes of R620")  # fmt: skip
    if survey.runfile:
        yield refusal("driver", f"a driver is there that came by NVIDIA's installer ({survey.runfile})", "nvidia-uninstall --silent, or driver = 'keep'", matters="packages over its files leave two drivers, of which either may be loaded")  # fmt: skip
    if settings.driver_source == "distribution" and survey.os_id != "ubuntu":
        yield refusal(
            "driver_source",
            f"{survey.os_name} brings no driver of NVIDIA's that is kept up",
            "leave driver_source at platform",
        )
    if wanted.dkms and survey.secure_boot and survey.driver.smi != "ok":
        yield refusal(
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
        yield refusal(
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
    return refusal(
        setting,
        f"{without_password(found.uri if found.uri.startswith('http:') else found.key_url)} is not https",
        "use https, or set allow_http_repositories = True for a mirror that you trust the way to",
        matters="proxies on the way break signatures, and anybody on it sees what is installed",
        source="NVIDIA/deepops#732",
    )


def container_toolkit(settings: Settings, platform: Platform, survey: Survey, _: Sources) -> Found:
    system = system_of(survey)
    if system is None or not wants_toolkit(settings, platform, survey):
        return
    if survey.machine not in ARCHITECTURES:
        yield refusal(
            "container_toolkit",
            f"there is no container toolkit for {survey.machine}",
            "leave container_toolkit at auto",
            matters="its packages for ppc64le were removed, and CUDA has none for POWER either",
            source="NVIDIA/nvidia-container-toolkit#1339",
        )
        return
    if platform.device != "cuda":
        yield refusal(
            "container_toolkit",
            f"{platform.name} is a row for {platform.device}: containers would find no GPU",
            "leave container_toolkit at auto, or name the platform of the GPU",
        )
    found = toolkit_repository(settings, system, survey)
    if found and not settings.allow_http_repositories and not _secure(found):
        yield _plain("container_toolkit_url", found)
    if numbers(settings.container_toolkit_version) < SAFE:
        yield refusal(
            "container_toolkit_version",
            f"a container can take the host over by {settings.container_toolkit_version}",
            f"set it to {'.'.join(map(str, SAFE))} or newer",
            source="CVE-2025-23266",
            fatal=False,
        )

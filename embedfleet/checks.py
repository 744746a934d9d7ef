"""What can be known to go wrong before anything is changed: pure, from settings and survey. All of it at once.

Here is what any host needs; what vLLM, CUDA, driver and Python need of one another is in embedfleet/refusals.py.
"""

from __future__ import annotations

from embedfleet.facts.survey import Survey
from embedfleet.plan import Plan
from embedfleet.platforms import Platform
from embedfleet.problems import Problem
from embedfleet.refusals import stack_problems
from embedfleet.settings import Settings
from embedfleet.sources import Sources
from embedfleet.stack import numbers
from embedfleet.systems import SYSTEMS, system_of

# Systems whose own g++ is too old for vLLM's CPU kernels (read; seen refused on Debian 12 by CMake itself).
_OLD_COMPILERS = {("debian", "12"): "12.2", ("ubuntu", "22.04"): "11.4", ("ubuntu", "20.04"): "9.4"}


def problems_of(host: str, settings: Settings, platform: Platform, survey: Survey, sources: Sources) -> list[Problem]:
    """Return every problem of the host at once: fatal ones refuse it before any change."""
    return [
        *_system(host, settings, platform, survey),
        *_ports(host, settings, survey),
        *stack_problems(host, settings, platform, survey, sources),
        *_warnings(host, settings, platform, survey),
    ]


def _system(host: str, settings: Settings, platform: Platform, survey: Survey) -> list[Problem]:
    found = []
    if not survey.root:
        cure = "connect as root, or set _sudo = True with passwordless sudo"
        found.append(Problem(host, "_sudo", "commands do not run as root on this host", cure))
    if survey.init not in ("systemd", ""):
        found.append(Problem(host, "host", f"PID 1 is {survey.init}, not systemd", "use a host with systemd"))
    system = system_of(survey)
    if system is None:
        reason = f"{survey.os_name or 'this system'} is none that embedfleet knows"
        found.append(Problem(host, "host", reason, f"use {'; '.join(each.name for each in SYSTEMS)}"))
    elif f"{system.manager}{'-get' if system.manager == 'apt' else ''}" not in survey.managers:
        reason = f"{survey.os_name} without {system.manager}: packages cannot be installed"
        found.append(Problem(host, "host", reason, f"install {system.manager}; image-based variants are not supported"))
    if survey.cpu.count is None:
        reason = "the number of cores is unknown, and threads and compiler jobs come from it"
        found.append(Problem(host, "host", reason, "see that /proc/cpuinfo can be read on the host"))
    # Where compilers come beside the system's own, how old those are does not matter.
    own = "" if system and system.compilers else survey.compilers.get("g++", "")
    compiler = own or _OLD_COMPILERS.get((survey.os_id, survey.os_version), "")
    if platform.device == "cpu" and settings.vllm_precompiled is None and (9,) <= numbers(compiler) < (12, 3):
        reason = f"{survey.os_name} has g++ {compiler}, and vLLM's CPU kernels need 12.3 or newer"
        cure = "use Ubuntu 24.04 or Debian 13, or reuse the kernels of a wheel: vllm_precompiled"
        found.append(Problem(host, "vllm_precompiled", reason, cure, source="vLLM cmake/cpu_extension.cmake"))
    if settings.model is None:
        reason = f"nothing is known of {settings.model_id}'s vectors, so they cannot be proven right"
        found.append(
            Problem(
                host,
                "model_id",
                reason,
                "measure them once on a host that you trust, and set model_known; or add a row to embedfleet/models.py",
            )
        )
    return found


def _ports(host: str, settings: Settings, survey: Survey) -> list[Problem]:
    ours = {port: ("instance_ports", f"embedfleet-vllm@{port}.service") for port in settings.instance_ports}
    ours[settings.side_port] = ("side_port", f"embedfleet-candidate@{settings.side_port}.service")
    ours[settings.gateway_port] = ("gateway_port", "embedfleet-gateway.service")
    found = []
    for listener in survey.listeners:
        setting, unit = ours.get(listener.port, ("", ""))
        if setting and listener.unit != unit:
            # Where nobody tells who listens (no ss, or one that knows no cgroups), a host that runs us is taken for ours.
            unknown = (
                not listener.unit and listener.program in ("", "nginx", "python", "python3") and bool(survey.current)
            )
            if unknown:
                continue
            who = listener.program or "an unknown program"
            where = f" ({listener.unit})" if listener.unit else ""
            reason = f"port {listener.port} is in use by {who}{where}"
            found.append(Problem(host, setting, reason, f"stop that program, or change {setting}"))
    return found


def disk_needed(plan: Plan, survey: Survey) -> float:
    """Return GiB that this deploy needs at /opt: for what is not there yet, and half a GiB for the rest."""
    model = plan.settings.model
    engine = 0 if f"engines/{plan.engine.id}" in survey.parts else plan.platform.engine_gib
    return engine + (0 if f"models/{plan.model.id}" in survey.parts or not model else model.disk_gib) + 0.5


def disk_problems(plan: Plan, survey: Survey) -> list[Problem]:
    """Return whether the disk has room for what the plan would bring."""
    need, free = disk_needed(plan, survey), survey.free_mib.get("/opt")
    if free is None:
        return [Problem(plan.host, "host", "free space of /opt is unknown", "see that df works on the host", False)]
    if free / 1024 < need:
        reason = f"/opt has {free / 1024:.1f} GiB free, this deploy needs {need:.1f} GiB"
        return [Problem(plan.host, "host", reason, "make room, or mount a larger disk at /opt/embedfleet")]
    return []


def _checked(settings: Settings) -> str:
    model = settings.model
    known = len(model.sha256) if model and not settings.model_sha256 else 0
    return (
        f"{known} files are checked against publicly known contents, the others as the server lists them"
        if known
        else "the server's own checksums are trusted"
    )


def _warnings(host: str, settings: Settings, platform: Platform, survey: Survey) -> list[Problem]:
    found = []

    def warn(setting: str, reason: str, cure: str, matters: str = "") -> None:
        found.append(Problem(host, setting, reason, cure, fatal=False, matters=matters))

    if platform.how == "read" and platform.name not in ("x86-cpu",):
        warn(
            "platform",
            f"{platform.name} has never been run on real hardware by the project",
            "try it on one host first",
        )
    if not settings.model_sha256 or settings.model_revision in ("master", "main"):
        warn(
            "model_sha256",
            f"{settings.model_id}@{settings.model_revision} is not pinned: {_checked(settings)}",
            "pin model_revision and model_sha256 (docs/first-deploy.md)",
        )
    if survey.selinux:
        warn(
            "host",
            "SELinux enforces, and embedfleet has never been run under it",
            "if the gateway answers 502: setsebool -P httpd_can_network_connect 1 (nginx may not connect otherwise)",
        )
    for reason in survey.reboot:
        warn("host", f"a reboot is pending: {reason}", "reboot it when it suits", "what runs is not what is installed")
    if platform.page_size and survey.page_size and survey.page_size != platform.page_size:
        warn(
            "host",
            f"pages of {survey.page_size // 1024} KiB, {platform.page_size // 1024} KiB are advised for {platform.name}",
            "install the 64k flavour of the kernel when it suits",
            "large models of memory cost more TLB misses (NVIDIA Grace performance tuning guide)",
        )
    if survey.available_mib is not None and survey.available_mib / 1024 < platform.build_gib:
        warn(
            "build_jobs",
            f"{survey.available_mib / 1024:.1f} GiB of memory are available, one compiler job takes {platform.build_gib:.0f}",
            "stop what else runs there, or build on a larger host of this platform",
            "the build may be killed (vllm#14452)",
        )
    return found

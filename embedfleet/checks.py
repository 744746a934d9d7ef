"""What can be known to go wrong before anything is changed: pure, from settings and survey. All of it at once."""

from __future__ import annotations

from embedfleet.facts.survey import Survey
from embedfleet.models import MODELS
from embedfleet.platforms import Platform
from embedfleet.problems import Problem
from embedfleet.settings import Settings

# Systems whose own g++ is too old for vLLM's CPU kernels (read; seen refused on Debian 12 by CMake itself).
_OLD_COMPILERS = {("debian", "12"): "12.2", ("ubuntu", "22.04"): "11.4"}


def problems_of(host: str, settings: Settings, platform: Platform, survey: Survey) -> list[Problem]:
    """Return every problem of the host at once: fatal ones refuse it before any change."""
    found: list[Problem] = []

    def add(setting: str, reason: str, cure: str, fatal: bool = True) -> None:
        found.append(Problem(host, setting, reason, cure, fatal))

    if not survey.root:
        add(
            "_sudo",
            "commands do not run as root on this host",
            "connect as root, or set _sudo = True with passwordless sudo",
        )
    if survey.init not in ("systemd", ""):
        add("host", f"PID 1 is {survey.init}, not systemd", "use a host with systemd")
    if not survey.apt:
        add(
            "host",
            f"{survey.os_name or 'this system'} has no apt",
            "use Debian 12 or Ubuntu 22.04/24.04; others come later",
        )
    if platform.device == "cuda":
        add(
            "platform",
            f"{platform.name} needs an NVIDIA driver, which this version of embedfleet does not install yet",
            "use a CPU platform, or wait for the driver component",
        )
    old_compiler = _OLD_COMPILERS.get((survey.os_id, survey.os_version))
    if platform.device == "cpu" and old_compiler and settings.vllm_precompiled is None:
        add(
            "vllm_precompiled",
            f"{survey.os_name} has g++ {old_compiler}, and vLLM's CPU kernels need 12.3 or newer (cmake/cpu_extension.cmake)",
            "use Ubuntu 24.04 or Debian 13, or reuse the kernels of a wheel: vllm_precompiled",
        )
    if settings.model_id not in MODELS:
        add(
            "model_id",
            f"nothing is known of {settings.model_id}'s vectors, so they cannot be proven right",
            "add a row to embedfleet/models.py",
        )
    if platform.known == "read":
        add(
            "platform",
            f"{platform.name} has never been run by the project: {platform.known_note}",
            "try it on one host first",
            False,
        )
    if not settings.model_sha256 or settings.model_revision in ("master", "main"):
        add(
            "model_sha256",
            f"{settings.model_id}@{settings.model_revision} is not pinned: the server's own checksums are trusted",
            "pin model_revision and model_sha256 (docs/first-deploy.md)",
            False,
        )
    found += _ports(host, settings, survey) + _disk(host, settings, platform, survey)
    return found


def _ports(host: str, settings: Settings, survey: Survey) -> list[Problem]:
    ours = {port: ("instance_ports", f"embedfleet-vllm@{port}.service") for port in settings.instance_ports}
    ours[settings.side_port] = ("side_port", f"embedfleet-candidate@{settings.side_port}.service")
    ours[settings.gateway_port] = ("gateway_port", "embedfleet-gateway.service")
    found = []
    for listener in survey.listeners:
        setting, unit = ours.get(listener.port, ("", ""))
        if setting and listener.unit != unit:
            who = listener.program or "an unknown program"
            where = f" ({listener.unit})" if listener.unit else ""
            reason = f"port {listener.port} is in use by {who}{where}"
            found.append(Problem(host, setting, reason, f"stop that program, or change {setting}"))
    return found


def _disk(host: str, settings: Settings, platform: Platform, survey: Survey) -> list[Problem]:
    engine_there = any(part.startswith(f"engines/vllm-{settings.vllm_version}-") for part in survey.parts)
    model = MODELS.get(settings.model_id)
    short = settings.model_id.rpartition("/")[2]
    model_there = any(part.startswith(f"models/{short}-") for part in survey.parts)
    need = (0 if engine_there else platform.engine_gib) + (0 if model_there or model is None else model.disk_gib) + 0.5
    free = survey.free_mib.get("/opt")
    if free is None:
        return [Problem(host, "host", "free space of /opt is unknown", "see that df works on the host", False)]
    if free / 1024 < need:
        reason = f"/opt has {free / 1024:.1f} GiB free, this deploy needs {need:.1f} GiB"
        return [Problem(host, "host", reason, "make room, or mount a larger disk at /opt/embedfleet")]
    return []

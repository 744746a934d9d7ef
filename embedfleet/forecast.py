"""What a deploy would do to a host, told before it does it: the end of `deploy.py --dry`. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from embedfleet.checks import disk_needed
from embedfleet.facts.packages import order
from embedfleet.facts.survey import Survey
from embedfleet.plan import Plan, jobs
from embedfleet.versions import fits


@dataclass(frozen=True)
class Forecast:
    """What comes, in words for people and values for programs.

    :param why: what makes the host one of its platform row
    :param release: the current release (None: none) and the one that the settings give
    :param packages: distribution packages that come, and vLLM, driver and model, as "name old -> new"
    :param engine: build, or reuse of a finished one
    :param downloads: what is fetched -> GiB; estimates, None where nobody measured it
    :param restarts: instances that are drained and restarted, one after the other
    :param reboot: whether the host is rebooted: what can be told before the packages are there
    :param minutes: how long it takes; None where nobody measured it
    :param basis: what `minutes` rests on
    :param disk_gib: what is needed at /opt, and what is free
    """

    host: str
    platform: str
    why: str
    release: tuple[str | None, str]
    packages: tuple[str, ...]
    engine: str
    downloads: dict[str, float | None]
    restarts: tuple[int, ...]
    reboot: bool
    minutes: float | None
    basis: str
    disk_gib: tuple[float, float | None]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def forecast(plan: Plan, survey: Survey, why: str = "") -> Forecast:
    """Return what the deploy of `plan` would do to the host of `survey`."""
    there = survey.parts
    build = f"engines/{plan.engine.id}" not in there
    fetch = f"models/{plan.model.id}" not in there
    version = str(plan.engine.spec["version"])
    old = survey.current.partition("-")[0]
    packages = [f"{name}: to be installed" for name in plan.packages if survey.managers and name not in survey.packages]
    if old != version:
        packages.append(f"vLLM {old or 'none'} -> {version}")
    packages += [*_driver(plan, survey), *_containers(plan, survey)]
    if fetch:
        packages.append(f"model -> {plan.settings.model_id}@{plan.settings.model_revision}")
    model = plan.settings.model
    downloads: dict[str, float | None] = {}
    if build:
        downloads["vLLM's packages"] = plan.platform.engine_gib / 4
    if fetch:
        downloads[plan.settings.model_id] = model.disk_gib if model else None
    minutes, basis = _time(plan, survey, build)
    free = survey.free_mib.get("/opt")
    return Forecast(
        host=plan.host,
        platform=plan.platform.name,
        why=why,
        release=(survey.current or None, plan.release),
        packages=tuple(packages),
        engine=f"{'build' if build else 'reuse'} {plan.engine.id}",
        downloads=downloads,
        restarts=tuple(plan.settings.instance_ports) if survey.current != plan.release else (),
        reboot=_reboots(plan, survey),
        minutes=minutes,
        basis=basis,
        disk_gib=(disk_needed(plan, survey), None if free is None else round(free / 1024, 1)),
    )


def _driver(plan: Plan, survey: Survey) -> list[str]:
    """What becomes of driver and toolkit, as far as the survey tells."""
    wanted, there = plan.driver, survey.driver
    if wanted.action == "keep":
        return [f"NVIDIA driver {there.version or 'none'}: kept"]
    found = []
    if wanted.action == "install":
        flavour = "open" if wanted.open else "proprietary"
        right = fits(wanted, there.loaded) and there.loaded_open in (wanted.open, None)
        if not right or there.smi != "ok":
            version = wanted.version or str(wanted.branch)
            origin = "the distribution" if wanted.source == "distribution" else "NVIDIA's repository"
            found.append(f"NVIDIA driver {there.version or 'none'} -> {version} {flavour}, from {origin}")
    if plan.toolkit and "nvcc" not in survey.compilers:
        found.append(f"{plan.toolkit}: to be installed")
    return found


def _containers(plan: Plan, survey: Survey) -> list[str]:
    """What becomes of the container toolkit, as far as the survey tells."""
    wanted, there = plan.containers, survey.packages.get("nvidia-container-toolkit", "")
    if wanted is None:
        return []
    if order(there) > order(f"{wanted.version}-1"):
        return [f"container toolkit {there}: kept, as it is newer than {wanted.version}"]
    if order(there) == order(f"{wanted.version}-1"):
        return []
    for_whom = f", for {', '.join(wanted.runtimes)}" if wanted.runtimes else ""
    return [f"container toolkit {there or 'none'} -> {wanted.version}{for_whom}"]


def _reboots(plan: Plan, survey: Survey) -> bool:
    """Whether a module must give way to another: one that is merely missing is loaded without a reboot."""
    driver, settings = plan.driver, plan.settings
    if driver.action != "install" or settings.reboot == "never":
        return False
    there = survey.driver
    canonical = any(name.startswith("linux-modules-nvidia-") for name in survey.packages)
    same = fits(driver, there.loaded) and there.loaded_open in (driver.open, None)
    other = bool(there.loaded) and not (same and canonical == (driver.source == "distribution"))
    return other or "mismatch" in there.smi or there.nouveau or (settings.reboot == "always" and bool(survey.reboot))


def _time(plan: Plan, survey: Survey, build: bool) -> tuple[float | None, str]:
    switch = 1.0 * (len(plan.settings.instance_ports) + 1) if survey.current != plan.release else 0.0
    if not build:
        return switch, "a minute a start, measured on 2 cores"
    if plan.settings.vllm_precompiled and plan.platform.name == "x86-cpu":
        return 2.5 + switch, "measured on 2 cores with kernels from a wheel"
    if plan.platform.build_core_minutes is None:
        return None, "nobody has measured this build"
    parallel = jobs(plan.settings, plan.platform, survey)
    return round(plan.platform.build_core_minutes / parallel + switch), f"read: vLLM's own figures for {parallel} jobs"


def render(forecasts: list[Forecast]) -> str:
    """Return forecasts for people."""
    lines = []
    for item in sorted(forecasts, key=lambda each: each.host):
        old, new = item.release
        lines.append(f"{item.host}  {item.platform}{f' ({item.why})' if item.why else ''}")
        same = f"{new} (unchanged)" if old == new else f"{old or 'none'} -> {new}"
        lines.append(f"    release:   {same}")
        if item.packages:
            lines.append(f"    packages:  {'; '.join(item.packages)}")
        lines.append(f"    engine:    {item.engine}")
        sizes = [
            f"{name} {'of unknown size' if size is None else f'about {size:.1f} GiB'}"
            for name, size in item.downloads.items()
        ]
        lines.append(f"    downloads: {', '.join(sizes) or 'none'}")
        lines.append(
            f"    restarts:  {', '.join(map(str, item.restarts)) or 'none'}; reboot: {'yes' if item.reboot else 'no'}"
        )
        took = "unknown" if item.minutes is None else f"about {item.minutes:.0f} min" if item.minutes else "seconds"
        lines.append(f"    time:      {took}{f' ({item.basis})' if item.minutes != 0 else ''}")
        need, free = item.disk_gib
        lines.append(f"    disk:      {need:.1f} GiB at /opt, {'unknown' if free is None else f'{free:.1f} GiB'} free")
    return "\n".join(lines)

"""The files that land on a host, as text: pure, from settings and templates."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass

from jinja2 import Environment, StrictUndefined, Template

from embedfleet.driver import Driver
from embedfleet.driver_files import NOUVEAU, preferences, unattended
from embedfleet.facts.packages import INITRAMFS_STALE
from embedfleet.facts.state import ROOT, FileState
from embedfleet.platforms import Platform
from embedfleet.settings import Settings
from embedfleet.sources import Sources
from embedfleet.systems import System

GATEWAY_STALE = "/var/lib/embedfleet/gateway/stale"


@dataclass(frozen=True, repr=False)
class ManagedFile:
    """One file that the deploy owns, whole: content, octal mode, owner, group.

    :param mark: a file that is touched before this one changes: whoever runs with the content is out of date then,
        even where the same change was made and loaded by hand before
    """

    path: str
    content: str
    mode: str = "644"
    owner: str = "root"
    group: str = "root"
    mark: str = ""

    def __repr__(self) -> str:
        """The path alone: pyinfra prints an operation's arguments, and contents are not for logs."""
        return self.path

    @property
    def sha256(self) -> str:
        """sha256 of the content, hex."""
        return hashlib.sha256(self.content.encode()).hexdigest()

    @property
    def state(self) -> FileState:
        """What the file on the host is when it is right."""
        return FileState(self.sha256, self.mode, f"{self.owner}:{self.group}")


# No autoescape: these are unit files and nginx configuration, not HTML.
_JINJA = Environment(undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True)  # noqa: S701


@functools.lru_cache
def _compiled(text: str) -> Template:
    return _JINJA.from_string(text)  # 5 ms each: a thousand hosts share them


def _template(sources: Sources, name: str, **values: object) -> str:
    return _compiled(sources.templates[name]).render(**values)


def units(settings: Settings, platform: Platform, sources: Sources) -> dict[str, str]:
    """Return the instance units: the serving template unit and the one that proves a candidate."""
    common = {
        "user": settings.service_user,
        "start_timeout": settings.start_timeout,
        "cuda": platform.device == "cuda",
        "root": ROOT,
    }
    return {
        "/etc/systemd/system/embedfleet-vllm@.service": _template(
            sources, "instance.service.j2", link="current", serving=True, **common
        ),
        "/etc/systemd/system/embedfleet-candidate@.service": _template(
            sources, "instance.service.j2", link="candidate", serving=False, **common
        ),
    }


def managed_files(
    settings: Settings, system: System, sources: Sources, unit_files: dict[str, str]
) -> tuple[ManagedFile, ...]:
    """Return every file that the deploy owns on the host."""
    host = {
        "instances": settings.instance_ports,
        "side_port": settings.side_port,
        "gateway": {"host": settings.gateway_host, "port": settings.gateway_port},
        "drain_timeout": settings.drain_timeout,
        "start_timeout": settings.start_timeout,
        "keep_releases": settings.keep_releases,
        "service_user": settings.service_user,
    }
    files = [ManagedFile(f"{ROOT}/lib/{name}", text) for name, text in sources.programs.items()]
    files.append(ManagedFile(f"{ROOT}/bin/embedfleetctl", _template(sources, "embedfleetctl.j2", root=ROOT), "755"))
    files.append(ManagedFile("/usr/local/sbin/embedfleetctl", _template(sources, "embedfleetctl.j2", root=ROOT), "755"))
    files.append(ManagedFile("/etc/embedfleet/host.json", json.dumps(host, indent=1) + "\n"))
    files.append(
        ManagedFile(
            "/etc/embedfleet/nginx.conf",
            _template(
                sources,
                "nginx.conf.j2",
                host=settings.gateway_host,
                wildcard=settings.gateway_host in ("0.0.0.0", "::"),
                port=settings.gateway_port,
                cores=len(settings.instance_ports),
            ),
            mark=GATEWAY_STALE,
        )
    )
    files += [ManagedFile(path, text) for path, text in unit_files.items()]
    gateway_unit = _template(
        sources, "gateway.service.j2", user=settings.service_user, root=ROOT, low_port=settings.gateway_port < 1024
    )
    files.append(ManagedFile("/etc/systemd/system/embedfleet-gateway.service", gateway_unit, mark=GATEWAY_STALE))
    files.append(
        ManagedFile("/etc/embedfleet/sysusers.conf", _template(sources, "sysusers.conf.j2", user=settings.service_user))
    )
    for name, pem in sources.certificates.items():
        files.append(ManagedFile(certificate_path(system, name), pem))
    return tuple(files)


def driver_files(driver: Driver, system: System) -> tuple[ManagedFile, ...]:
    """Return what keeps the driver to one origin and nouveau out; none where the driver is not ours."""
    if driver.action != "install":
        return ()
    files = [ManagedFile("/etc/modprobe.d/embedfleet-nouveau.conf", NOUVEAU, mark=INITRAMFS_STALE)]
    if system.manager == "apt":
        files.append(ManagedFile("/etc/apt/preferences.d/embedfleet-driver", preferences(driver)))
        files.append(ManagedFile("/etc/apt/apt.conf.d/52embedfleet-driver", unattended(driver)))
    if driver.imex_nodes:
        files.append(ManagedFile("/etc/nvidia-imex/nodes_config.cfg", "\n".join((*driver.imex_nodes, ""))))
    return tuple(files)


def certificate_path(system: System, name: str) -> str:
    """Return where a site's authority goes, under a name that tells that it is ours."""
    return f"{system.anchors}/embedfleet-{name}{system.suffix}"

"""NVIDIA's container toolkit on a host: packages, runtimes that know it, a current list of devices, and a proof."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Generator

from pyinfra import host
from pyinfra.api import FunctionCommand, QuoteString, StringCommand, operation
from pyinfra.api.command import PyinfraCommand
from pyinfra.operations import apt

from embedfleet.containers import (
    CONTAINERD_DROP_IN,
    CRIO_DROP_IN,
    PACKAGES,
    REFRESH_DROP_IN,
    REFRESHES,
    UDEV_RULE,
    Toolkit,
    amiss,
    docker_cdi,
    spec_is_current,
    target,
)
from embedfleet.facts.containers import CONTAINERD, KEPT, Containers, ContainerState
from embedfleet.facts.packages import DriverPackages, Packages
from embedfleet.operations import dockerd
from embedfleet.operations.shell import Told, failing, locked
from embedfleet.operations.system import OURS, installed, settled
from embedfleet.problems import Problem
from embedfleet.stack import numbers
from embedfleet.systems import System

_CURE = "see docs/container-toolkit.md, then deploy again"

# nvidia-ctk writes the whole file anew, without its comments, so the original is kept, and containerd is asked what it makes of it.
# The place of the drop-in is named, as 1.18.0 has another one that containerd does not read (nvidia-container-toolkit#1404).
_CONTAINERD = f"""
set -e; umask 022; k={KEPT}; c={CONTAINERD}; install -d -m 700 $k; mkdir -p "${{c%/*}}"
if [ ! -e $k/config.toml ] && [ ! -e $k/config.toml.none ]; then
  if [ -e $c ]; then cp -a $c $k/config.new; mv -f $k/config.new $k/config.toml; else : >$k/config.toml.none; fi
fi
nvidia-ctk runtime configure --runtime=containerd --cdi.enabled @DROP@ 2>$k/said || {{ cat $k/said; exit 1; }}
containerd config dump >/dev/null 2>$k/said || {{ cat $k/said; rm -f {CONTAINERD_DROP_IN}
  if [ -e $k/config.toml ]; then cp -a $k/config.toml $c; else rm -f $c; fi; echo "$c was put back"; exit 1; }}
rm -f $k/said; sha256sum $c >$k/config.toml.after 2>/dev/null || :
"""
_CONTAINERD_BACK = f"""
k={KEPT}; c={CONTAINERD}; rm -f {CONTAINERD_DROP_IN}; rmdir --ignore-fail-on-non-empty /etc/containerd/conf.d 2>/dev/null
if ! sha256sum --status -c $k/config.toml.after 2>/dev/null; then echo "#> $c was changed since, and stays as it is"
elif [ -e $k/config.toml ]; then cp -a $k/config.toml $c; else rm -f $c; fi
systemctl try-restart containerd.service
"""

# The toolkit makes links for all devices that may come; what it does not know (and what a version without the command would make) is
# linked by hand, so that this is done once.
_LINKS = """mkdir -p /dev/char; nvidia-ctk system create-dev-char-symlinks --create-all >/dev/null 2>&1 || :
for n in @NODES@; do set -- $(stat -c '0x%t 0x%T' "$n"); [ -e "/dev/char/$(($1)):$(($2))" ] || ln -s "$n" "/dev/char/$(($1)):$(($2))"; done"""

# The packages' own unit, which runs at boot and when modules change, writes to /var/run/cdi; it skips itself where it finds no module
# on disk. Then the file is made where it was, or in /etc/cdi.
_SPEC = f"""
u=nvidia-cdi-refresh; if systemctl cat $u.service >/dev/null 2>&1; then
  systemctl reset-failed $u.service $u.path 2>/dev/null; systemctl restart $u.service || journalctl -u $u.service -n 6 --no-pager -o cat
fi
grep -qsF '.so.@VERSION@' /var/run/cdi/nvidia.yaml && exit 0
o=/etc/cdi/nvidia.yaml; if [ -e /var/run/cdi/nvidia.yaml ]; then o=/var/run/cdi/nvidia.yaml
elif [ ! -e $o ]; then install -d -m 700 {KEPT} && : >{KEPT}/cdi.ours; fi
mkdir -p "${{o%/*}}" && nvidia-ctk --quiet cdi generate --output=$o
"""

# $1: docker or podman; $2: the image; the rest: how the GPUs are asked for. Without a network, as nothing there needs one.
_PROOF = f"""
e=$1; i=$2; shift 2; trap '$e rm -f embedfleet-proof >/dev/null 2>&1' EXIT
$e image inspect "$i" >/dev/null 2>&1 || timeout -k 10 900 $e pull -q "$i" >/dev/null || {{ echo "$i is not there, and cannot be pulled"; exit 1; }}
o=$(timeout -k 10 120 $e run --rm --name embedfleet-proof --network none "$@" "$i" nvidia-smi -L 2>&1); r=$?
[ $r -eq 0 ] || {{ printf '%s\\n' "$o" | tail -n 8; [ $r -ne 124 ] || echo 'it took more than 120 seconds'; exit 1; }}
printf '%s\\n' "$o" | sed 's/^/#> a container sees /' | head -n 8
install -d -m 700 {KEPT}; echo @TAG@ >{KEPT}/proven
"""

# Folders that came with our files: those that no package knows, and nobody else uses.
_FOLDERS = f"""for d in {" ".join(path.rpartition("/")[0] for path in (UDEV_RULE, REFRESH_DROP_IN, CRIO_DROP_IN))} /etc/udev; do
  dpkg -S "$d" >/dev/null 2>&1 || rpm -qf "$d" >/dev/null 2>&1 || rmdir --ignore-fail-on-non-empty "$d" 2>/dev/null; done; true"""


@operation()
def current(toolkit: Toolkit, system: System) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure the container toolkit, runtimes that know it, and a list of devices that fits the loaded driver.

    + toolkit: what it is to be
    + system: the host's
    """
    have = host.get_fact(DriverPackages, manager=system.manager)
    state = host.get_fact(ContainerState)
    changed = False
    for command in _all(toolkit, system, have, state):
        changed = True
        yield command
    if not changed:
        host.noop(
            f"container toolkit {target(toolkit, have)} is installed, for {', '.join(toolkit.runtimes) or 'no runtime'}"
        )


def _all(toolkit: Toolkit, system: System, have: Packages, state: Containers) -> Generator[PyinfraCommand, None, None]:
    if not state.complete:
        yield _unknown()
        return
    wrong = amiss(toolkit, have)
    if target(toolkit, have) != f"{toolkit.version}-1":
        host.log(f"container toolkit {target(toolkit, have)} is newer than {toolkit.version}, and kept")
    if wrong:
        yield from _installed(toolkit, system, have, wrong)
        state = host.get_fact(ContainerState)
    if "docker" in toolkit.runtimes and state.docker:
        yield from dockerd.configured(state)
    elif "docker" in toolkit.runtimes:
        host.log("there is no docker.service (podman's docker, or a snap): docker is left alone")
    if "containerd" in toolkit.runtimes:
        yield from _containerd(toolkit, state)
    if "crio" in toolkit.runtimes:
        yield from _restart(state, "crio", CRIO_DROP_IN)
    if not state.loaded:
        host.log("no driver is loaded: containers get no GPU until the next deploy")
        return
    yield from _devices(state)
    yield from _proof(toolkit, have, state)


def _unknown() -> FunctionCommand:
    reason = "it cannot be told how container runtimes are configured: the answer did not come back whole"
    return failing(
        Problem(host.name, "container_toolkit", reason, "see that commands run on the host, then run it again")
    )


def _installed(
    toolkit: Toolkit, system: System, have: Packages, wrong: list[str]
) -> Generator[PyinfraCommand, None, None]:
    """All four in one transaction, never below what is there."""
    version = target(toolkit, have)
    host.log(f"install container toolkit {version}: {'; '.join(wrong)}")
    yield from settled(system)
    if system.manager == "apt":
        for command in apt.update._inner():
            yield locked(command, setting="container_toolkit", cure="see whether apt-get update works on the host")
    joint, options = ("=", "--allow-change-held-packages") if system.manager == "apt" else ("-", "--refresh")
    # Only what was not there is ours, and goes with uninstall.py.
    coming = [name for name in PACKAGES if name not in have.found]
    cure = "set container_toolkit_version to one that the repository has (apt-cache madison, dnf list --showduplicates)"
    yield from installed(system, coming, [f"{name}{joint}{version}" for name in PACKAGES], options, cure=cure)


def _containerd(toolkit: Toolkit, state: Containers) -> Generator[PyinfraCommand, None, None]:
    if "containerd" not in state.programs:
        return
    ours = {f"{KEPT}/config.toml", f"{KEPT}/config.toml.none"} & state.ours
    if not state.nvidia:
        host.log(f"add the NVIDIA runtime to {CONTAINERD}")
        drop = f"--drop-in-config={CONTAINERD_DROP_IN}" if numbers(toolkit.version) >= REFRESHES else ""
        yield Told(_CONTAINERD.replace("@DROP@", drop), setting="containerd", cure=_CURE)
        state, ours = host.get_fact(ContainerState), {KEPT}
    if ours:
        yield from _restart(
            state, "containerd", CONTAINERD_DROP_IN if CONTAINERD_DROP_IN in state.times else CONTAINERD
        )


def _restart(state: Containers, name: str, path: str) -> Generator[PyinfraCommand, None, None]:
    """By the time of its file, so that a run which was cut off before is made good; containers of both run on."""
    unit = state.unit(name)
    if unit.active and state.times.get(path, 0) > unit.since:
        host.log(f"restart {name}; its containers run on")
        reload = "systemctl daemon-reload && " if unit.stale else ""
        yield Told(f"{reload}systemctl restart {name}.service", setting=name, cure=f"see journalctl -u {name}.service")


def _devices(state: Containers) -> Generator[PyinfraCommand, None, None]:
    if state.linkless:
        host.log(f"link {len(state.linkless)} devices below /dev/char")
        nodes = " ".join(map(shlex.quote, state.linkless))
        yield Told(_LINKS.replace("@NODES@", nodes), setting="container_toolkit", cure=_CURE)
    if spec_is_current(state.specs, state.loaded):
        return
    host.log(f"list the devices for containers, with driver {state.loaded}")
    yield Told(
        _SPEC.replace("@VERSION@", state.loaded), setting="container_toolkit", cure="see what nvidia-smi says; " + _CURE
    )
    state = host.get_fact(ContainerState)
    if not spec_is_current(state.specs, state.loaded):
        there = ", ".join(sorted({version for versions in state.specs.values() for version in versions})) or "none"
        reason = (
            f"driver {state.loaded} is loaded, and the list of devices for containers (CDI) names libraries of {there}"
        )
        cure = "see whether a reboot is pending (module and libraries of two versions), and `nvidia-ctk cdi generate`"
        yield failing(Problem(host.name, "container_toolkit", reason, cure))


def _proof(toolkit: Toolkit, have: Packages, state: Containers) -> Generator[PyinfraCommand, None, None]:
    """Whether a container sees the GPUs: after a change of anything that it depends on, and until it was seen."""
    docker = "docker" in toolkit.runtimes and bool(state.info)
    if not toolkit.image or not (docker or "podman" in toolkit.runtimes):
        return
    made_of = [toolkit.image, target(toolkit, have), state.loaded, state.docker_version if docker else "podman"]
    tag = hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16]
    if state.proof == tag:
        return
    if not docker:
        words = ["podman", toolkit.image, "--security-opt=label=disable", "--device=nvidia.com/gpu=all"]
    elif docker_cdi(state.docker_version) == "none":
        words = ["docker", toolkit.image, "--runtime=nvidia", "--env=NVIDIA_VISIBLE_DEVICES=all", "--env=NVIDIA_DRIVER_CAPABILITIES=utility"]  # fmt: skip
    else:
        words = ["docker", toolkit.image, "--device=nvidia.com/gpu=all"]
    host.log(f"prove it: nvidia-smi in {toolkit.image}")
    cure = "run it by hand (docs/container-toolkit.md); container_toolkit_image names an image that the host has, or can pull"
    yield Told("set --", *(QuoteString(word) for word in words), f"; {_PROOF.replace('@TAG@', tag)}", setting="container_toolkit_image", cure=cure)  # fmt: skip


@operation()
def removed() -> Generator[PyinfraCommand, None, None]:
    """Ensure that no container runtime has anything of ours in its configuration; packages are another matter."""
    state = host.get_fact(ContainerState)
    if not state.complete:
        yield _unknown()
        return
    if not state.ours:
        host.noop("no container runtime was configured by a deploy")
        return
    yield from dockerd.restored(state)
    if {f"{KEPT}/config.toml", f"{KEPT}/config.toml.none"} & state.ours:
        host.log("take the NVIDIA runtime out of containerd")
        yield Told(_CONTAINERD_BACK, setting="containerd", cure="see journalctl -u containerd.service, then run uninstall.py again")  # fmt: skip
    if f"{KEPT}/cdi.ours" in state.ours:
        yield StringCommand("rm -f /etc/cdi/nvidia.yaml; rmdir --ignore-fail-on-non-empty /etc/cdi 2>/dev/null || :")
    files = [path for path in (UDEV_RULE, REFRESH_DROP_IN, CRIO_DROP_IN) if path in state.ours]
    if files:
        host.log(f"remove {', '.join(files)}")
        yield StringCommand("rm -f --", *(QuoteString(path) for path in files), f"\n{_FOLDERS}")
        if REFRESH_DROP_IN in files:
            yield StringCommand("systemctl daemon-reload")
        if CRIO_DROP_IN in files:
            yield StringCommand("systemctl try-restart crio.service")
    # What the package's unit wrote outlives the package.
    yield StringCommand(
        f"! grep -qsx nvidia-container-toolkit-base {OURS} || {{ systemctl stop nvidia-cdi-refresh.path nvidia-cdi-refresh.service 2>/dev/null; rm -f /var/run/cdi/nvidia.yaml; }}"
    )
    yield StringCommand(f"rm -rf --one-file-system -- {KEPT}")

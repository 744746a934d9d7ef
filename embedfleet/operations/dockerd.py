"""Docker told of the NVIDIA runtime, with as little disturbance as it allows, and made to forget it again."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Generator
from typing import Any

from pyinfra import host
from pyinfra.api import FileUploadCommand, QuoteString, StringCommand
from pyinfra.api.command import PyinfraCommand

from embedfleet.containers import docker_cdi, sets_runtimes
from embedfleet.daemonjson import Odd, live_restore, takes_cdi, untouched, with_nvidia, without_nvidia
from embedfleet.facts.containers import DAEMON, KEPT, Containers, ContainerState
from embedfleet.operations.shell import Told, failing
from embedfleet.problems import Problem

# $1: the file, links followed; $2: its new content; $3: "own" where nothing of ours is in it, so that it is the one to come back to
# with uninstall.py. Owner and mode stay. dockerd tells about the content before it counts, where it can (23 and newer).
_WRITE = f"""
set -e; umask 022; k={KEPT}; new="$1.embedfleet-new"; mkdir -p "${{1%/*}}"; install -d -m 700 $k
if [ "$3" = own ] || {{ [ ! -e $k/daemon.json ] && [ ! -e $k/daemon.json.none ]; }}; then
  if [ -e "$1" ]; then cp -a "$1" $k/daemon.new; mv -f $k/daemon.new $k/daemon.json; rm -f $k/daemon.json.none
  else : >$k/daemon.json.none; rm -f $k/daemon.json; fi
fi
rm -f $k/last; if [ -e "$1" ]; then cp -a "$1" "$new"; cp -a "$1" $k/last; else install -m 644 /dev/null "$new"; fi
cat "$2" >"$new"; rm -f "$2"
if dockerd --help 2>&1 | grep -q -e --validate; then
  dockerd --validate --config-file "$new" >"$new.said" 2>&1 || {{ cat "$new.said"; rm -f "$new" "$new.said"; exit 1; }}; rm -f "$new.said"
fi
mv -f "$new" "$1"
"""

# dockerd takes new runtimes over at a reload, which no container notices (moby daemon/reload.go); it says nothing about how that went.
_RELOAD = """systemctl reload docker.service || :
n=0; until timeout 15 docker info --format '{{json .Runtimes}}' 2>/dev/null | grep -q '"nvidia"' || [ $n -ge 20 ]; do n=$((n+1)); sleep 0.5; done"""

_RESTART = """
if systemctl restart docker.service && timeout 60 sh -c 'until timeout 15 docker info >/dev/null 2>&1; do sleep 0.5; done'; then exit 0; fi
journalctl -u docker.service -n 6 --no-pager -o cat
"""
# $1 as above.
_BACK = f"""
if [ -e {KEPT}/last ]; then cp -a {KEPT}/last "$1.embedfleet-new" && mv -f "$1.embedfleet-new" "$1"; else rm -f "$1"; fi
systemctl reset-failed docker.service 2>/dev/null
systemctl restart docker.service && echo "daemon.json was put back, and docker runs again" || echo "daemon.json was put back, and docker does not start with it either"
"""

_CURE = "see `journalctl -u docker.service` and docs/container-toolkit.md, then deploy again"


def configured(state: Containers) -> Generator[PyinfraCommand, None, None]:
    """The runtime in daemon.json, and in the docker that runs: by a reload, or by a restart where nothing else helps."""
    if flag := sets_runtimes(state.arguments):
        host.log(f"docker.service has {flag}, and docker starts with no second opinion: {DAEMON} is left alone")
        return
    cdi = docker_cdi(state.docker_version) == "flag"
    try:
        _readable(state)
        new = with_nvidia(state.daemon, cdi=cdi)
    except Odd as error:
        yield failing(_odd(str(error)))
        return
    if new is not None:
        host.log(f"add the NVIDIA runtime{' and CDI' if cdi else ''} to {state.daemon_path}")
        yield from _written(
            state.daemon_path,
            new,
            f'set -- "$1" "$2" {"own" if untouched(state.daemon) else "ours"}; {_WRITE}',
            cure="correct what dockerd says about the file, then deploy again",
        )
        state = host.get_fact(ContainerState)
    if not state.info:  # it reads the file when it starts
        if state.unit("docker").active:
            host.log("docker runs and does not answer: it is not restarted")
        return
    if "nvidia" not in _runtimes(state.info):
        host.log("reload docker; its containers run on")
        yield Told(_RELOAD, setting="docker", cure=_CURE)
        state = host.get_fact(ContainerState)
    if "nvidia" not in _runtimes(state.info) or (cdi and _cdi_waits(state)):
        yield from _restarted(state, written=new is not None)


def restored(state: Containers) -> Generator[PyinfraCommand, None, None]:
    """daemon.json without what we added to it, as it was to the byte where nobody else changed it."""
    kept, none = f"{KEPT}/daemon.json", f"{KEPT}/daemon.json.none"
    if not {kept, none} & state.ours:
        return
    try:
        _readable(state)
        new = without_nvidia(state.daemon, state.before)
    except Odd as error:
        host.log(f"{DAEMON} is left as it is: {error}")
        return
    path = QuoteString(state.daemon_path)
    if new is not None and new != state.before:
        host.log(f"take the NVIDIA runtime out of {state.daemon_path}")
        script = 'set -e; cp -a "$1" "$1.embedfleet-new"; cat "$2" >"$1.embedfleet-new"; rm -f "$2"; mv -f "$1.embedfleet-new" "$1"'
        yield from _written(
            state.daemon_path, new, script, cure="see why the file cannot be written, then run uninstall.py again"
        )
    elif new is not None and state.daemon != state.before:
        host.log(f"put {state.daemon_path} back")
        back = f'set -e; cp -a {kept} "$1.embedfleet-new"; mv -f "$1.embedfleet-new" "$1"'
        yield Told("set --", path, f"; {back}", setting="docker", cure="see why the file cannot be written")
    elif new is None and state.daemon is not None:
        host.log(f"remove {state.daemon_path}, which was not there before")
        yield StringCommand("rm -f --", path)
    if state.info and new != state.daemon:
        yield StringCommand("systemctl reload docker.service || :")


def _readable(state: Containers) -> None:
    """:raises Odd: where the file is there and cannot be read"""
    if state.unreadable:
        raise Odd(state.unreadable)


def _odd(reason: str) -> Problem:
    return Problem(
        host.name, "docker", f"{DAEMON}: {reason}; it was not touched",
        f"correct the file (python3 -m json.tool {DAEMON} shows where), or set container_runtimes to leave docker out",
        matters="docker does not start with such a file, and merging would lose what it was meant to say",
    )  # fmt: skip


def _runtimes(info: dict[str, Any]) -> dict[str, Any]:
    found = info.get("Runtimes")
    return found if isinstance(found, dict) else {}


def _cdi_waits(state: Containers) -> bool:
    """Whether the file turns CDI on, and the docker that runs was started before: it looks at that once, at its start."""
    return not state.info.get("CDISpecDirs") and takes_cdi(state.daemon)


def _restarted(state: Containers, *, written: bool) -> Generator[PyinfraCommand, None, None]:
    """Paired with a daemon-reload where systemd has an old unit (deepops#1109), and only there: see toolkit#48."""
    ends = bool(state.running) and not (live_restore(state.daemon) or "--live-restore" in state.arguments)
    names = f"{', '.join(state.running[:5])}{f' and {len(state.running) - 5} more' if len(state.running) > 5 else ''}"
    host.log(f"restart docker{f', which ends {names} (live-restore is off)' if ends else ''}")
    reload = "systemctl daemon-reload\n" if state.unit("docker").stale else ""
    yield Told(
        "set --", QuoteString(state.daemon_path), f"\n{reload}{_RESTART}{_BACK if written else ''}exit 1", setting="docker", cure=_CURE
    )  # fmt: skip


def _written(path: str, text: str, script: str, cure: str) -> Generator[PyinfraCommand, None, None]:
    temp = str(host.get_temp_filename(f"embedfleet-{hashlib.sha256((path + text).encode()).hexdigest()}"))
    yield FileUploadCommand(io.StringIO(text), temp)
    yield Told("set --", QuoteString(path), QuoteString(temp), f"; {script}", setting="docker", cure=cure)

"""A Docker engine: the one that runs, or one installed from the distribution's packages and started here."""

from __future__ import annotations

import functools
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.targets.host import RigError, as_root, cache_dir, ensure_tool, find_tool, lock, run, say

START_LIMIT_S = 60

#: Exists where systemd is PID 1 (sd_booted(3)).
SYSTEMD = Path("/run/systemd/system")

#: Kept, because Python warns about a child that still runs when its object goes away, and this one is meant to.
_started: list[subprocess.Popen[bytes]] = []


def _answers(prefix: Sequence[str]) -> bool:
    """Whether an engine answers `docker info` (the client alone exits 1, or prints no server version)."""
    try:
        done = subprocess.run(
            [*prefix, "docker", "info", "--format", "{{.ServerVersion}}"],
            capture_output=True,
            text=True,
            timeout=30,
            stdin=subprocess.DEVNULL,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and bool(done.stdout.strip())


@functools.cache
def docker_words() -> tuple[str, ...]:
    """`docker`, or `sudo -n docker` for a user outside the docker group; an error when no engine answers."""
    for prefix in ([], as_root()):
        if _answers(prefix):
            return (*prefix, "docker")
    raise RigError("no Docker engine answers `docker info`", "run `python -m tests.targets.rig up`, or start dockerd")


def docker(*args: str | Path, stdin: str | None = None, timeout: float | None = 600) -> str:
    """Run a docker command; its stdout, or a RigError."""
    return run([*docker_words(), *args], cure="see `docker info` and the engine's log", stdin=stdin, timeout=timeout)


def ensure_engine() -> None:
    """Make sure that a Docker engine answers; a running one is used as it is."""
    if _answers([]) or _answers(as_root()):
        return
    with lock("engine"):
        if _answers([]) or _answers(as_root()):  # another checkout started it while this one waited
            return
        say(f"no Docker engine answers: starting one (a minute if it must be installed; limit {START_LIMIT_S} s)")
        ensure_tool("dockerd", "docker.io", "iptables")
        ensure_tool("iptables", "iptables")
        if SYSTEMD.is_dir():
            run([*as_root(), "systemctl", "start", "docker"], cure="read `journalctl -u docker`")
            _wait(None, None)
        else:
            _start_in_background()


def _start_in_background() -> None:
    """dockerd where no init system runs; its own session, so that it outlives this process and its terminal."""
    log = cache_dir() / "dockerd.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*as_root(), find_tool("dockerd") or "dockerd"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )
    _started.append(process)
    _wait(process, log)


def _wait(process: subprocess.Popen[bytes] | None, log: Path | None) -> None:
    """Until the engine answers; ends early when the process is gone."""
    where = f"read {log}" if log else "read `journalctl -u docker`"
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        ended = process is not None and process.poll() is not None
        if _answers([]) or _answers(as_root()):
            say("the Docker engine answers")
            return
        if ended and process is not None and log is not None:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
            raise RigError(
                f"dockerd ended with {process.returncode}:\n{tail}",
                f"{where}; dockerd needs root, iptables, a cgroup mount and overlay2 (or another storage driver)",
            )
        time.sleep(0.2)
    raise RigError(f"the Docker engine didn't answer within {START_LIMIT_S} s", where)

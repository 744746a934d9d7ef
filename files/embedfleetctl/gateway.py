"""Take an instance out of the gateway and put it back: what rollouts, the watchdog and people use.

One file an instance that is out says since when, by whom and why; nginx's upstream list is rendered from them.
vLLM's own drain answers 500 to running embedding requests (knowledge: pooling models' results are post-processed on an
executor that shutdown closes first), so draining happens here: out of the gateway, wait until nothing runs or waits.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any

from embedfleetctl import http
from embedfleetctl.common import Failure, host_settings, lock, read_json, run, say, wait_until, write_atomic

STATE = Path("/var/lib/embedfleet/gateway")
UPSTREAMS = STATE / "upstreams.conf"
NGINX_CONF = Path("/etc/embedfleet/nginx.conf")
UNIT_FILE = Path("/etc/systemd/system/embedfleet-gateway.service")
APPLIED = STATE / "applied"
UNIT = "embedfleet-gateway.service"


def outs() -> dict[int, dict[str, Any]]:
    """Return the instances that are out: port -> {by, reason, since}."""
    found = {int(path.stem): read_json(path) for path in STATE.glob("*.out") if path.stem.isdigit()}
    return dict(sorted(found.items()))


def render(ports: list[int], out: set[int]) -> str:
    """Return nginx's upstream servers. max_fails=0: an instance is out when we say so, not when a request fails."""
    lines = [f"server 127.0.0.1:{port}{' down' if port in out else ' max_fails=0'};" for port in ports]
    return "\n".join(lines) + "\n"


def wanted_hashes() -> str:
    """Return the hashes of what the running nginx must have been started with (its unit) and has read (the rest)."""

    def digest(*paths: Path) -> str:
        return hashlib.sha256(b"".join(path.read_bytes() if path.exists() else b"-" for path in paths)).hexdigest()

    return f"{digest(UNIT_FILE)} {digest(NGINX_CONF, UPSTREAMS)}"


def recorded_hashes() -> str:
    """Return the hashes as they were when the gateway last took them on."""
    return APPLIED.read_text(encoding="ascii") if APPLIED.exists() else ""


def active() -> bool:
    """Say whether the gateway's unit is active."""
    return run(["systemctl", "is-active", "--quiet", UNIT], check=False).returncode == 0


def applied(runs: bool | None = None) -> bool:
    """Say whether the gateway runs with what is on disk; `runs`: whether it is active, where the caller knows."""
    settings = host_settings()
    current = UPSTREAMS.read_text(encoding="utf-8") if UPSTREAMS.exists() else ""
    rendered = render(settings["instances"], set(outs()))
    return current == rendered and recorded_hashes() == wanted_hashes() and (active() if runs is None else runs)


def sync() -> str:
    """Render the upstream list from the state files, on disk only; return what was there before."""
    before = UPSTREAMS.read_text(encoding="utf-8") if UPSTREAMS.exists() else ""
    wanted = render(host_settings()["instances"], set(outs()))
    if before != wanted:
        write_atomic(UPSTREAMS, wanted)
    return before


def apply() -> None:
    """Make the running gateway what the files say: test the configuration, then reload (or start) it.

    :raises Failure: when nginx refuses the configuration; the one that runs stays as it is
    """
    with lock("gateway"):
        before = sync()
        tested = run(
            [
                "runuser",
                "-u",
                host_settings()["service_user"],
                "--",
                "/usr/sbin/nginx",
                "-t",
                "-q",
                "-c",
                str(NGINX_CONF),
            ],
            check=False,
        )
        if tested.returncode:
            if before:
                write_atomic(UPSTREAMS, before)
            raise Failure(
                "gateway_port",
                f"nginx refuses its configuration: {tested.stderr.strip()[-500:]}",
                f"correct the gateway settings; by hand: nginx -t -c {NGINX_CONF}",
            )
        unit_changed = recorded_hashes().split(" ")[0] != wanted_hashes().split(" ")[0]
        run(["systemctl", "daemon-reload"])
        run(["systemctl", "enable", "--quiet", UNIT])
        if unit_changed or not active():
            done = run(["systemctl", "restart", UNIT], check=False)
        else:
            done = run(["systemctl", "reload", UNIT], check=False)
        if done.returncode or not active():
            raise Failure(
                "gateway_port", f"the gateway does not start: {done.stderr.strip()[-300:]}", f"journalctl -u {UNIT}"
            )
        write_atomic(APPLIED, wanted_hashes())


def take_out(port: int, by: str, reason: str, limit: float, last: bool = False) -> None:
    """Take an instance out and wait until nothing runs or waits in it.

    :param by: rollout, watchdog or a person's name; the next rollout puts back only what a rollout took out
    :param limit: seconds to wait for the running requests
    :param last: allow to take out the only instance that is in
    :raises Failure: for an unknown port, the last one, or requests still running after `limit` (it stays out)
    """
    ports = host_settings()["instances"]
    if port not in ports:
        raise Failure("port", f"{port} is no instance of this host", f"one of {', '.join(map(str, ports))}")
    with lock("gateway-state"):
        out = outs()
        if not last and port not in out and set(ports) - set(out) <= {port}:
            raise Failure(
                "port", f"{port} is the last instance in the gateway", "put another one in first, or say --last"
            )
        if port not in out:
            write_atomic(STATE / f"{port}.out", json.dumps({"by": by, "reason": reason, "since": int(time.time())}))
    if not applied():
        apply()
    if not drained(port, limit):
        raise Failure(
            "drain_timeout",
            f"instance {port} still has requests after {limit:.0f} s; it stays out of the gateway",
            f"wait, raise drain_timeout, or put it back: embedfleetctl gateway in {port}",
        )


def put_in(port: int) -> None:
    """Put an instance back into the gateway."""
    (STATE / f"{port}.out").unlink(missing_ok=True)
    if not applied():
        apply()


def load(port: int) -> float | None:
    """Return requests running plus waiting in an instance; None when it does not answer."""
    try:
        text = http.get(f"http://127.0.0.1:{port}/metrics")[1].decode("utf-8", "replace")
    except OSError:
        return None
    found = re.findall(r"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? ([0-9.eE+-]+)$", text, re.MULTILINE)
    return sum(map(float, found)) if found else None


def drained(port: int, limit: float) -> bool:
    """Wait until an instance is idle: three looks in a row, since a request may be on its way from nginx's old workers."""
    idle = 0

    def quiet() -> bool:
        nonlocal idle
        current = load(port)
        if current is None and not _listens(port):
            return True  # no process listens: nothing can run in it
        idle = idle + 1 if current == 0 else 0
        return idle >= 3

    return wait_until(quiet, limit, 0.3)


def _listens(port: int) -> bool:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        if any(f":{port:04X} " in row and " 0A " in row for row in rows):
            return True
    return False


def recover() -> None:
    """Before nginx starts: put back what a rollout that is no longer at work had taken out."""
    from embedfleetctl.jobs import running

    if not running("activate"):
        for port, state in outs().items():
            if state.get("by") == "rollout":
                say(f"instance {port} was left out by a rollout that ended: put back")
                (STATE / f"{port}.out").unlink(missing_ok=True)
    sync()

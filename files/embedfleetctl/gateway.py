"""Take an instance out of the gateway and put it back: what rollouts, the watchdog and people use.

One file an instance that is out says since when, by whom and why; nginx's upstream list is rendered from them.
vLLM's own drain answers 500 to running embedding requests (the results of pooling models are post-processed on an
executor that shutdown closes first; seen with 0.32), so draining happens here: out of the gateway, wait until nothing runs or waits.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

from embedfleetctl import http
from embedfleetctl.common import Failure, host_settings, lock, read_json, run, say, wait_until, write_atomic
from embedfleetctl.instances import enabled_ports

STATE = Path("/var/lib/embedfleet/gateway")
UPSTREAMS = STATE / "upstreams.conf"
STAMP = STATE / "stamp.conf"
SERIAL = STATE / "serial"  # another one in every apply, so that the stamp proves this reload and no earlier one
UNIT_STARTED = STATE / "unit"  # hash of what only a start takes on, as the gateway was last started
STALE = STATE / "stale"  # the deploy touches it before it changes nginx.conf or the unit
NGINX_CONF = Path("/etc/embedfleet/nginx.conf")
UNIT_FILE = Path("/etc/systemd/system/embedfleet-gateway.service")
UNIT = "embedfleet-gateway.service"


def outs() -> dict[int, dict[str, Any]]:
    """Return the instances that are out: port -> {by, reason, since}."""
    found = {int(path.stem): read_json(path) for path in STATE.glob("*.out") if path.stem.isdigit()}
    return dict(sorted(found.items()))


def known_ports() -> list[int]:
    """Return the ports that the gateway knows: those of the settings, and those that still are to be taken away."""
    return sorted({*host_settings()["instances"], *enabled_ports()})


def render(ports: list[int], down: set[int]) -> str:
    """Return nginx's upstream servers. max_fails=0: an instance is out when we say so, not when a request fails."""
    lines = [f"server 127.0.0.1:{port}{' down' if port in down else ' max_fails=0'};" for port in ports]
    return "\n".join(lines) + "\n"


def wanted_upstreams() -> str:
    """Return the upstream list as it should be: an instance is enabled once it was proven, and gets nothing before."""
    ports = known_ports()
    return render(ports, {*outs(), *(set(ports) - enabled_ports())})


def stamp() -> str:
    """Return the hash of what nginx reads; the running nginx tells the one that it has read."""
    files = (NGINX_CONF, UPSTREAMS, SERIAL)
    return hashlib.sha256(b"".join(p.read_bytes() if p.exists() else b"-" for p in files)).hexdigest()


def url() -> str:
    """Return where this host reaches its own gateway."""
    gateway = host_settings()["gateway"]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(gateway["host"], gateway["host"])
    return f"http://[{host}]:{gateway['port']}" if ":" in host else f"http://{host}:{gateway['port']}"


def live() -> str:
    """Return the stamp that the running nginx tells; empty when it tells none."""
    try:
        status, body = http.get(f"{url()}/.embedfleet/stamp", limit=2)
    except OSError:
        return ""
    return body.decode("ascii", "replace").strip() if status == 200 else ""


def _start_hash() -> str:
    """Return the hash of what only a start takes on.

    The unit, and the address: to bind one that overlaps the old one fails in a reload, and nginx goes on as it was.
    """
    unit = UNIT_FILE.read_bytes() if UNIT_FILE.exists() else b"-"
    return hashlib.sha256(unit + host_settings()["gateway"]["host"].encode()).hexdigest()


def _start_current() -> bool:
    """Say whether a reload is enough for what is on disk."""
    return UNIT_STARTED.exists() and UNIT_STARTED.read_text(encoding="ascii") == _start_hash()


def active() -> bool:
    """Say whether the gateway's unit is active."""
    return run(["systemctl", "is-active", "--quiet", UNIT], check=False).returncode == 0


def applied() -> bool:
    """Say whether the gateway runs with what is on disk: asked of the running nginx, not of a note of ours."""
    current = UPSTREAMS.read_text(encoding="utf-8") if UPSTREAMS.exists() else ""
    return not STALE.exists() and current == wanted_upstreams() and _start_current() and live() == stamp()


def sync() -> str:
    """Render the upstream list and the stamp from the state files, on disk only; return the upstreams before."""
    before = UPSTREAMS.read_text(encoding="utf-8") if UPSTREAMS.exists() else ""
    if before != wanted_upstreams():
        write_atomic(UPSTREAMS, wanted_upstreams())
    write_atomic(STAMP, f'map "" $embedfleet_stamp {{ default "{stamp()}"; }}\n')
    return before


def _tested() -> str:
    """Return what nginx has against the configuration, asked as it will run: as its user, with a /tmp of its own."""
    host = host_settings()["gateway"]["host"]
    try:  # `nginx -t` binds nothing, and a restart that cannot bind takes the running gateway with it
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host, 0))
    except OSError as error:
        return f"{host}: {error.strerror}"
    sandbox = [f"User={host_settings()['service_user']}", "PrivateTmp=yes", "AmbientCapabilities=CAP_NET_BIND_SERVICE"]
    nginx = ["/usr/sbin/nginx", "-t", "-q", "-c", str(NGINX_CONF), "-g", "pid /tmp/nginx.pid;"]
    properties = [f"--property={value}" for value in sandbox]
    done = run(["systemd-run", "--quiet", "--wait", "--pipe", "--collect", *properties, *nginx], check=False)
    return (done.stderr or done.stdout).strip()[-500:] or "no reason given" if done.returncode else ""


def apply() -> None:
    """Make the running gateway what the files say: test, reload (or start), and have nginx tell that it took it on.

    A reload is a signal: nginx may fail to take it on and go on with what it had. So it is asked, and restarted where a
    reload was not enough.

    :raises Failure: when nginx refuses the configuration (the one that runs stays as it is), or does not take it on
    """
    with lock("gateway"):
        write_atomic(SERIAL, os.urandom(8).hex())
        before = sync()
        against = _tested()
        if against:
            if before:
                write_atomic(UPSTREAMS, before)
            raise Failure(
                "gateway_host",
                f"nginx refuses its configuration: {against}",
                f"correct the gateway settings; by hand: nginx -t -c {NGINX_CONF}",
            )
        run(["systemctl", "daemon-reload"])
        run(["systemctl", "enable", "--quiet", UNIT])
        verbs = ["reload", "restart"] if active() and _start_current() else ["restart"]
        if not any(_taken_on(verb) for verb in verbs):
            said = run(["journalctl", "--no-pager", "-o", "cat", "-n", "3", "-u", UNIT], check=False).stdout.strip()
            raise Failure(
                "gateway_host", f"the gateway does not take its configuration on: {said}", f"journalctl -u {UNIT}"
            )
        write_atomic(UNIT_STARTED, _start_hash())
        STALE.unlink(missing_ok=True)


def _taken_on(verb: str) -> bool:
    """Reload or restart the gateway; say whether the running nginx then has what is on disk."""
    run(["systemctl", "reset-failed", UNIT], check=False)
    done = run(["systemctl", verb, UNIT], check=False)
    return done.returncode == 0 and wait_until(lambda: live() == stamp(), 5, 0.05)


def take_out(port: int, by: str, reason: str, limit: float, last: bool = False) -> None:
    """Take an instance out and wait until nothing runs or waits in it.

    :param by: rollout, watchdog or a person's name; the next rollout puts back only what a rollout took out
    :param limit: seconds to wait for the running requests
    :param last: allow to take out the only instance that is in
    :raises Failure: for an unknown port, the last one, or requests still running after `limit` (it stays out)
    """
    ports = known_ports()
    if port not in ports:
        raise Failure("port", f"{port} is no instance of this host", f"one of {', '.join(map(str, ports))}")
    with lock("gateway-state"):
        out = outs()
        if not last and port not in out and enabled_ports() - set(out) <= {port}:
            raise Failure(
                "port", f"{port} is the last instance in the gateway", "put another one in first, or say --last"
            )
        if port not in out:
            write_atomic(STATE / f"{port}.out", json.dumps({"by": by, "reason": reason, "since": int(time.time())}))
    if not applied():
        apply()
    # A worker from before the reload still has the old list, and may be receiving a body that it will send to `port`.
    wait_until(lambda: not old_workers(), min(limit, 15), 0.1)
    if not drained(port, limit):
        raise Failure(
            "drain_timeout",
            f"instance {port} still has requests after {limit:.0f} s; it stays out of the gateway",
            f"wait, raise drain_timeout, or put it back: embedfleetctl gateway in {port}",
        )


def old_workers() -> bool:
    """Say whether a worker of the gateway from before its last reload is still finishing requests."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"nginx: worker process is shutting down" in path.read_bytes():
                return True
        except OSError:
            continue
    return False


def put_in(port: int) -> None:
    """Put an instance back into the gateway. :raises Failure: for an unknown port."""
    known = {*known_ports(), *outs()}
    if port not in known:
        raise Failure("port", f"{port} is no instance of this host", f"one of {', '.join(map(str, sorted(known)))}")
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

"""Long work outlives a lost controller: it runs in a systemd unit of a fixed name, and callers follow its log.

A second caller, or the same one after its connection broke, attaches to the running unit instead of starting the
work twice.
"""

from __future__ import annotations

import json
import time
from typing import Any

from embedfleetctl.common import LOGS, RESULTS, ROOT, Failure, lock, read_json, run, wait_until, write_atomic


def unit_of(name: str) -> str:
    """Return the unit's name of a job."""
    return f"embedfleet-job-{name}.service"


def running(name: str) -> bool:
    """Say whether the job's unit is at work now."""
    state = run(["systemctl", "show", "-p", "ActiveState", "--value", unit_of(name)]).stdout.strip()
    return state in ("active", "activating", "deactivating")


def start(name: str, argv: list[str], limit: int) -> None:
    """Start a job's unit; its output goes to /var/log/embedfleet/NAME.log."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{name}.log"
    (RESULTS / f"{name}.json").unlink(missing_ok=True)
    log.write_text("", encoding="utf-8")
    run(["systemctl", "reset-failed", unit_of(name)], check=False)
    run(
        [
            "systemd-run",
            "--quiet",
            "--collect",
            "--no-block",
            f"--unit={unit_of(name)}",
            "-p",
            f"RuntimeMaxSec={limit}",
            "-p",
            "OOMPolicy=stop",
            "-p",
            f"StandardOutput=append:{log}",
            "-p",
            f"StandardError=append:{log}",
            f"{ROOT}/bin/embedfleetctl",
            *argv,
        ]
    )


def follow(name: str, every: float = 0.2, beat: float = 30) -> None:
    """Show the job's progress until it ends, looking every 0.2 s at first and every second later.

    A job's last act is its result; systemd is asked now and then whether it still runs, for one that was ended from outside.

    :raises Failure: as the job did, with the end of its log
    """
    log, told = LOGS / f"{name}.log", RESULTS / f"{name}.json"
    begun = last = time.monotonic()
    asked = begun - 60
    position = 0
    while True:
        # before reading, so that nothing written before the end is missed
        alive = not told.exists()
        if alive and time.monotonic() - asked > 3:
            asked = time.monotonic()
            alive = running(name) or _comes(name)
        with open(log, "rb") as handle:
            handle.seek(position)
            for line in handle:
                if not line.endswith(b"\n"):
                    break
                position += len(line)
                if line.startswith(b"#> "):
                    print(line[3:].decode("utf-8", "replace").rstrip(), flush=True)
                    last = time.monotonic()
        if not alive:
            break
        if time.monotonic() - last > beat:
            last = time.monotonic()
            print(f"... {name}: at work for {last - begun:.0f} s, log {log}", flush=True)
        time.sleep(every if time.monotonic() - begun < 5 else 5 * every)
    wait_until(lambda: not running(name), 30)  # the next job of this name would attach to what is ending
    result = read_json(RESULTS / f"{name}.json")
    if result.get("ok"):
        return
    tail = _tail(name)
    if not result:
        raise Failure(
            "host",
            f"{name} was ended from outside (reboot, out of memory, time limit or kill)\n{tail}",
            f"run the deploy again: it goes on from what is finished. Full log: {log}",
        )
    raise Failure(result["setting"], f"{result['reason']}\n{tail}".rstrip(), f"{result['cure']}. Full log: {log}")


def _comes(name: str) -> bool:
    """Ask again for a unit that does not run: one that was just queued shows as inactive for a moment."""
    time.sleep(1)
    return running(name)


def _tail(name: str, count: int = 15) -> str:
    try:
        lines = (LOGS / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    shown = [line for line in lines if not line.startswith("#> ")][-count:]
    return "\n".join(["last lines of the log:", *("  | " + line for line in shown)]) if shown else ""


def wait_for_another(name: str, part: str, limit: int) -> None:
    """Let a running job of this name for another part end first; its outcome is its own caller's business."""
    if not running(name) or f" {part} " in run(["systemctl", "show", "-p", "ExecStart", unit_of(name)]).stdout:
        return
    print(f"{name} of another release is at work: waiting for it", flush=True)
    if not wait_until(lambda: not running(name), limit, 1):
        raise Failure("host", f"{unit_of(name)} is at work for over {limit} s", f"systemctl status {unit_of(name)}")


def finish(name: str, failure: Failure | None) -> None:
    """Record how a job ended; called by the job itself."""
    result: dict[str, Any] = {"ok": failure is None, **(failure.as_dict() if failure else {})}
    write_atomic(RESULTS / f"{name}.json", json.dumps(result))


def run_job(name: str, argv: list[str], limit: int) -> None:
    """Start the job, or attach to it if it is at work, and follow it to its end."""
    with lock(f"start-{name}"):  # two controllers at once: one starts it, the other attaches
        if running(name):
            print(f"{name} is at work already: attaching", flush=True)
        else:
            start(name, argv, limit)
    follow(name)

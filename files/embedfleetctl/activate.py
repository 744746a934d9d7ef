"""Make a release current: prove it beside the running one, then switch instance by instance, or switch back.

The links are switched first, the instances follow one by one: an instance that crashes in between comes up with a
release that was proven a moment ago. A rollout file remembers where to go back to, so that an activation that was
killed anywhere is finished (or undone) by the next one.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from embedfleetctl import gateway
from embedfleetctl.common import (
    ROOT,
    Failure,
    host_settings,
    lock,
    read_json,
    release_of,
    run,
    say,
    switch_link,
    write_atomic,
)
from embedfleetctl.instances import CANDIDATE, UNIT, Instance, present_ports, probe_spec, states
from embedfleetctl.make import manifest
from embedfleetctl.probe import Wrong, probe
from embedfleetctl.prune import prune

ROLLOUT = Path("/var/lib/embedfleet/rollout.json")


def activate(release: str) -> None:
    """Make `release` current and every instance run it, proven.

    :raises Failure: when it does not prove itself; what ran before runs again then
    """
    settings = host_settings()
    if not manifest("releases", release):
        there = ", ".join(sorted(path.parent.name for path in (ROOT / "releases").glob("*/manifest.json"))) or "none"
        raise Failure("release", f"there is no finished release {release}", f"there are: {there}; or run the deploy")
    with lock("activate", limit=5):
        run(["systemctl", "daemon-reload"])
        stop_candidates()
        somebody_answers(release, settings["instances"])
        rollout = read_json(ROLLOUT)
        if rollout.get("to") == release:  # an earlier activation of it proved it, switched `current`, and died
            say(f"going on with the rollout of {release}")
        else:
            rollout = {"from": release_of("current"), "to": release, "previous": release_of("previous")}
            if rollout["from"] not in (None, release):
                prove_beside(release, settings)
            write_atomic(ROLLOUT, json.dumps(rollout))
        old, before = rollout.get("from"), rollout.get("previous")
        point(current=release, previous=old if old and old != release else before)
        try:
            roll(release, settings)
        except Failure as failure:
            if old == release:  # a repair of what is current: there is nothing to go back to, and nothing to stop
                raise
            back(failure, old, before, settings)
        remove_unwanted(settings)
        ROLLOUT.unlink(missing_ok=True)
        prune(settings["keep_releases"])


def behind(release: str, ports: list[int]) -> list[Instance]:
    """Return the instances that do not run `release`, proven; those that serve nobody first."""
    out = gateway.outs()
    todo = [i for i in states(ports) if not (i.up and i.unit_current and i.release == release)]
    return sorted(todo, key=lambda instance: instance.up and instance.port not in out)


def somebody_answers(release: str, ports: list[int]) -> None:
    """Refuse a rollout that would take the last instance out since people hold the others out.

    A host with one instance has no choice: there a switch is a gap.
    """
    held = {port: state for port, state in gateway.outs().items() if state.get("by") != "rollout" and port in ports}
    left = [port for port in ports if port not in held]
    if len(ports) > 1 and len(left) == 1 and any(i.port == left[0] and i.up for i in behind(release, ports)):
        who = ", ".join(f"{port} by {state.get('by', '?')} ({state.get('reason', '')})" for port, state in held.items())
        raise Failure(
            "instance_ports",
            f"out of the gateway: {who}; switching {left[0]} would leave nobody to answer",
            f"put one back first: embedfleetctl gateway in {next(iter(held))}",
        )


def point(current: str | None, previous: str | None) -> None:
    """Set the links; None removes one."""
    for name, target in (("previous", previous), ("current", current)):
        if target:
            if release_of(name) != target:
                switch_link(ROOT / name, f"releases/{target}")
        else:
            (ROOT / name).unlink(missing_ok=True)


def prove_beside(release: str, settings: dict[str, Any]) -> None:
    """Start the release on the side port, have right embeddings from it, stop it. The running one is not touched."""
    port, unit = settings["side_port"], CANDIDATE.format(settings["side_port"])
    say(f"proving {release} on side port {port}")
    switch_link(ROOT / "candidate", f"releases/{release}")
    try:
        started = _systemctl("restart", unit, settings)
        if started:
            reason = f"the new release does not prove itself on side port {port}: {journal(unit)}"
            raise Failure("model_id", reason, "what ran before goes on running; correct the change and deploy again")
        right(f"http://127.0.0.1:{port}", release, f"side port {port}")
    finally:
        stop_candidates()


def stop_candidates() -> None:
    """Stop what is being proven: this activation's own, or one that an activation left when it was killed."""
    run(["systemctl", "stop", CANDIDATE.format("*")], limit=120, check=False)
    run(["systemctl", "reset-failed", CANDIDATE.format("*")], check=False)
    (ROOT / "candidate").unlink(missing_ok=True)


def right(url: str, release: str, where: str) -> None:
    """Have right embeddings from a URL. :raises Failure: otherwise."""
    try:
        found = probe(url, probe_spec(release))
    except Wrong as error:
        raise Failure("model_id", f"{where} answers wrong: {error}", "look at the instance's journal") from None
    say(f"{where}: dimension {found.dimension}, norm {found.norm:.4f}, similarities {found.near:.4f} > {found.far:.4f}")


def roll(release: str, settings: dict[str, Any]) -> None:
    """Bring every instance to the release: drained, restarted, proven, put back, one after the other.

    Where nothing serves yet there is nothing to drain or spare, and all start at once.
    """
    ports = settings["instances"]
    todo = behind(release, ports)
    put_back(except_for={instance.port for instance in todo})  # proven, then left out by a rollout that was killed
    if len(todo) == len(ports) and not any(instance.up for instance in states(present_ports())):
        say(f"starting {len(ports)} instances of {release}")
        run(["systemctl", "reset-failed", *(UNIT.format(port) for port in ports)], check=False)
        if _systemctl("restart", *(UNIT.format(port) for port in ports), settings):
            sick = [instance.port for instance in states(ports) if not instance.up]
            raise Failure(
                "instance_ports",
                f"instance {sick[0] if sick else '?'} does not start right: {journal(UNIT.format(sick[0] if sick else ports[0]))}",
                f"journalctl -u {UNIT.format(sick[0] if sick else ports[0])}",
            )
        for port in ports:
            right(f"http://127.0.0.1:{port}", release, f"instance {port}")
        run(["systemctl", "enable", "--quiet", *(UNIT.format(port) for port in ports)])
    else:
        for instance in todo:
            replace(instance, release, settings)
    run(["systemctl", "enable", "--quiet", *(UNIT.format(port) for port in ports)])
    put_back(except_for=set())
    if gateway.active() and not gateway.applied():
        gateway.apply()


def put_back(except_for: set[int]) -> None:
    """Put back into the gateway what a rollout took out."""
    for port, state in gateway.outs().items():
        if state.get("by") == "rollout" and port not in except_for:
            gateway.put_in(port)


def replace(instance: Instance, release: str, settings: dict[str, Any]) -> None:
    """Drain one instance, restart it with the current release, prove it, put it back."""
    port, unit = instance.port, UNIT.format(instance.port)
    was_out = port in gateway.outs() and gateway.outs()[port].get("by") != "rollout"
    say(f"instance {port}: {instance.release or 'nothing'} -> {release}")
    if not was_out and gateway.active():
        try:
            gateway.take_out(port, "rollout", f"switch to {release}", settings["drain_timeout"], last=True)
        except Failure as failure:
            if failure.setting == "drain_timeout":
                gateway.put_in(port)  # a request that takes so long is worth more than the switch
            raise
    run(["systemctl", "reset-failed", unit], check=False)
    if _systemctl("restart", unit, settings):
        raise Failure(
            "instance_ports", f"instance {port} does not start right: {journal(unit)}", f"journalctl -u {unit}"
        )
    right(f"http://127.0.0.1:{port}", release, f"instance {port}")
    run(["systemctl", "enable", "--quiet", unit])  # proven once: from now on the gateway may send it requests
    if not was_out:
        gateway.put_in(port)


def back(failure: Failure, old: str | None, before: str | None, settings: dict[str, Any]) -> None:
    """Undo a switch that failed, then fail with its reason."""
    if not old or not manifest("releases", old):
        say("nothing ran before: stopping what did not prove itself")
        run(["systemctl", "stop", *(UNIT.format(port) for port in settings["instances"])], limit=180, check=False)
        point(current=None, previous=None)
        ROLLOUT.unlink(missing_ok=True)
        raise failure
    say(f"{failure.reason.splitlines()[0]}")
    say(f"switching back to {old}")
    point(current=old, previous=before)
    try:
        roll(old, settings)
    except Failure as second:
        raise Failure(
            failure.setting,
            f"{failure.reason}\nand switching back to {old} failed too: {second.reason}",
            f"look at the instances by hand now: embedfleetctl verify; {second.cure}",
        ) from None
    ROLLOUT.unlink(missing_ok=True)
    raise Failure(failure.setting, f"{failure.reason}\nswitched back to {old}, which serves", failure.cure)


def remove_unwanted(settings: dict[str, Any]) -> None:
    """Stop and disable instances that the settings no longer name."""
    for port in present_ports():
        if port not in settings["instances"]:
            say(f"instance {port}: no longer wanted")
            gateway.take_out(port, "rollout", "no longer wanted", settings["drain_timeout"], last=True)
            run(["systemctl", "disable", "--quiet", "--now", UNIT.format(port)], limit=180)
            run(["systemctl", "reset-failed", UNIT.format(port)], check=False)
            gateway.put_in(port)  # forgets it: it is neither in the settings nor enabled any more


def _systemctl(verb: str, *units_and_settings: Any) -> int:
    """Run a systemctl verb that waits for readiness; return its exit status."""
    *units, settings = units_and_settings
    try:
        return run(["systemctl", verb, *units], limit=settings["start_timeout"] + 120, check=False).returncode
    except Failure:  # it took longer than the unit's own limits allow
        return 1


def journal(unit: str) -> str:
    """Return what a unit's journal says of why it failed: the probe's verdict and the errors, not its last lines."""
    shown = run(["journalctl", "--no-pager", "-o", "cat", "-n", "400", "-u", unit], check=False).stdout.splitlines()
    return "\n" + "\n".join("  | " + line.strip()[:300] for line in telling(shown))


def telling(lines: list[str], count: int = 8) -> list[str]:
    """Return the lines of the last attempt that tell why it failed."""
    started = max((i for i, line in enumerate(lines) if line.startswith("Starting embedfleet-")), default=0)
    last = lines[started:]
    verdict = [i for i, line in enumerate(last) if line.startswith("embedfleetctl failed:")]
    found = last[verdict[-1] + 1 : verdict[-1] + 2] if verdict else []
    errors = [line for line in last if re.search(r"\b\w*(Error|Exception)\b: |error: |[Oo]ut of memory|oom-kill", line)]
    return found + errors[: count - 1] or last[-count:]

"""What is: releases, instances, gateway, as one JSON object. And verify: real embeddings from all of them."""

from __future__ import annotations

import threading
import time
from typing import Any

from embedfleetctl import gateway
from embedfleetctl.activate import ROLLOUT
from embedfleetctl.common import HOST_JSON, host_settings, read_json, release_of
from embedfleetctl.instances import probe_spec, states, survey
from embedfleetctl.probe import Wrong, as_dict, probe


def state(probe: bool = False) -> dict[str, Any]:
    """Return the state that a deploy compares with its plan. Never raises for what is missing.

    :param probe: where everything runs what is current, also return as "verify" what `verify` finds: a deploy that
        changes nothing asks for both, and one start of Python less is a tenth of a second
    """
    settings = read_json(HOST_JSON)
    instances, gateway_runs = survey(settings.get("instances", []))
    current = release_of("current")
    found: dict[str, Any] = {
        "current": current,
        "previous": release_of("previous"),
        "rollout": read_json(ROLLOUT) or None,
        "candidate": release_of("candidate"),
        "instances": [
            {
                "port": i.port,
                "active": i.active,
                "sub": i.sub,
                "enabled": i.enabled,
                "unit_current": i.unit_current,
                "release": i.release,
            }
            for i in sorted(instances.values(), key=lambda i: i.port)
        ],
        "gateway": {
            "applied": bool(settings) and gateway_runs and gateway.applied(),
            "out": {str(k): v for k, v in gateway.outs().items()},
        },
    }
    wanted = [instances[port] for port in settings.get("instances", [])]
    settled = current and found["gateway"]["applied"] and all(i.up and i.release == current for i in wanted)
    return found | {"verify": verify()} if probe and settled else found


def verify() -> dict[str, Any]:
    """Ask every instance and the gateway for real embeddings and judge them."""
    settings = host_settings()
    current = release_of("current")
    begun = time.monotonic()
    asked = [
        (f"instance {instance.port}", f"http://127.0.0.1:{instance.port}", instance.release or current)
        for instance in states(settings["instances"])
    ]
    asked.append((f"gateway {settings['gateway']['port']}", gateway.url(), current))
    rows: list[dict[str, Any]] = [{} for _ in asked]

    def fill(place: int) -> None:
        rows[place] = _row(*asked[place])

    threads = [threading.Thread(target=fill, args=(place,)) for place in range(len(asked))]
    for thread in threads:  # concurrent.futures would do, and brings logging: a tenth of this command's time
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "release": current,
        "rows": rows,
        "right": all(row["right"] for row in rows),
        "out": {str(k): v for k, v in gateway.outs().items()},
        "seconds": round(time.monotonic() - begun, 3),
    }


def _row(name: str, url: str, release: str | None) -> dict[str, Any]:
    spec = probe_spec(release)
    row: dict[str, Any] = {"name": name, "release": release, "right": False}
    if not spec:
        return {**row, "error": "no release"}
    try:
        return {**row, "right": True, **as_dict(probe(url, spec))}
    except Wrong as error:
        return {**row, "error": str(error)}

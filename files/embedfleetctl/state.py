"""What is: releases, instances, gateway, as one JSON object. And verify: real embeddings from all of them."""

from __future__ import annotations

import time
from typing import Any

from embedfleetctl import gateway
from embedfleetctl.activate import ROLLOUT
from embedfleetctl.common import HOST_JSON, host_settings, read_json, release_of
from embedfleetctl.instances import present_ports, probe_spec, states
from embedfleetctl.probe import Wrong, as_dict, probe


def state() -> dict[str, Any]:
    """Return the state that a deploy compares with its plan. Never raises for what is missing."""
    settings = read_json(HOST_JSON)
    ports = sorted({*settings.get("instances", []), *present_ports()})
    return {
        "current": release_of("current"),
        "previous": release_of("previous"),
        "rollout": read_json(ROLLOUT) or None,
        "instances": [
            {
                "port": i.port,
                "active": i.active,
                "sub": i.sub,
                "enabled": i.enabled,
                "release": i.release,
                "wanted": i.port in settings.get("instances", []),
            }
            for i in states(ports)
        ],
        "gateway": {
            "applied": bool(settings) and gateway.applied(),
            "out": {str(k): v for k, v in gateway.outs().items()},
        },
    }


def verify() -> dict[str, Any]:
    """Ask every instance and the gateway for real embeddings and judge them."""
    settings = host_settings()
    current = release_of("current")
    begun = time.monotonic()
    rows: list[dict[str, Any]] = []
    for instance in states(settings["instances"]):
        release = instance.release or current
        rows.append(_row(f"instance {instance.port}", f"http://127.0.0.1:{instance.port}", release))
    rows.append(
        _row(f"gateway {settings['gateway']['port']}", f"http://127.0.0.1:{settings['gateway']['port']}", current)
    )
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

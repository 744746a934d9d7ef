"""A release: one engine, one model, one set of flags. Switching a link to it switches all three."""

from __future__ import annotations

import json
import os
import pwd
from typing import Any

from embedfleetctl.common import ROOT, WORK, Failure, host_settings, write_atomic
from embedfleetctl.make import fresh, manifest, part_dir


def make(part: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Lay out the release in a work directory and rename it into place."""
    for kind in ("engines", "models"):
        if not manifest(kind, spec[kind]):
            raise Failure("release", f"{kind}/{spec[kind]} is not finished", "run the deploy again")
    tree = fresh(WORK / f"releases-{part}")
    os.symlink(f"{ROOT}/engines/{spec['engines']}/venv", tree / "env")
    os.symlink(f"{ROOT}/models/{spec['models']}", tree / "model")
    write_atomic(tree / "serve.json", json.dumps(spec["serve"], indent=1), 0o640)  # its environment may hold secrets
    os.chown(tree / "serve.json", 0, pwd.getpwnam(host_settings()["service_user"]).pw_gid)
    write_atomic(tree / "probe.json", json.dumps(spec["probe"], indent=1))
    where = fresh(part_dir("releases", part))
    os.replace(tree, where)
    return {}

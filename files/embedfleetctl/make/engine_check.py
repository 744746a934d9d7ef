"""Import what a vLLM server imports, with the engine's own Python: engine_check.py cpu|cuda. Exits 1 where that fails."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys

# What every server needs; then what it may need, by device and model, whose absence is for the side port to judge.
NEEDED = ("torch", "vllm.entrypoints.cli.main", "vllm.entrypoints.openai.api_server", "vllm.v1.engine.core")
USED = (
    "vllm.entrypoints.cli.serve",
    "vllm.model_executor.models.bert",
    "vllm.model_executor.models.roberta",
    "compressed_tensors",
    "model_hosting_container_standards.sagemaker",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
)
WORKER = {"cpu": "vllm.v1.worker.cpu_worker", "cuda": "vllm.v1.worker.gpu_worker"}


def main(device: str) -> int:
    """Import them; print the versions."""
    for name in NEEDED:
        importlib.import_module(name)
    for name in (*USED, WORKER[device]):
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever a module of another version does at import
            print(f"{name}: {type(error).__name__}: {error}")
    print("torch", importlib.metadata.version("torch"), "vllm", importlib.metadata.version("vllm"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""The test targets: a small real model and vLLM with kernels from a wheel, everything from the local mirror.

What differs by target (tests/targets/info.py: conda's lock, the stand-in for vLLM) stands beside the host in the inventory.
"""

from tests.targets.host import RigError as _RigError
from tests.targets.info import read_info as _read_info
from tests.targets.naming import names as _names

try:  # pyinfra reads every file of group_data in every run, so also where there are no test targets
    _info = _read_info(_names())
except _RigError:
    _info = {}

if _info:
    _mirror = _info["mirror"]["url"]

    _sudo = False  # the containers' commands run as root

    python_index_url = f"{_mirror}/simple/"
    conda_channel = f"{_mirror}/conda"
    site_ca_certificates = _info["site_ca"]

    vllm_git_url = _info["mirror"]["git"]
    vllm_commit = _info["vllm"]["commit"]
    vllm_patches = [
        {
            "file": "files/patches/vllm-0.32.0-cpu-extra-kernels.patch",
            "sha256": "7a33ae82b5821f630f1a23e1d404669e67dfad86c010ad41f168c30db1ed6c63",
        }
    ]
    vllm_precompiled = _info["kernels"]

    model_id = "sentence-transformers/all-MiniLM-L6-v2"
    model_revision = "v1"
    model_name = "minilm"
    model_endpoint = _mirror
    model_sha256 = {"model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"}

    # Two cores: the worker inside the engine process saves an interpreter, 15 s a start.
    serve_env = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

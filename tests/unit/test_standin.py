"""The stand-in for vLLM: it takes every flag that a plan gives, refuses what vLLM refuses, and answers as it does."""

from __future__ import annotations

import subprocess
import sys
import threading
from http.server import ThreadingHTTPServer
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from embedfleetctl import gateway
from embedfleetctl.probe import Wrong, embed, probe

from embedfleet.models import FAR, NEAR, QUERY
from embedfleet.plan import make_plan
from embedfleet.platforms import PLATFORMS
from embedfleet.settings import Settings
from embedfleet.stack import REMOVED_FLAGS
from tests.targets.standin import make
from tests.unit.hosts import ROWS, survey
from tests.unit.test_refusals import SOURCES

SOURCE = Path(make.SOURCE)


def module(path: str) -> ModuleType:
    spec = util.spec_from_file_location("standin_" + Path(path).stem, SOURCE / "vllm" / path)
    assert spec is not None
    assert spec.loader is not None
    loaded = util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


CLI = module("entrypoints/cli/main.py")
SERVER = module("entrypoints/openai/api_server.py")


@pytest.mark.parametrize("row", sorted(PLATFORMS))
def test_every_flag_of_every_platform_is_one_that_the_pinned_vllm_takes(row: str) -> None:
    host = next(name for name, found in ROWS.items() if found == row)
    found = survey(host)
    made = make_plan("h1", Settings(), PLATFORMS[row], found, SOURCES)
    args = CLI.parser().parse_args(
        ["serve", "/m", "--host", "127.0.0.1", "--port", "1", *made.release_part.spec["serve"]["args"]]
    )
    CLI.agree(args)
    assert args.runner == "pooling"


@pytest.mark.parametrize("flag", sorted(REMOVED_FLAGS))
def test_flags_that_vllm_no_longer_has_are_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        CLI.parser().parse_args(["serve", "/m", f"--{flag}", "x"])
    assert ended.value.code == 2
    assert f"--{flag}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "args",
    [["--runner", "generate"], ["--runner", "pooling", "--max-model-len", "512", "--max-num-batched-tokens", "8"]],
)
def test_what_vllm_s_configuration_refuses(args: list[str]) -> None:
    with pytest.raises(SystemExit):
        CLI.agree(CLI.parser().parse_args(["serve", "/m", *args]))


@pytest.fixture
def served(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    make.write_model(tmp_path / "model", getattr(request, "param", 0.0))
    shared = {"model": SERVER.Model(tmp_path / "model"), "names": ["m"], "limit": 64, "counts": SERVER.Counts()}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Server", (SERVER.Handler,), shared))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(10)
    server.server_close()


def spec(tmp_path: Path) -> dict[str, Any]:
    make.write_model(tmp_path / "right", 0.0)
    return {"model": "m", "texts": [QUERY, NEAR, FAR], "tolerance": 0.02, **make._known(tmp_path / "right")}


def test_its_vectors_are_right_and_its_load_is_told(served: str, tmp_path: Path) -> None:
    assert probe(served, spec(tmp_path)).dimension == make.DIMENSION
    assert gateway.load(int(served.rpartition(":")[2])) == 0


@pytest.mark.parametrize("served", [0.7], indirect=True)
def test_the_wrong_model_is_noticed(served: str, tmp_path: Path) -> None:
    with pytest.raises(Wrong, match="similarity"):
        probe(served, spec(tmp_path))


@pytest.mark.parametrize(
    ("model", "texts", "word"),
    [("other", ["a"], "404"), ("m", [], "400"), ("m", ["a " * 65], "maximum context length")],
)
def test_what_vllm_refuses_of_requests(served: str, model: str, texts: list[str], word: str) -> None:
    with pytest.raises(Wrong, match=word):
        embed(served, model, texts, 5)


@pytest.mark.parametrize(
    ("env", "word"),
    [
        ({}, "is no device"),
        ({"VLLM_TARGET_DEVICE": "cpu"}, "no version"),
        ({"VLLM_TARGET_DEVICE": "cuda", "SETUPTOOLS_SCM_PRETEND_VERSION": "1"}, "TORCH_CUDA_ARCH_LIST"),
        ({"VLLM_TARGET_DEVICE": "cuda", "SETUPTOOLS_SCM_PRETEND_VERSION": "1", "TORCH_CUDA_ARCH_LIST": "9.0"}, "CUDA compiler"),
    ],
)  # fmt: skip
def test_its_build_wants_what_vllm_s_build_wants(env: dict[str, str], word: str, tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", _RUN, str(SOURCE / "setup.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=20, cwd=tmp_path)
    assert word in done.stderr


_RUN = """
import sys, types
for name in ("setuptools", "setuptools.command", "setuptools.command.build_py"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["setuptools"].setup = sys.modules["setuptools"].find_packages = lambda **k: None
sys.modules["setuptools.command.build_py"].build_py = object
exec(open(sys.argv[1]).read())
"""

"""Presented hardware: what the targets show is what the survey recognises as the row that it is meant to be."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from embedfleet.facts.gpu import parse_smi
from tests.targets.hardware import HARDWARE, drive, write
from tests.targets.host import RigError

QUERY = "pci.bus_id,name,compute_cap,memory.total,temperature.gpu,ecc.mode.current"


def smi(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "RIG_GPU": str(folder / "gpu")}
    return subprocess.run(["sh", folder / "bin/nvidia-smi", *words], env=env, capture_output=True, text=True, errors="replace", timeout=20)  # fmt: skip


def gpus(folder: Path) -> object:
    done = smi(folder, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits")
    return parse_smi([*done.stdout.splitlines(), f"@rc={done.returncode}"])


def test_values_are_driven_while_the_target_runs(tmp_path: Path) -> None:
    write(tmp_path, HARDWARE["gb200"])
    found, how = gpus(tmp_path)
    assert how == "ok"
    assert [(gpu.address, gpu.capability, gpu.temperature, gpu.ecc) for gpu in found] == [
        ("0008:01:00.0", "10.0", 41, True),
        ("0009:01:00.0", "10.0", 41, True),
    ]
    drive(tmp_path, "gpu/1/temperature.gpu", "91")
    drive(tmp_path, "gpu/0/ecc.mode.current", "[N/A]")
    found, _ = gpus(tmp_path)
    assert [(gpu.temperature, gpu.ecc) for gpu in found] == [(41, None), (91, True)]
    for path in ("gpu/7/temperature.gpu", "../x", "gpu/../cpuinfo", "cpuinfo", "gpu", "/etc/hostname", ""):
        with pytest.raises(RigError, match="is not driven here"):
            drive(tmp_path, path, "91")


def test_gb10_has_no_memory_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, HARDWARE["gb10"])
    [gpu], how = gpus(tmp_path)
    assert (how, gpu.memory_mib, gpu.ecc, gpu.capability) == ("ok", None, None, "12.1")


@pytest.mark.parametrize(("mode", "word"), [("failed", "couldn't communicate"), ("mismatch", "version mismatch"), ("none", "No devices"), ("garbage", "")])  # fmt: skip
def test_how_nvidia_smi_fails(tmp_path: Path, mode: str, word: str) -> None:
    write(tmp_path, HARDWARE["gh200"])
    drive(tmp_path, "gpu/mode", mode)
    found, how = gpus(tmp_path)
    assert found == ()
    assert word in how
    assert how != "ok"


def test_units_stand_behind_memory_unless_they_are_not_wanted(tmp_path: Path) -> None:
    write(tmp_path, HARDWARE["gh200"])
    assert (
        smi(tmp_path, "--query-gpu=memory.total,name", "--format=csv,noheader").stdout
        == "97871 MiB, NVIDIA GH200 480GB\n"
    )
    assert smi(tmp_path, "-L").stdout.startswith("GPU 0: NVIDIA GH200 480GB (UUID: GPU-")


def test_a_machine_without_a_driver_has_none_of_its_programs(tmp_path: Path) -> None:
    write(tmp_path, HARDWARE["power9"])
    assert {path.name for path in (tmp_path / "bin").iterdir()} == {"present", "systemd-detect-virt"}
    assert not (tmp_path / "driver-version").exists()
    assert len(list((tmp_path / "sys/bus/pci/devices").iterdir())) == 2

"""The stand-ins for NVIDIA's packages: the table, the files they are made of, and the programs they leave."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import struct
import subprocess
import tarfile
from itertools import groupby
from pathlib import Path

import pytest

from tests.targets import mirror_server
from tests.targets.nvidia import (
    aptrepo,
    containertoolkit,
    cuda,
    debs,
    kernelmodule,
    library,
    repository,
    rhel,
    rpms,
    specs,
    ubuntu,
)
from tests.targets.nvidia.package import HERE, Package, own

KERNELS = ("6.1.0-rig",)
INDEXES = aptrepo.indexes(b"keyring", KERNELS)


def _closure(name: str) -> str:
    """The name of a dependency without its version."""
    return re.split(r"[ (:]", name.strip())[0]


@pytest.mark.parametrize("index", INDEXES, ids=lambda index: index.place)
def test_every_dependency_is_in_reach(index: aptrepo.Index) -> None:
    packages = index.packages()
    # Ubuntu's releases and NVIDIA's repository together, as on a host: dkms is the distribution's
    there = {package.name for package in packages} | {"dkms"}
    there |= {_closure(name) for package in packages for name in package.provides}
    if "updates" in index.place:
        release = index.place.removesuffix("-updates")
        there |= {package.name for other in INDEXES if other.place == release for package in other.packages()}
    for package in packages:
        for need in package.depends:
            assert any(_closure(choice) in there for choice in need.split("|")), f"{package.name}: {need}"


@pytest.mark.parametrize("index", INDEXES, ids=lambda index: index.place)
def test_no_two_packages_of_an_index_are_the_same_and_the_stale_ones_are_gone(index: aptrepo.Index) -> None:
    packages = index.packages()
    names = [index.where(package) for package in packages]
    assert len(set(names)) == len(names)
    drivers = [package for package in index.gone() if specs.GONE in package.version or "1.17.8" in package.version]
    assert drivers
    assert not {index.where(package) for package in drivers} & set(names)


def test_names_follow_the_archives() -> None:
    noble = {package.name for package in ubuntu.packages(specs.POCKETS[3], "arm64")}
    for name in (
        "linux-modules-nvidia-580-server-open-6.8.0-139-generic-64k",
        "linux-modules-nvidia-580-server-open-nvidia-64k",
        "linux-modules-nvidia-620-server-open-generic",
        "nvidia-firmware-580-server-580.173.02",
        "nvidia-fabricmanager-580",
    ):
        assert name in noble
    # from 620 on there are no proprietary modules
    assert "linux-modules-nvidia-580-server-generic" in noble
    assert "linux-modules-nvidia-620-server-generic" not in noble
    names = {package.name for package in cuda.packages("ubuntu2404", "arm64", (specs.NEWER, specs.NEXT), b"")}
    assert {"nvidia-dkms-580-open", "nvidia-dkms-open", "libnvidia-compute", "nvidia-driver-pinning-580"} <= names
    assert "libnvidia-compute-620" not in names


def test_amd64_has_no_64k_kernels() -> None:
    assert not [name for name, _, _ in specs.POCKETS[2].kernels("amd64") if "64k" in name]


# ---- files


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_module_is_elf_with_modinfo_at_its_end(machine: str) -> None:
    data = kernelmodule.module("nvidia", "580.1", kernelmodule.OPEN, "6.8.0-1-generic", machine)
    assert data[:4] == b"\x7fELF"
    assert struct.unpack_from("<HH", data, 16) == (1, kernelmodule.MACHINES[machine])
    offset, size = struct.unpack_from("<QQ", data, 64 + 4 * 64 + 24)
    assert offset + size == len(data)
    info = [text.decode() for text in data[offset:].split(b"\0") if text]
    assert {"version=580.1", "license=Dual MIT/GPL"} < set(info)
    assert info[-1].startswith("vermagic=6.8.0-1-generic SMP")


def test_build_script_makes_the_same_module(tmp_path: Path) -> None:
    machine = os.uname().machine
    if machine not in kernelmodule.MACHINES:
        pytest.skip("no modules for this machine")
    (tmp_path / machine).mkdir()
    head, size = kernelmodule.template("nvidia-uvm", "580.1", "NVIDIA", machine)
    (tmp_path / machine / "nvidia-uvm.ko.in").write_bytes(head)
    (tmp_path / machine / "nvidia-uvm.size").write_text(f"{size}\n")
    subprocess.run(["sh", str(HERE / "build-modules"), "6.8.0-7-x"], cwd=tmp_path, check=True)
    expected = kernelmodule.module("nvidia-uvm", "580.1", "NVIDIA", "6.8.0-7-x", machine)
    assert (tmp_path / "nvidia-uvm.ko").read_bytes() == expected


def test_library_names_itself() -> None:
    data = library.library("libcuda.so.1", "aarch64")
    assert struct.unpack_from("<HH", data, 16) == (3, 183)
    assert data.endswith(b"\0libcuda.so.1\0")


def _member(deb: bytes, name: str) -> tarfile.TarFile:
    position = 8
    while position < len(deb):
        title, size = deb[position : position + 16].decode().strip(), int(deb[position + 48 : position + 58])
        content = deb[position + 60 : position + 60 + size]
        if title == name:
            return tarfile.open(fileobj=io.BytesIO(gzip.decompress(content)))
        position += 60 + size + size % 2
    raise AssertionError(name)


def test_deb_is_an_archive_that_is_always_alike() -> None:
    package = next(p for p in ubuntu.packages(specs.POCKETS[2], "amd64") if p.name == "nvidia-compute-utils-580-server")
    deb = debs.build(package)
    assert deb == debs.build(package)
    control = _member(deb, "control.tar.gz")
    names = control.getnames()
    assert {"./control", "./md5sums", "./postinst", "./prerm", "./postrm"} == set(names)
    assert control.getmember("./postinst").mode == 0o755
    data = _member(deb, "data.tar.gz")
    assert data.getmember("./usr/bin/nvidia-persistenced").mode == 0o755
    assert data.getmember("./usr").isdir()


def test_index_has_sums_of_what_it_lists() -> None:
    package = Package("a-b", "1:2-3", "all", "A summary", ("c (>= 1)",))
    entry = debs.entry(package, "./a-b_2-3_all.deb", b"content")
    assert "Filename: ./a-b_2-3_all.deb\nSize: 7\n" in entry
    assert "Depends: c (>= 1)\n" in entry
    assert debs.file_name(package) == "a-b_2-3_all.deb"


def test_release_of_a_flat_repository() -> None:
    index = next(index for index in INDEXES if index.place == "nvidia/ubuntu2404/sbsa")
    text = aptrepo.release(index, b"list", 0, until=86400)
    assert "Label: NVIDIA CUDA\n" in text
    assert "Valid-Until: Fri, 02 Jan 1970 00:00:00 GMT\n" in text
    assert re.search(r"(?m)^ [0-9a-f]{64} +4 Packages$", text)


# ---- rpm


def test_no_spec_has_a_package_twice() -> None:
    packages = [p for version in (specs.OLDER, specs.NEWER) for p in rhel.driver(version, "x86_64")]
    for batch in rpms.batches(packages):
        assert all(len(list(group)) == 1 for _, group in groupby(sorted(p.name for p in batch)))
    assert len(rpms.batches(packages)) == 2


def test_spec_has_epoch_scripts_and_files(tmp_path: Path) -> None:
    text = rpms.spec(rhel.driver(specs.OLDER, "aarch64"), tmp_path / "tree")
    assert (
        f"%package -n nvidia-open\nSummary: NVIDIA open GPU driver metapackage\nVersion: {specs.OLDER}\nRelease: 1.el9\nEpoch: 3\n"
        in text
    )
    assert f"Provides: nvidia-kmod = 3:{specs.OLDER}\n" in text
    assert "%post -n kmod-nvidia-open-dkms\ndkms add -m nvidia-open" in text
    assert "%attr(755,root,root) /usr/bin/nvidia-smi\n" in text
    assert (tmp_path / "tree/usr/bin/nvidia-smi").exists()


def test_module_streams_list_what_belongs_to_them() -> None:
    parts = [part for part in rhel.modules_yaml("aarch64").split("---\n") if part]
    stream = next(part for part in parts if 'stream: "580-open"' in part)
    assert f"nvidia-open-3:{specs.NEWER}-1.el9.aarch64" in stream
    assert f"kmod-nvidia-open-dkms-3:{specs.OLDER}-1.el9.noarch" in stream
    assert specs.NEXT not in stream


# ---- the programs


@pytest.fixture
def smi(tmp_path: Path) -> Path:
    """A tree with one GH200."""
    gpu = tmp_path / "gpu" / "0"
    gpu.mkdir(parents=True)
    for name, value in {
        "name": "NVIDIA GH200 480GB",
        "uuid": "GPU-1",
        "pci.bus_id": "00000009:01:00.0",
        "memory.total": "97871 MiB",
        "temperature.gpu": "41",
        "power.draw": "123.45",
        "clocks.sm": "1980",
        "ecc.mode.current": "Enabled",
    }.items():
        (gpu / name).write_text(f"{value}\n")
    (tmp_path / "nvidia-smi").write_bytes(own("nvidia-smi", VERSION="580.173.02", CUDA="13.0").data)
    return tmp_path


def _smi(folder: Path, *words: str, timeout: float = 20) -> tuple[int, str]:
    environment = {**os.environ, "RIG_GPU": str(folder / "gpu")}
    words = ("sh", str(folder / "nvidia-smi"), *words)
    done = subprocess.run(words, capture_output=True, env=environment, timeout=timeout)
    return done.returncode, done.stdout.decode(errors="replace")


def test_smi_answers_queries_with_and_without_units(smi: Path) -> None:
    fields = "--query-gpu=pci.bus_id,name,memory.total,temperature.gpu,power.draw,clocks.sm,fan.speed,driver_version"
    assert _smi(smi, fields, "--format=csv") == (
        0,
        "pci.bus_id, name, memory.total [MiB], temperature.gpu, power.draw [W], clocks.current.sm [MHz], fan.speed [%], driver_version\n"
        "00000009:01:00.0, NVIDIA GH200 480GB, 97871 MiB, 41, 123.45 W, 1980 MHz, [N/A], 580.173.02\n",
    )
    code, text = _smi(smi, fields, "--format=csv,noheader,nounits")
    assert (code, text) == (0, "00000009:01:00.0, NVIDIA GH200 480GB, 97871, 41, 123.45, 1980, [N/A], 580.173.02\n")
    assert _smi(smi, "-L") == (0, "GPU 0: NVIDIA GH200 480GB (UUID: GPU-1)\n")
    assert _smi(smi, "-i", "1", "-L")[0] == 6
    assert _smi(smi, "--query-gpu=name,nonsense", "--format=csv")[:2] == (
        2,
        'Field "nonsense" is not a valid field to query.\n\n',
    )


def test_smi_has_a_table(smi: Path) -> None:
    code, text = _smi(smi)
    assert code == 0
    assert "| NVIDIA-SMI 580.173.02             Driver Version: 580.173.02     CUDA Version: 13.0     |" in text
    assert {len(line) for line in text.splitlines()[1:] if line} == {91}


@pytest.mark.parametrize(
    ("mode", "code", "words"),
    [
        ("failed", 9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
        ("mismatch", 18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.173\n"),
        ("garbage", 0, "<<<"),
    ],
)
def test_smi_fails_as_told(smi: Path, mode: str, code: int, words: str) -> None:
    (smi / "gpu/mode").write_text(mode)
    told = _smi(smi, "--query-gpu=name", "--format=csv")
    assert told[0] == code
    assert words in told[1]


def test_smi_hangs_when_told(smi: Path) -> None:
    (smi / "gpu/mode").write_text("hang\n")
    with pytest.raises(subprocess.TimeoutExpired):
        _smi(smi, timeout=0.3)


def test_smi_without_driver_without_gpu_and_with_another_module(smi: Path) -> None:
    (smi / "gpu/loaded").write_text("580.159.03\n")
    assert _smi(smi)[0] == 18
    for path in (*(smi / "gpu/0").iterdir(), smi / "gpu/loaded"):
        path.unlink()
    (smi / "gpu/0").rmdir()
    assert _smi(smi) == (6, "No devices were found\n")
    (smi / "gpu").rmdir()
    assert _smi(smi)[0] == 9


def _ctk(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "nvidia-ctk"
    program.write_bytes(own("nvidia-ctk", VERSION="1.19.1").data)
    return subprocess.run(["python3", str(program), *words], capture_output=True, text=True, timeout=20)


def test_ctk_merges_docker_and_refuses_what_is_no_json(tmp_path: Path) -> None:
    config = tmp_path / "daemon.json"
    config.write_text('{"log-driver": "journald"}')
    words = ("runtime", "configure", "--runtime=docker", f"--config={config}", "--set-as-default")
    assert _ctk(tmp_path, *words).returncode == 0
    found = json.loads(config.read_text())
    assert found["log-driver"] == "journald"
    assert found["default-runtime"] == "nvidia"
    config.write_text("{")
    done = _ctk(tmp_path, *words)
    assert done.returncode == 1
    assert "unable to load config" in done.stderr


@pytest.mark.parametrize("runtime", ["containerd", "crio"])
def test_ctk_writes_toml_once(tmp_path: Path, runtime: str) -> None:
    tomllib = pytest.importorskip("tomllib")
    config = tmp_path / "config.toml"
    config.write_text("version = 2\n\n[other]\n  key = 1\n")
    words = ("runtime", "configure", f"--runtime={runtime}", f"--config={config}", "--drop-in-config=", "--cdi.enabled", "--set-as-default")  # fmt: skip
    assert _ctk(tmp_path, *words).returncode == 0
    first = config.read_text()
    assert _ctk(tmp_path, *words).returncode == 0
    assert config.read_text() == first
    found = tomllib.loads(first)
    assert found["other"] == {"key": 1}
    if runtime == "containerd":
        cri = found["plugins"]["io.containerd.grpc.v1.cri"]
        assert cri["enable_cdi"] is True
        assert cri["containerd"]["runtimes"]["nvidia"]["options"]["BinaryName"] == "/usr/bin/nvidia-container-runtime"
    else:
        assert found["crio"]["runtime"]["runtimes"]["nvidia"]["runtime_type"] == "oci"


def test_ctk_writes_a_drop_in_and_imports_it(tmp_path: Path) -> None:
    config, drop = tmp_path / "config.toml", tmp_path / "conf.d/99-nvidia.toml"
    config.write_text("# words\nversion = 2\n\n[other]\n  key = 1\n")
    words = ("runtime", "configure", "--runtime=containerd", f"--config={config}", f"--drop-in-config={drop}")
    for _ in range(2):
        assert _ctk(tmp_path, *words).returncode == 0
        assert config.read_text() == f'imports = ["{tmp_path}/conf.d/*.toml"]\nversion = 2\n\n[other]\n  key = 1\n'
    assert "runtimes.nvidia" in drop.read_text()
    assert "other" not in drop.read_text()


def test_ctk_tells_its_version(tmp_path: Path) -> None:
    assert _ctk(tmp_path, "--version").stdout.startswith("NVIDIA Container Toolkit CLI version 1.19.1\n")
    names = [package.name for package in containertoolkit.packages("1.19.1-1", "amd64")]
    assert names == [
        "libnvidia-container1",
        "libnvidia-container-tools",
        "nvidia-container-toolkit-base",
        "nvidia-container-toolkit",
    ]


def test_no_program_has_a_placeholder_left() -> None:
    for index in INDEXES:
        for package in index.packages():
            for path, file in package.files.items():
                assert not re.search(rb"@[A-Z]{3,}@", file.data), f"{package.name}: {path}"


# ---- the mirror and the cache


def test_mirror_knows_every_variant_that_is_built() -> None:
    assert mirror_server.VARIANTS == repository.VARIANTS


def test_digest_changes_with_the_kernels() -> None:
    assert repository.digest(()) != repository.digest(KERNELS)
    assert repository.digest(KERNELS) == repository.digest(KERNELS)

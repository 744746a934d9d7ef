"""The survey: what hosts print, in full, in part, and garbled; and the script itself, on this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedfleet.facts.cpu import width
from embedfleet.facts.gpu import Gpu
from embedfleet.facts.survey import SCRIPT, Survey, parse
from embedfleet.facts.system import flavour
from tests.unit.hosts import HOSTS, lines, survey

FULL = lines(
    HOSTS["gh200"]
    | {
        "parts": "/opt/embedfleet/engines/vllm-0.32.0-cpu-1/manifest.json",
        "current": "releases/0.32.0-bge-m3-1",
        "reboot": "*** System restart required ***\nlinux-base\nlinux-base",
        "kernels": "6.8.0-1039-nvidia-64k\n6.8.0-1041-nvidia-64k\n6.11.0-9-generic",
        "tcp": "  sl  local_address rem_address   st\n   0: 00000000:1F90 00000000:0000 0A x\n"
        "   1: 0100007F:1F40 00000000:0000 0A x\n   2: 0100007F:1F41 0100007F:9999 01 x",
        "listeners": "LISTEN 0      2048    127.0.0.1:8000  0.0.0.0:* uid:997 ino:1 sk:1"
        " cgroup:/docker/2f/system.slice/system-embedfleet\\x2dvllm.slice/embedfleet-vllm@8000.service <->\n"
        'LISTEN 0 128 0.0.0.0:8080 0.0.0.0:* users:(("nginx",pid=71,fd=5)) ino:1 sk:2'
        " cgroup:/system.slice/embedfleet-gateway.service <->",
    }
)


def test_a_full_survey() -> None:
    found = parse(FULL)
    assert (found.machine, found.os_id, found.os_version, found.cpu.count) == ("aarch64", "ubuntu", "24.04", 72)
    assert found.page_size == 65536
    assert [gpu.device for gpu in found.pci or ()] == ["2342"], "a root port is no GPU"
    assert found.gpus == (Gpu("0009:01:00.0", "NVIDIA GH200 480GB", "9.0", 97871, 41, True),)
    assert (found.driver.version, found.driver.branch, found.driver.loaded_open) == ("580.126.20", 580, True)
    assert [node.id for node in found.cpu.cpu_nodes] == [0]
    assert found.free_mib == {"/opt": 781250, "/var": 781250, "/tmp": 781250}
    assert found.parts == {"engines/vllm-0.32.0-cpu-1"}
    assert found.current == "0.32.0-bge-m3-1"
    by_port = {listener.port: listener for listener in found.listeners}
    assert set(by_port) == {8080, 8000}, "an established connection is no listener"
    assert (by_port[8080].program, by_port[8080].unit) == ("nginx", "embedfleet-gateway.service")
    assert by_port[8000].unit == "embedfleet-vllm@8000.service", "told by its cgroup, though its process is not seen"
    assert found.reboot == (
        "the system asks for it (linux-base)",
        "kernel 6.8.0-1041-nvidia-64k is installed, 6.8.0-1039-nvidia-64k runs",
    ), "a newer kernel of another flavour is not the next one"


def test_memory_that_gb10_does_not_have_is_not_zero() -> None:
    [gpu] = survey("gb10").gpus
    assert (gpu.memory_mib, gpu.ecc, gpu.capability, gpu.temperature) == (None, None, "12.1", 44)


def test_after_an_update_over_the_air_the_last_version_counts() -> None:
    assert survey("gb10").dgx["DGX_OTA_VERSION"] == "7.4.0"


@pytest.mark.parametrize("temperature", ["0", "-1", "[N/A]", "N/A", "ERR!", "[Unknown Error]", "", "4a"])
def test_a_sensor_that_is_not_there_is_not_cold(temperature: str) -> None:
    [gpu] = survey("gh200", smi=f"00000009:01:00.0, NVIDIA GH200 480GB, 9.0, 97871, {temperature}, Enabled\n@rc=0").gpus
    assert gpu.temperature is None


@pytest.mark.parametrize(
    ("told", "how"),
    [
        ("@hung", "hung"),
        ("", "absent"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n@rc=9", "(exit 9)"),
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161\n@rc=18",
            "mismatch",
        ),
        ("No devices were found\n@rc=0", "No devices were found"),
        ("00000009:01:00.0, NVIDIA GH200 480GB, 9.0, 97871", "(cut off)"),
        ("/bin/sh: 1: nvidia-smi: Exec format error\n@rc=126", "Exec format error"),
    ],
)
def test_an_nvidia_smi_that_fails_says_how(told: str, how: str) -> None:
    found = survey("gh200", smi=told)
    assert found.gpus == ()
    assert how in found.driver.smi
    assert found.pci, "the PCI bus knows all the same"


@pytest.mark.parametrize(
    ("banner", "version", "is_open"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.142  Release Build", "580.142", True),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Wed Jan 22 2025", "570.86.15", False),
        ("", "580.126.20", None),
    ],
)
def test_the_loaded_module_and_its_flavour(banner: str, version: str, is_open: bool | None) -> None:
    driver = survey("gh200", banner=banner).driver
    assert (driver.loaded, driver.loaded_open) == (version, is_open)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("6.8.0-1039-nvidia-64k", "nvidia-64k"),
        ("6.8.0-60-generic", "generic"),
        ("5.14.0-503.el9.aarch64+64k", "+64k"),
        ("6.4.0-150600.23.7-64kb", "64kb"),
        ("6.4.0-150600.23.7-default", "default"),
        ("5.15.199-tegra", "tegra"),
        ("5.14.0-503.el9.x86_64", ""),
        ("", ""),
    ],
)
def test_kernel_flavours(kernel: str, expected: str) -> None:
    assert flavour(kernel) == expected


def test_numa_nodes_with_holes() -> None:
    cpu = survey("power9").cpu
    assert [node.id for node in cpu.nodes] == [0, 8, 252, 253, 254, 255]
    assert [node.id for node in cpu.cpu_nodes] == [0, 8]
    assert (cpu.threads, cpu.smt) == (4, "4")


def test_silicon_and_mode_of_power() -> None:
    cpu = survey("power11 that says POWER10").cpu
    assert (cpu.power, cpu.power_mode) == (11, 10)


def test_unknown_is_not_zero() -> None:
    assert parse([]) == Survey()
    empty = parse(["@@cores", "", "@@memory", "MemTotal: many kB", "@@pci", "@@disk", "df: /opt: No such file"])
    assert (empty.cpu.count, empty.memory_mib, empty.pci, empty.free_mib) == (None, None, None, {})


@given(st.lists(st.text(max_size=80), max_size=30))
def test_garbage_never_raises(text: list[str]) -> None:
    parse(text)


@given(st.sampled_from(sorted(HOSTS)), st.data())
def test_a_section_of_garbage_never_raises(name: str, data: st.DataObject) -> None:
    section = data.draw(st.sampled_from(sorted(HOSTS[name])))
    parse(lines(HOSTS[name] | {section: data.draw(st.text(max_size=200))}))


@given(st.integers(0, len(FULL)), st.integers(0, 40))
def test_a_truncated_survey_never_raises(cut: int, column: int) -> None:
    parse([line[:column] if not line.startswith("@@") else line for line in FULL[:cut]])


def test_megabytes_are_read() -> None:
    parse(
        lines(
            HOSTS["gh200"] | {"smi": "x, " * 1_000_000, "cpu": "CPU part : 0xd4f\n" * 50_000, "numa": "node1|" * 99_999}
        )
    )


def test_localised_output_is_no_value() -> None:
    found = survey(
        "gh200", memory="SpeicherGesamt: 5 kB", disk="Dateisystem 1K-Blöcke Benutzt Verfügbar Verw% Eingehängt auf"
    )
    assert (found.memory_mib, found.free_mib) == (None, {})


def run(path: Path, seconds: float = 60) -> Survey:
    done = subprocess.run(["sh", "-c", SCRIPT], env={"PATH": f"{path}:/usr/bin:/bin"}, capture_output=True, text=True, timeout=seconds)  # fmt: skip
    return parse(done.stdout.splitlines())


def program(path: Path, name: str, text: str) -> None:
    (path / name).write_text("#!/bin/sh\n" + text)
    (path / name).chmod(0o755)


def test_the_script_on_this_machine(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert found.machine
    assert found.kernel
    assert found.page_size
    assert found.cpu.count
    assert found.free_mib["/opt"]
    assert found.init
    for node in found.cpu.nodes:
        assert node.cpus == Path(f"/sys/devices/system/node/node{node.id}/cpulist").read_text().strip()
    siblings = Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
    assert not siblings.exists() or found.cpu.threads == width(siblings.read_text())


def test_the_script_with_an_nvidia_smi_that_hangs(tmp_path: Path) -> None:
    program(
        tmp_path,
        "nvidia-smi",
        f"trap '' TERM; echo $$ >{tmp_path}/pid; /bin/sleep 100 & echo $! >>{tmp_path}/pid; wait",
    )
    program(tmp_path, "sleep", '[ "$1" = 0.1 ] && exec /bin/sleep 0.01; exec /bin/sleep "$@"')
    assert run(tmp_path, 40).driver.smi == "hung"
    for process in (tmp_path / "pid").read_text().split():
        stat = Path(f"/proc/{process}/stat")
        assert not stat.exists() or ") Z " in stat.read_text(), "it ends, and so do its children"


def test_a_program_that_ends_without_a_newline_swallows_no_section(tmp_path: Path) -> None:
    program(tmp_path, "getconf", "printf 'glibc 2.99'")
    found = run(tmp_path)
    assert found.glibc == "2.99"
    assert found.complete
    assert found.cpu.count


def test_a_survey_that_was_cut_off_says_so() -> None:
    assert parse(FULL).complete
    assert not parse(FULL[:-1]).complete


def test_megabytes_of_nvidia_smi_are_cut(tmp_path: Path) -> None:
    program(tmp_path, "nvidia-smi", "yes 'x, y' | head -c 3000000")
    found = run(tmp_path)
    assert found.gpus == ()
    assert found.driver.smi.endswith("(cut off)")
    assert found.cpu.count


def test_the_script_without_room_for_an_answer(tmp_path: Path) -> None:
    program(tmp_path, "nvidia-smi", "exit 0")
    program(tmp_path, "mktemp", "exit 1")
    assert "no room in /tmp" in run(tmp_path).driver.smi


def test_the_script_with_an_nvidia_smi_that_works(tmp_path: Path) -> None:
    program(tmp_path, "nvidia-smi", "echo '0000000F:01:00.0, NVIDIA GB10, 12.1, [N/A], 44, [N/A]'")
    assert run(tmp_path).gpus == (Gpu("000f:01:00.0", "NVIDIA GB10", "12.1", None, 44, None),)

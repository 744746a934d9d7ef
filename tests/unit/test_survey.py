"""The survey: what hosts print, in full, in part, and garbled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from embedfleet.facts.survey import Survey, parse

HOST = """@@machine
x86_64
@@kernel
6.1.0-30-amd64
@@os
PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"
VERSION_ID="12"
ID=debian
@@cpu
model name	: AMD EPYC 7B13
@@cores
2
@@memory
MemTotal:       24569856 kB
MemAvailable:   20480000 kB
@@glibc
glibc 2.36
@@product
KVM
@@pci
0x10de 0x030200
0x10de 0x040300
0x8086 0x020000
@@init
systemd
@@uid
0
@@apt
/usr/bin/apt-get
@@disk
Filesystem     1024-blocks      Used Available Capacity Mounted on
/dev/vda         263174212  23068672  83886080      22% /
/dev/vda         263174212  23068672  83886080      22% /
tmpfs               524288         0    524288       0% /tmp
@@parts
/opt/embedfleet/engines/vllm-0.32.0-cpu-1/manifest.json
@@tcp
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   2: 0100007F:1F41 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
@@listeners
LISTEN 0      2048    127.0.0.1:8000  0.0.0.0:* uid:997 ino:1 sk:1 cgroup:/docker/2f/system.slice/system-embedfleet\\x2dvllm.slice/embedfleet-vllm@8000.service <->
LISTEN 0      128          0.0.0.0:8080       0.0.0.0:*    users:(("nginx",pid=71,fd=5)) ino:1 sk:2 cgroup:/system.slice/embedfleet-gateway.service <->
@@end
""".splitlines()


def test_a_full_survey() -> None:
    survey = parse(HOST)
    assert (survey.machine, survey.os_id, survey.os_version, survey.cores) == ("x86_64", "debian", "12", 2)
    assert (survey.memory_mib, survey.available_mib) == (23994, 20000)
    assert survey.nvidia_devices == 1, "audio functions of a card are no GPU"
    assert survey.free_mib == {"/opt": 81920, "/var": 81920, "/tmp": 512}
    assert survey.parts == {"engines/vllm-0.32.0-cpu-1"}
    by_port = {listener.port: listener for listener in survey.listeners}
    assert set(by_port) == {8080, 8000}, "an established connection is no listener"
    assert (by_port[8080].program, by_port[8080].unit) == ("nginx", "embedfleet-gateway.service")
    assert by_port[8000].unit == "embedfleet-vllm@8000.service", "told by its cgroup, though its process is not seen"


def test_unknown_is_not_zero() -> None:
    assert parse([]) == Survey()
    assert parse([]).nvidia_devices is None
    assert parse(["@@cores", "", "@@memory", "MemTotal: many kB"]).cores is None


@given(st.lists(st.text(max_size=80), max_size=30))
def test_garbage_never_raises(lines: list[str]) -> None:
    parse(lines)


@given(st.integers(0, len(HOST)), st.integers(0, 40))
def test_a_truncated_survey_never_raises(cut: int, column: int) -> None:
    parse([line[:column] if not line.startswith("@@") else line for line in HOST[:cut]])

"""The driver's evidence: the script over a root that stands for a host, and what its sections come to."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedfleet.diagnose import ladder, working
from embedfleet.facts import evidence_parse as read
from embedfleet.facts.driver_state import Holder, MokKey, Package, PciFunction, Service, SmiGpu, version_in
from embedfleet.facts.evidence import DriverEvidence, Evidence, parse
from embedfleet.facts.evidence_script import script
from embedfleet.facts.next_kernel import next_kernel

RUNNING, NEWER, OTHER = "6.8.0-1039-nvidia-64k", "6.8.0-1041-nvidia-64k", "6.8.0-60-generic"
MODINFO = """filename:       /lib/modules/{0}/updates/dkms/nvidia.ko.zst
alias:          char-major-195-*
version:        580.126.20
license:        Dual MIT/GPL
sig_id:         PKCS#7
signer:         gh200 Secure Boot Module Signature key
sig_key:        5E:0B
vermagic:       {0} SMP preempt mod_unload modversions aarch64
signature:      00:11
"""
GRUB = f"""set default="0"
menuentry 'Ubuntu' {{
\tlinux\t/vmlinuz-{NEWER} root=UUID=1 ro
}}
submenu 'Advanced options for Ubuntu' {{
\t\tlinux\t/vmlinuz-{RUNNING} root=UUID=1 ro
}}
"""


def host(root: Path, files: dict[str, str]) -> None:
    """Make files; a name that ends in "->" is a link to its content, one that ends in "/" a folder."""
    for name, text in files.items():
        path = root / name.removesuffix("->").strip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(exist_ok=True)
        elif name.endswith("->"):
            path.symlink_to(text)
        else:
            path.write_text(text)


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n" + text)
    (folder / name).chmod(0o755)


def run(
    tmp: Path, text: str | None = None, path: str = "/usr/bin:/bin", seconds: float = 60, shell: list[str] | None = None
) -> Evidence:
    done = subprocess.run([*(shell or ["sh"]), "-c", text or script(str(tmp / "root"))], env={"PATH": f"{tmp / 'bin'}:{path}"}, capture_output=True, text=True, timeout=seconds)  # fmt: skip
    assert done.stderr == "", "it says nothing of what is missing"
    return parse(done.stdout.splitlines())


@pytest.fixture
def grace(tmp_path: Path) -> Path:
    """A GH200 after a kernel update, its driver built by DKMS, Secure Boot on."""
    gpu, switch = "sys/bus/pci/devices/0009:01:00.0", "sys/bus/pci/devices/0000:05:00.0"
    host(
        tmp_path / "root",
        {
            "proc/sys/kernel/random/boot_id": "1-2-3\n",
            "proc/1/stat": "1 (a (b) c) S 0 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 4242 1 1\n",
            "proc/cmdline": "BOOT_IMAGE=/vmlinuz modprobe.blacklist=nouveau,nvidia quiet\n",
            "proc/keys": "1 I------ 1 perm 1f030000 0 0 keyring .platform: 2\n"
            "144a1224 I------     1 perm 1f030000     0     0 asymmetri Canonical Ltd. Kernel Module Signing: 88f752e5: X509.rsa 1 []\n",
            "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build\nGCC\n",
            "proc/812/comm": "nvidia-persiste\n",
            "proc/812/fd/3->": "/dev/nvidiactl",
            "proc/812/fd/4->": "/dev/nvidia0",
            "proc/813/fd/4->": "/dev/null",
            "sys/module/nvidia/version": "580.95.05\n",
            "sys/module/nova_core/": "",
            "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c": "\6\0\0\0\1",
            "sys/kernel/security/lockdown": "none [integrity] confidentiality\n",
            "sys/module/module/parameters/sig_enforce": "N\n",
            f"{gpu}/vendor": "0x10de\n",
            f"{gpu}/device": "0x2342\n",
            f"{gpu}/class": "0x030200\n",
            f"{gpu}/driver->": "../drivers/nvidia",
            f"{switch}/vendor": "0x10de\n",
            f"{switch}/device": "0x22a3\n",
            f"{switch}/class": "0x068000\n",
            "sys/bus/pci/devices/0000:00:00.0/vendor": "0x8086\n",
            "dev/nvidia0": "",
            "dev/nvidiactl": "",
            f"boot/vmlinuz-{RUNNING}": "",
            f"boot/vmlinuz-{NEWER}": "",
            "boot/grub/grub.cfg": GRUB,
            "boot/grub/grubenv": "# GRUB Environment Block\nsaved_entry=\n#####",
            f"lib/modules/{RUNNING}/updates/dkms/nvidia.ko.zst": "",
            f"lib/modules/{RUNNING}/build->": "/",
            f"lib/modules/{NEWER}/kernel/": "",
            f"lib/modules/{OTHER}/kernel/nvidia-580-open/nvidia.ko": "",
            "var/lib/dkms/nvidia/580.126.20/build/make.log": f"DKMS make.log for nvidia-580.126.20 for kernel {NEWER} (aarch64)\n"
            "make[1]: Entering directory\n  CC [M] nv.o\nnv.c:1: error: implicit declaration of function 'x'\n\nmake: *** [all] Error 2\n",
            "var/lib/dkms/mok.pub": "",
            "usr/lib/aarch64-linux-gnu/libnvidia-ml.so.580.126.20": "",
            "usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1->": "libnvidia-ml.so.580.126.20",
            "etc/modprobe.d/a.conf": "# blacklist nvidia\nblacklist nouveau\ninstall nvidia /bin/false\n",
            "etc/modprobe.d/masked.conf": "",
            "usr/lib/modprobe.d/masked.conf": "blacklist nvidia\n",
            "usr/lib/modprobe.d/debian.conf": "install nvidia modprobe -i nvidia-current $CMDLINE_OPTS\nblacklist nvidiafb\n",
            "run/systemd/system/": "",
            "run/reboot-required": "*** System restart required ***\n",
            "run/reboot-required.pkgs": "linux-base\nlinux-base\n",
        },
    )
    tools = tmp_path / "bin"
    program(tools, "uname", f"echo {RUNNING}")
    known = "\n".join(f"{k}) cat <<'X'\n{MODINFO.format(k)}X\n;;" for k in (RUNNING, OTHER))
    program(
        tools, "modinfo", f'case "$2" in {known}\n*) echo "modinfo: ERROR: Module $3 not found." >&2; exit 1 ;; esac'
    )
    program(tools, "dkms", f"echo 'nvidia/580.126.20, {RUNNING}, aarch64: installed'; echo 'zfs/2, {NEWER}, aarch64: added'")  # fmt: skip
    program(tools, "dmesg", "echo '[1] NVRM: loading NVIDIA UNIX Open Kernel Module'; echo '[1] audit: apparmor nvidia_modprobe'; echo '[2] usb'")  # fmt: skip
    program(tools, "ldconfig", "echo 'libnvidia-ml.so.1 (libc6,AArch64) => '" + str(tmp_path / "root/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1"))  # fmt: skip
    program(tools, "mokutil", '[ "$1" = --test-key ] && echo "$2 is not enrolled"')
    program(tools, "systemctl", "printf 'Id=nvidia-persistenced.service\\nLoadState=loaded\\nActiveState=active\\nUnitFileState=enabled\\n\\nId=nvidia-imex.service\\nLoadState=not-found\\nActiveState=inactive\\nUnitFileState=\\n'")  # fmt: skip
    program(tools, "dpkg-query", "printf 'ii |nvidia-utils-580-server|580.126.20-0ubuntu0.24.04.1\\niF |nvidia-dkms-580-server-open|580.126.20-0ubuntu0.24.04.1\\nun |nvidia-x|\\nrc |nvidia-old|1\\nii |linux-image-x|6.8\\niF |linux-headers-x|6.8\\n'")  # fmt: skip
    program(tools, "nvidia-smi", "case $1 in *fabric*) echo '00000009:01:00.0, In Progress, N/A';; esac")
    return tmp_path


def test_a_whole_host(grace: Path) -> None:
    found = run(grace)
    assert found.complete
    assert (found.boot, found.kernel, found.next_kernel) == ("1-2-3 4242", RUNNING, NEWER)
    assert found.next_remark == "the first entry of grub.cfg"
    mine = found.running_module
    assert (mine.asked, mine.version, mine.open, mine.signed, mine.vermagic) == (
        True,
        "580.126.20",
        True,
        True,
        RUNNING,
    )
    assert (mine.signer, mine.headers, mine.dkms) == ("gh200 Secure Boot Module Signature key", True, "installed")
    coming = found.next_module
    assert (coming.asked, coming.path, coming.headers, coming.dkms) == (True, "", False, "")
    assert found.elsewhere(NEWER) == (RUNNING, OTHER)
    assert (found.loaded, found.loaded_open, found.userspace) == ("580.95.05", True, "580.126.20")
    assert (found.nouveau, found.nova, found.nouveau_off) == (False, True, False), "nova_core is not"
    assert (found.smi, found.gpus) == ("ok", (SmiGpu("0009:01:00.0", "In Progress"),))
    assert found.pci == (
        PciFunction("0000:05:00.0", "22a3", "nvswitch"),
        PciFunction("0009:01:00.0", "2342", "gpu", "nvidia"),
    )
    assert (found.unlisted, found.unseen, len(found.switches)) == ((), (), 1)
    assert found.nodes == ("/dev/nvidia0", "/dev/nvidiactl")
    assert found.holders == (Holder(812, "nvidia-persiste"),)
    assert found.disabled == ("/etc/modprobe.d/a.conf: install nvidia /bin/false",), "masked, commented or Debian's own"
    assert found.cmdline == ("modprobe.blacklist=nouveau,nvidia",)
    assert (found.secure_boot, found.lockdown, found.sig_enforce) == (True, "integrity", False)
    assert found.trusted == ("Canonical Ltd. Kernel Module Signing",)
    assert found.mok == (MokKey("/var/lib/dkms/mok.pub", "not enrolled"),)
    assert found.dkms == (f"nvidia/580.126.20, {RUNNING}, aarch64: installed",)
    assert found.build_log[0].endswith(f"for kernel {NEWER} (aarch64)")
    assert found.build_log[1:] == ("nv.c:1: error: implicit declaration of function 'x'", "make: *** [all] Error 2")
    assert found.log == ("[1] NVRM: loading NVIDIA UNIX Open Kernel Module",)
    assert [(p.name, p.broken) for p in found.packages or ()] == [
        ("nvidia-utils-580-server", ""),
        ("nvidia-dkms-580-server-open", "half-configured"),
        ("linux-headers-x", "half-configured"),
    ]
    assert found.manager == "dpkg"
    assert found.service("nvidia-persistenced") == Service("nvidia-persistenced", "active", "enabled")
    assert found.service("nvidia-imex") == Service("nvidia-imex", "absent")
    assert found.reboot_required == "required, linux-base"


def test_a_host_that_has_nothing(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in [
        "sh",
        "sed",
        "grep",
        "cut",
        "head",
        "tail",
        "cat",
        "find",
        "ls",
        "readlink",
        "sort",
        "uniq",
        "uname",
        "mktemp",
    ]:
        (tools / name).symlink_to(next(p for p in (Path("/usr/bin", name), Path("/bin", name)) if p.exists()))
    text = script(str(tmp_path / "root"))
    bare = text.replace(':/usr/sbin:/sbin:/usr/local/cuda/bin"', '"')
    assert bare != text
    found = run(tmp_path, bare, path="/nowhere", seconds=5)
    assert found.complete
    assert found.next_kernel == found.kernel != ""
    assert (found.pci, found.log, found.packages, found.services, found.trusted) == (None, None, None, None, None)
    assert (found.running_module.asked, found.running_module.headers) == (False, None)
    assert (found.smi, found.loaded, found.userspace, found.secure_boot) == ("absent", "", "", False)


def test_the_script_on_this_machine(tmp_path: Path) -> None:
    found = run(tmp_path, script())
    assert found.complete
    assert found.kernel
    assert found.boot.startswith(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    assert found.boot.split()[1].isdigit()


def test_an_old_nvidia_smi_without_fabric_is_asked_again(grace: Path) -> None:
    program(grace / "bin", "nvidia-smi", "case $1 in *fabric*) echo 'Field \"fabric.state\" is not a valid field to query.'; exit 2;; esac; echo 0000000F:01:00.0")  # fmt: skip
    found = run(grace)
    assert (found.smi, found.gpus) == ("ok", (SmiGpu("000f:01:00.0"),))
    assert (found.unlisted, found.unseen) == (("0009:01:00.0",), ("000f:01:00.0",))


def test_an_nvidia_smi_that_hangs(grace: Path) -> None:
    program(grace / "bin", "nvidia-smi", "exec /bin/sleep 100")
    program(grace / "bin", "sleep", '[ "$1" = 0.1 ] && exec /bin/sleep 0.01; exec /bin/sleep "$@"')
    assert run(grace, seconds=40).smi == "hung"


def test_a_log_that_may_not_be_read(grace: Path) -> None:
    program(grace / "bin", "dmesg", "exit 1")
    program(grace / "bin", "journalctl", "exit 1")
    assert run(grace).log is None
    program(grace / "bin", "journalctl", "echo 'host kernel: NVRM: GPU lost'")
    assert run(grace).log == ("host kernel: NVRM: GPU lost",)


def test_a_modinfo_that_knows_no_other_kernels_is_not_asked(grace: Path) -> None:
    program(grace / "bin", "modinfo", "echo \"modinfo: invalid option -- 'k'\" >&2; exit 1")
    mine = run(grace).running_module
    assert (mine.asked, mine.indexed, mine.version) == (False, None, "")
    assert mine.path.endswith("nvidia.ko.zst"), "the file is seen all the same"


def test_rpm_systems(grace: Path) -> None:
    program(grace / "bin", "dnf", "")
    program(grace / "bin", "rpm", "printf 'nvidia-driver|580.126.20-1.el9\\nnvidia-driver|580.95.05-1.el9\\nkmod-nvidia-a|1-1\\nkmod-nvidia-a|2-1\\n'")  # fmt: skip
    text = script(str(grace / "root")).replace("if has dpkg-query", "if has no-dpkg-query")
    found = run(grace, text)
    assert found.manager == "rpm"
    assert [package.broken for package in found.packages or ()] == ["", "installed twice, also as 580.126.20-1.el9", "", ""]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "nvidia", "off"),
    [
        ("module_blacklist=nouveau,nvidia", ("module_blacklist=nouveau,nvidia",), {"nouveau"}),
        ("rd.driver.blacklist=nova-core quiet", (), {"nova_core"}),
        ("modprobe.blacklist=nvidiafb,nvidia_drm", (), set()),
        ("nomodeset", (), {"nouveau"}),
        ("nvidia.NVreg_X=1 BOOT=nvidia", (), set()),
    ],
)
def test_the_kernels_arguments(text: str, nvidia: tuple[str, ...], off: set[str]) -> None:
    assert read.cmdline(text) == (nvidia, off)


@pytest.mark.parametrize(
    ("rule", "stops"),
    [
        ("blacklist nvidia", True),
        ("  blacklist\tnvidia-current ", True),
        ("install nvidia /usr/bin/true", True),
        ("install nvidia /bin/false # off", True),
        ("install nvidia :", True),
        ("alias nvidia off", True),
        ("install nvidia modprobe -i nvidia-current $CMDLINE_OPTS", False),
        ("install nvidia /sbin/modprobe --ignore-install nvidia", False),
        ("alias nvidia nvidia-current", False),
        ("blacklist nvidiafb", False),
    ],
)
def test_what_keeps_modprobe_from_it(rule: str, stops: bool) -> None:
    assert bool(read.disabled([f"/etc/modprobe.d/a.conf:{rule}"])[0]) is stops


@pytest.mark.parametrize("shell", [["bash", "--posix"], ["busybox", "sh"]])
def test_other_shells_read_the_same(grace: Path, shell: list[str]) -> None:
    if not shutil.which(shell[0]):
        pytest.skip(f"no {shell[0]}")
    assert run(grace, shell=shell) == run(grace)


@pytest.mark.parametrize(
    ("grubby", "link", "grub", "expected", "why"),
    [
        (f"/boot/vmlinuz-{OTHER}", "", "", OTHER, "grubby"),
        ("", "", f"cfg\nset default=\"0\"\nlinux /boot/vmlinuz-{NEWER}\nlinux /vmlinuz-{RUNNING}", NEWER, "first entry"),
        ("", "", f"next_entry=Ubuntu, with Linux {OTHER}\ncfg\nset default=\"0\"\nlinux /vmlinuz-{NEWER}", OTHER, "next_entry"),
        ("", "", f"cfg\nset default=\"${{next_entry}}\"\nset default=\"gnulinux-advanced-1>gnulinux-{RUNNING}-advanced-1\"\nlinux /vmlinuz-{NEWER}", RUNNING, "GRUB's default"),
        ("", "", f"saved_entry=abc-{OTHER}\ncfg\nset default=\"${{saved_entry}}\"\nlinux /vmlinuz-{NEWER}", OTHER, "GRUB's default"),
        ("", "", f"cfg\nset default=\"${{saved_entry}}\"\nlinux /vmlinuz-{NEWER}", NEWER, "first entry"),
        ("", "", f"cfg\nset default=\"1>2\"\nlinux /vmlinuz-{NEWER}", "", "names none of the kernels"),
        ("", "", "cfg\nset default=\"My entry\"", "", "'My entry'"),
        ("", "", "cfg\nset default=\"0\"", "", "names no kernel"),
        ("", f"boot/vmlinuz-{NEWER}", "", NEWER, "/vmlinuz"),
        ("", f"boot/vmlinuz-{OTHER}", "", "", "no GRUB"),
        ("", "", "", "", "no GRUB"),
    ],
)  # fmt: skip
def test_the_next_kernel(grubby: str, link: str, grub: str, expected: str, why: str) -> None:
    images = [f"vmlinuz-{RUNNING}", f"vmlinuz-{NEWER}", f"vmlinuz-{OTHER}", "vmlinuz-0-rescue-1"]
    kernel, remark = next_kernel(RUNNING, images, grubby, link, grub.splitlines())
    assert kernel == expected
    assert why in remark


def test_the_next_kernel_of_a_container_is_its_own() -> None:
    assert next_kernel(RUNNING, [], "", "", [])[0] == RUNNING
    assert next_kernel(RUNNING, [f"vmlinux-{NEWER}"], "", "", [])[0] == NEWER, "ppc64el's are called vmlinux"


def test_a_kernel_whose_name_begins_with_anothers() -> None:
    images = ["vmlinuz-5.14.0-503.el9.aarch64", "vmlinuz-5.14.0-503.el9.aarch64+64k"]
    grub = ["saved_entry=abc-5.14.0-503.el9.aarch64+64k", "cfg", 'set default="${saved_entry}"']
    assert next_kernel("x", images, "", "", grub)[0] == "5.14.0-503.el9.aarch64+64k"


@pytest.mark.parametrize(
    ("name", "driver"),
    [
        ("nvidia-driver-580-server-open", True),
        ("linux-modules-nvidia-580-server-open-nvidia-64k", True),
        ("nvidia-open", True),
        ("kmod-nvidia-open-dkms", True),
        ("libnvidia-compute-580-server", True),
        ("nvidia-container-toolkit", False),
        ("nvidia-driver-pinning-580", False),
        ("linux-image-6.8.0-1039-nvidia-64k", False),
        ("linux-modules-nvidia-fs-6.8.0", False),
        ("nvidia-fabricmanager", False),
    ],
)
def test_which_packages_are_the_driver(name: str, driver: bool) -> None:
    assert Package(name, "1").driver is driver


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("580.126.20-0ubuntu0.24.04.1", "580.126.20"),
        ("580.142-1.el9", "580.142"),
        ("6.8.0-1039.39", ""),
        ("1:2.24.04", ""),
    ],
)
def test_the_drivers_version_in_a_packages(text: str, version: str) -> None:
    assert version_in(text) == version


@pytest.mark.parametrize("cell", ["N/A", "[N/A]", "Not Supported", "[Not Supported]", ""])
def test_no_fabric_is_no_state(cell: str) -> None:
    gpus, how = read.smi_gpus([f"00000000:00:06.0, {cell}, N/A", "@rc=0"])
    assert (gpus, how) == ((SmiGpu("0000:00:06.0"),), "ok"), "as an H200 without a fabric answers"


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("k is already enrolled", "enrolled"),
        ("k is already in db", "enrolled"),
        ("k is already in the enrollment request", "requested"),
        ("k is not enrolled", "not enrolled"),
        ("k is blocked in MokListX", "blocked"),
        ("EFI variables are not supported on this system", "unknown"),
    ],
)
def test_what_mokutil_says(text: str, state: str) -> None:
    assert read.mok(["key k", text]) == (MokKey("k", state),)


def test_dkms_of_both_ages() -> None:
    lines = ["nvidia, 535.54.03, 5.15.0-76-generic, x86_64: installed", "nvidia-open/580.1: added", "nvidia/580.1, 6.8.0-1-a, x86_64: built (WARNING!)"]  # fmt: skip
    found = {m.kernel: m.dkms for m in read.modules(["kernel 5.15.0-76-generic", "kernel 6.8.0-1-a"], [], lines)}
    assert found == {"5.15.0-76-generic": "installed", "6.8.0-1-a": "built"}


H200 = """@@kernel
6.18.44-fc-v973-gpu
@@modules
kernel 6.18.44-fc-v973-gpu
@@banner
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)
@@loaded
580.159.04
@@linked
/usr/local/nvidia/lib64/libnvidia-ml.so.580.159.04
@@smi
00000000:00:06.0, N/A, N/A
@rc=0
@@pci
bus
0000:00:06.0 0x10de 0x2335 0x030200 nvidia
@@nodes
/dev/nvidia-caps
/dev/nvidia-uvm
/dev/nvidia-uvm-tools
/dev/nvidia0
/dev/nvidiactl
@@secureboot
none
@@sigenforce
Y
@@keys
Build time autogenerated kernel key: 4d516c58e525776e0df512e5a9f5033c9d0babe8: X509.rsa 9d0babe8 []
@@log
readable
[    0.794250] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)
[    3.755329] NVRM: Persistence mode is deprecated and will be removed in a future release. Please use nvidia-persistenced instead.
@@packages
dpkg
@@end"""


def test_what_a_machine_with_an_h200_told() -> None:
    """Recorded command by command (2026-11-30): a guest without kmod, systemd or driver packages."""
    found = parse(H200.splitlines())
    assert (found.loaded, found.loaded_open, found.userspace, found.smi) == ("580.159.04", True, "580.159.04", "ok")
    assert (found.gpus, found.unlisted, found.unseen) == ((SmiGpu("0000:00:06.0"),), (), ())
    assert (found.sig_enforce, found.trusted) == (True, ("Build time autogenerated kernel key",))
    told = {finding.cause for finding in working(found, flavour="open", fabric=False)}
    assert told == {"module-missing", "persistence"}, (
        "nothing of the driver itself: there is no module file, and no systemd"
    )
    assert ladder(found, flavour="open").cause == "unknown"


def test_nothing_is_unknown() -> None:
    assert parse([]) == Evidence(next_remark=parse([]).next_remark)
    assert DriverEvidence().process([]).complete is False


SECTIONS = ["boot", "kernel", "cmdline", "images", "grubby", "link", "grub", "modules", "files", "dkms", "build", "banner", "loaded", "others", "linked", "libraries", "smi", "pci", "nodes", "holders", "modprobe", "secureboot", "lockdown", "sigenforce", "keys", "mok", "log", "packages", "services", "reboot", "end"]  # fmt: skip
LINES = st.one_of(
    st.text(max_size=60),
    st.sampled_from(SECTIONS).map("@@{}".format),
    st.sampled_from(["bus", "cfg", "dpkg", "rpm", "systemd", "readable", "--", "kernel x", "key x", "@rc=0", "headers no"]),
    st.sampled_from(["a|b|c", "|", "||", "Id=", "Id=x", "filename: /x", "ERROR: not found", "set default=", "linux ", "x, y, z: a"]),
)  # fmt: skip


@given(st.lists(LINES, max_size=60))
def test_garbage_never_raises(lines: list[str]) -> None:
    parse(lines)


@given(st.data())
def test_every_section_of_garbage_never_raises(data: st.DataObject) -> None:
    lines = []
    for name in SECTIONS:
        lines += [f"@@{name}", *data.draw(st.lists(LINES, max_size=3))]
    parse(lines)


def test_the_script_names_the_sections_that_are_read() -> None:
    text = script()
    for name in SECTIONS:
        assert f"s {name}" in text, name


def test_a_root_with_a_blank_is_quoted() -> None:
    assert "R='/a b'" in script("/a b")


def test_what_a_real_h200_told() -> None:
    """Recorded on an H200 of 2026-11-30 (580.159.04, a virtual machine without modules on its disk and without systemd)."""
    text = (Path(__file__).parent / "recorded" / "h200-evidence.txt").read_text()
    found = parse(text.splitlines())
    assert found.complete
    assert (found.loaded, found.loaded_open, found.userspace, found.smi) == ("580.159.04", True, "580.159.04", "ok")
    assert [gpu.address for gpu in found.gpus] == ["0000:00:06.0"]
    assert found.gpus[0].fabric_state == ""
    assert found.unlisted == ()
    assert "/dev/nvidiactl" in found.nodes
    assert {finding.cause for finding in working(found, flavour="open", fabric=False)} == {
        "module-missing",
        "persistence",
    }

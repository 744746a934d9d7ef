"""The diagnosis: every cause from a host that is proven good and one thing changed; and one cause for any host at all."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedfleet.diagnose import CAUSES, Finding, before_reboot, ladder, working
from embedfleet.facts.driver_state import Holder, KernelModule, MokKey, Package, PciFunction, Service, SmiGpu
from embedfleet.facts.evidence import Evidence

PAGE = Path(__file__).parents[2] / "docs" / "driver-troubleshooting.md"
K64, NEW64, K4 = "6.8.0-1039-nvidia-64k", "6.8.0-1041-nvidia-64k", "6.8.0-60-generic"
V, OLD = "580.126.20", "580.95.05"
CANONICAL = "Canonical Ltd. Kernel Module Signing"
DKMS_KEY = "gh200 Secure Boot Module Signature key"


def module(kernel: str = K64, **changes: Any) -> KernelModule:
    good = KernelModule(
        kernel, True, f"/lib/modules/{kernel}/kernel/nvidia.ko", True, V, True, True, CANONICAL, kernel, True
    )
    return replace(good, **changes)


def absent(kernel: str = K64, **changes: Any) -> KernelModule:
    return replace(KernelModule(kernel, asked=True, indexed=False, headers=True), **changes)


def gpu(driver: str = "nvidia", address: str = "0009:01:00.0", device: str = "2342") -> PciFunction:
    return PciFunction(address, device, "gpu", driver)


SWITCH = PciFunction("0000:05:00.0", "22a3", "nvswitch", "nvidia-nvswitch")
SERVICES = (
    Service("nvidia-persistenced", "active", "enabled"),
    Service("nvidia-fabricmanager", "absent"),
    Service("nvidia-imex", "absent"),
)
UTILS = Package("nvidia-utils-580-server", f"{V}-0ubuntu0.24.04.1")

#: A GH200 whose driver is proven.
GOOD = Evidence(
    complete=True,
    boot="a 1",
    kernel=K64,
    next_kernel=K64,
    next_remark="the first entry of grub.cfg",
    modules=(module(),),
    loaded=V,
    loaded_open=True,
    userspace=V,
    smi="ok",
    gpus=(SmiGpu("0009:01:00.0"),),
    pci=(gpu(),),
    nodes=("/dev/nvidia0", "/dev/nvidiactl"),
    nouveau_off=True,
    secure_boot=True,
    lockdown="integrity",
    sig_enforce=False,
    trusted=(CANONICAL,),
    log=(),
    manager="dpkg",
    packages=(UTILS,),
    services=SERVICES,
)
NVSWITCH = replace(GOOD, pci=(gpu(), SWITCH), packages=(UTILS, Package("nvidia-fabricmanager", f"{V}-1")), services=(SERVICES[0], Service("nvidia-fabricmanager", "active")))  # fmt: skip
FAILED = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. (exit 9)"
#: The same host with its module on disk and not loaded, after nothing at all explained it.
DOWN = replace(GOOD, loaded="", loaded_open=None, smi=FAILED, gpus=(), pci=(gpu(""),), nodes=())
#: The module is loaded, and nvidia-smi finds nothing.
LOADED = replace(GOOD, smi="No devices were found (exit 6)", gpus=())


def causes(found: tuple[Finding, ...]) -> list[str]:
    return [finding.cause for finding in found]


def test_a_good_host_has_no_findings() -> None:
    assert before_reboot(GOOD, flavour="open") == ()
    assert working(GOOD, flavour="open", fabric=False) == ()
    assert working(NVSWITCH, flavour="open", fabric=True, gpus=1) == ()


def nvidia(**changes: Any) -> dict[str, Any]:
    return {"modules": (module(**changes),)}


BEFORE: list[tuple[str, dict[str, Any], str]] = [
    ("evidence-incomplete", {"complete": False}, "did not answer"),
    ("packages-broken", {"packages": (replace(UTILS, broken="half-configured"),)}, "nvidia-utils-580-server"),
    ("packages-unknown", {"packages": None}, "half-configured"),
    ("next-kernel-unknown", {"next_kernel": "", "next_remark": "GRUB's default is 'mine'"}, "'mine'"),
    ("dkms-build-failed", {"next_kernel": NEW64, "modules": (module(), absent(NEW64)), "dkms": ("x",), "build_log": (f"DKMS make.log for nvidia-{V} for kernel {NEW64} (aarch64)", "nv.c: error: no")}, "nv.c: error: no"),
    ("headers-missing", {"next_kernel": NEW64, "modules": (module(), absent(NEW64, headers=False)), "dkms": (f"nvidia/{V}, {K64}, aarch64: installed",)}, NEW64),
    ("module-other-kernel", {"next_kernel": K4, "modules": (module(), absent(K4))}, f"of the generic flavour; there is one for {K64}"),
    ("module-missing", {"modules": (absent(),)}, "nor for any other kernel"),
    ("module-missing", {"modules": (absent(dkms="built"),)}, "as built only"),
    ("module-missing", {"modules": ()}, K64),
    ("module-not-indexed", nvidia(indexed=False, asked=True, version=""), "modprobe does not find it"),
    ("module-unknown", nvidia(asked=False, indexed=None, version="", open=None, vermagic="", signed=None), "modinfo is not there"),
    ("module-unknown", nvidia(version=""), "version cannot be told"),
    ("module-unknown", nvidia(open=None), "licence cannot be told"),
    ("userspace-missing", {"userspace": ""}, "no libnvidia-ml"),
    ("module-version", nvidia(version=OLD), f"is {OLD}, user space is {V}"),
    ("wrong-flavour", nvidia(open=False), "the proprietary one, open is wanted"),
    ("module-vermagic", nvidia(vermagic=K4), f"built for {K4}"),
    ("secure-boot-unsigned", nvidia(signed=False, signer=""), "Secure Boot is on"),
    ("secure-boot-unsigned", {**nvidia(signed=False, signer=""), "secure_boot": False, "lockdown": "none", "sig_enforce": True}, "signed modules alone"),
    ("secure-boot-unknown", {**nvidia(signed=False, signer=""), "secure_boot": None, "lockdown": "", "sig_enforce": None}, "is not known"),
    ("secure-boot-key-not-enrolled", {**nvidia(signer=DKMS_KEY), "mok": (MokKey("/var/lib/dkms/mok.pub", "not enrolled"),)}, "mok.pub is not enrolled"),
    ("secure-boot-key-not-enrolled", {**nvidia(signer=DKMS_KEY), "mok": (MokKey("/k", "blocked"),)}, "/k is blocked"),
    ("secure-boot-key-requested", {**nvidia(signer=DKMS_KEY), "mok": (MokKey("/k", "requested"),)}, "at the console"),
    ("secure-boot-key-unknown", {**nvidia(signer=DKMS_KEY), "mok": (MokKey("/k", "unknown"),)}, DKMS_KEY),
    ("secure-boot-key-unknown", nvidia(signer=""), "a key without a name"),
    ("module-disabled", {"disabled": ("/etc/modprobe.d/a.conf: blacklist nvidia",)}, "a.conf"),
    ("module-disabled", {"cmdline": ("module_blacklist=nvidia",)}, "module_blacklist=nvidia"),
    ("initramfs-missing", {"initrds": (f"initrd.img-{K64}",), "next_kernel": NEW64, "modules": (module(), replace(module(), kernel=NEW64, vermagic=NEW64))}, "has no initramfs"),
    ("nouveau-not-off", {"nouveau": True, "nouveau_off": False}, "nouveau is loaded"),
    ("nouveau-not-off", {"nova": True, "nouveau_off": False}, "nova_core is loaded"),
]  # fmt: skip


@pytest.mark.parametrize(("cause", "changes", "words"), BEFORE)
def test_why_a_reboot_must_not_happen(cause: str, changes: dict[str, Any], words: str) -> None:
    found = before_reboot(replace(GOOD, **changes), flavour="open")
    assert causes(found) == [cause]
    assert words in found[0].reason
    assert found[0].cure
    assert not found[0].reboot, "what forbids a reboot is not cured by it"


@pytest.mark.parametrize(
    "changes",
    [
        nvidia(signer=DKMS_KEY) | {"mok": (MokKey("/k", "enrolled"),)},
        nvidia(signer=DKMS_KEY) | {"trusted": (DKMS_KEY,)},
        nvidia(signed=False) | {"secure_boot": False, "lockdown": "none"},
        nvidia(signed=False) | {"secure_boot": None, "lockdown": "none"},
        nvidia(vermagic=K4, path=f"/lib/modules/{K64}/weak-updates/nvidia/nvidia.ko.xz"),
        {"nouveau": True},
        {"loaded": "", "loaded_open": None, "smi": FAILED, "gpus": ()},
        {"next_kernel": NEW64, "modules": (absent(), module(NEW64))},
    ],
)
def test_what_does_not_forbid_a_reboot(changes: dict[str, Any]) -> None:
    assert before_reboot(replace(GOOD, **changes), flavour="open") == ()


def test_a_key_of_one_build_is_not_trusted_by_the_next_kernel() -> None:
    key = "Build time autogenerated kernel key"
    coming = replace(GOOD, next_kernel=NEW64, modules=(module(), module(NEW64, signer=key)), trusted=(key,))
    assert causes(before_reboot(coming, flavour="open")) == ["secure-boot-key-unknown"]


def test_all_that_forbids_a_reboot_is_told_at_once() -> None:
    bad = replace(GOOD, packages=(replace(UTILS, broken="half-installed"),), **nvidia(version=OLD, open=False, vermagic=K4, signed=False), disabled=("x: blacklist nvidia",))  # fmt: skip
    assert causes(before_reboot(bad, flavour="open")) == ["packages-broken", "module-version", "wrong-flavour", "module-vermagic", "secure-boot-unsigned", "module-disabled"]  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "manager", "words"),
    [
        (K64, "dpkg", f"apt-get install linux-headers-{K64}"),
        ("5.14.0-503.el9.aarch64", "rpm", "dnf install kernel-devel-5.14.0-503.el9.aarch64"),
        ("5.14.0-503.el9.aarch64+64k", "rpm", "dnf install kernel-64k-devel-5.14.0-503.el9.aarch64,"),
    ],
)
def test_headers_by_the_kernels_flavour(kernel: str, manager: str, words: str) -> None:
    host = replace(
        GOOD, next_kernel=kernel, modules=(absent(kernel, headers=False),), dkms=("nvidia",), manager=manager
    )
    [found] = before_reboot(host, flavour="open")
    assert found.cause == "headers-missing"
    assert words in found.cure


WORKING: list[tuple[str, dict[str, Any], str]] = [
    ("evidence-incomplete", {"complete": False}, "did not answer"),
    ("version-mismatch", {"loaded": OLD}, f"module {OLD} is loaded, user space is {V}, {V} is on disk"),
    ("module-version", nvidia(version=OLD), OLD),
    ("wrong-flavour", {"loaded_open": False}, "the loaded module"),
    ("flavour-unknown", {"loaded_open": None}, "not known"),
    ("module-missing", {"modules": (absent(),)}, K64),
    ("gpu-not-listed", {"pci": (gpu(), gpu("nvidia", "0019:01:00.0"))}, "0019:01:00.0"),
    ("pci-unknown", {"pci": None}, "no PCI bus"),
    ("fabric-in-progress", {"gpus": (SmiGpu("0009:01:00.0", "In Progress"),)}, "In Progress"),
    ("fabric-in-progress", {"gpus": (SmiGpu("0009:01:00.0", "Not Started"),)}, "Not Started"),
    ("fabric-failed", {"gpus": (SmiGpu("0009:01:00.0", "Completed", "Insufficient Resources"),)}, "Insufficient"),
    ("fabric-failed", {"gpus": (SmiGpu("0009:01:00.0", "Completed"),)}, "no status"),
    ("persistence", {"services": (Service("nvidia-persistenced", "failed"),)}, "is failed"),
    ("persistence", {"services": ()}, "is absent"),
    ("persistence", {"services": None}, "no systemd"),
]  # fmt: skip


@pytest.mark.parametrize(("cause", "changes", "words"), WORKING)
def test_what_does_not_work(cause: str, changes: dict[str, Any], words: str) -> None:
    found = working(replace(GOOD, **changes), flavour="open", fabric=False)
    assert causes(found) == [cause]
    assert words in found[0].reason
    assert found[0].cure


def test_a_fabric_that_is_wanted_and_not_there() -> None:
    assert causes(working(GOOD, flavour="open", fabric=True)) == ["fabric-unknown"]
    joined = replace(GOOD, gpus=(SmiGpu("0009:01:00.0", "Completed", "Success"),))
    assert working(joined, flavour="open", fabric=True) == ()


def test_too_few_gpus() -> None:
    [found] = working(GOOD, flavour="open", fabric=False, gpus=2)
    assert (found.cause, found.reason) == ("gpu-missing", "nvidia-smi lists 1 GPUs, 2 are wanted")


def test_a_gpu_that_a_guest_has_is_not_missed() -> None:
    host = replace(GOOD, pci=(gpu(), gpu("vfio-pci", "0019:01:00.0")))
    assert working(host, flavour="open", fabric=False) == ()


def test_a_module_that_is_loaded_is_not_asked_for_its_signature() -> None:
    unsigned = replace(GOOD, **nvidia(signed=False))
    assert working(unsigned, flavour="open", fabric=False) == ()
    assert causes(before_reboot(unsigned, flavour="open")) == ["secure-boot-unsigned"], "the next boot may refuse it"


def test_a_driver_that_is_down_is_told_by_the_ladder_once() -> None:
    found = working(replace(DOWN, pci=(gpu("nouveau"),)), flavour="open", fabric=False)
    assert causes(found) == ["nouveau"]


def test_a_reboot_cures_a_mismatch_only_where_the_next_module_is_proven() -> None:
    late = replace(GOOD, loaded=OLD, holders=(Holder(812, "nvidia-persiste"),))
    [found] = working(late, flavour="open", fabric=False)
    assert (found.cause, found.reboot) == ("version-mismatch", True)
    assert "nvidia-persiste (812)" in found.reason
    assert found.cure == f"reboot: module {V} for {K64} is proven on disk"
    unsafe = replace(late, packages=(replace(UTILS, broken="half-configured"),))
    [found] = working(unsafe, flavour="open", fabric=False)
    assert not found.reboot
    assert found.cure.startswith("before a reboot: dpkg --configure -a")


def smi(text: str) -> dict[str, Any]:
    return {"smi": text}


def log(*lines: str) -> dict[str, Any]:
    return {"log": tuple(f"[    5.1] {line}" for line in lines)}


NEEDS_OPEN = log(
    "NVRM: The NVIDIA GPU 0000:02:00.0 (PCI ID: 10de:2c58)",
    "NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
    "NVRM: GPU 0000:02:00.0: RmInitAdapter failed! (0x22:0x56:884)",
)
NO_GSP = log("NVRM: installed in this system is not supported by open", "NVRM: nvidia.ko because it does not include")
NO_BAR = log("NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:", "NVRM: BAR1 is 0M @ 0x0")
LADDER: list[tuple[str, Evidence, dict[str, Any], str]] = [
    ("evidence-incomplete", DOWN, {"complete": False}, "did not answer"),
    ("no-gpu", DOWN, {"pci": ()}, "shows no GPU"),
    ("no-gpu", DOWN, {"pci": (SWITCH,)}, "shows no GPU"),
    ("passthrough", DOWN, {"pci": (gpu("nvgrace_gpu_vfio_pci"),)}, "nvgrace_gpu_vfio_pci"),
    ("no-driver", DOWN, {"packages": (Package("nvidia-container-toolkit", "1.18"),), "userspace": "", "modules": (absent(),)}, "no driver is installed"),
    ("packages-broken", DOWN, {"packages": (replace(UTILS, broken="half-configured"),)}, "half-configured"),
    ("dkms-build-failed", DOWN, {"modules": (absent(),), "build_log": (f"for kernel {K64} (aarch64)", "make: *** Error 2")}, "Error 2"),
    ("headers-missing", DOWN, {"modules": (absent(headers=False),), "dkms": ("nvidia/580: added",)}, K64),
    ("module-other-kernel", DOWN, {"modules": (absent(), module(K4))}, f"of the nvidia-64k flavour; there is one for {K4}"),
    ("module-missing", DOWN, {"modules": (absent(),)}, K64),
    ("module-not-indexed", DOWN, nvidia(indexed=False, version="", asked=True), "modprobe does not find"),
    ("module-disabled", DOWN, {"disabled": ("/etc/modprobe.d/x.conf: blacklist nvidia",)}, "x.conf"),
    ("module-disabled", DOWN, {"cmdline": ("modprobe.blacklist=nvidia",)}, "modprobe.blacklist"),
    ("nouveau", DOWN, {"pci": (gpu("nouveau"),), "nouveau": True}, "0009:01:00.0"),
    ("nouveau", DOWN, {"pci": (gpu("NovaCore"),)}, "NovaCore"),
    ("nouveau", DOWN, {"nova": True, "pci": None}, "nova_core"),
    ("other-driver", DOWN, {"pci": (gpu("pci-stub"),)}, "pci-stub"),
    ("other-driver", DOWN, log("NVRM: GPU 0000:01:00.0 is already bound to rivafb."), "rivafb"),
    ("secure-boot-unsigned", DOWN, nvidia(signed=False), "not signed"),
    ("secure-boot-unsigned", DOWN, log("Loading of unsigned module is rejected"), "unsigned module"),
    ("secure-boot-unsigned", DOWN, log("nvidia: loading of unsigned module is rejected"), "unsigned module"),
    ("secure-boot-key-unknown", DOWN, log("Loading of module with unavailable key is rejected"), "unavailable key"),
    ("secure-boot-key-unknown", DOWN, log("modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"), "rejected by service"),
    ("secure-boot-key-not-enrolled", DOWN, nvidia(signer=DKMS_KEY) | {"mok": (MokKey("/k", "not enrolled"),)}, "/k is not enrolled"),
    ("secure-boot-key-requested", DOWN, nvidia(signer=DKMS_KEY) | {"mok": (MokKey("/k", "requested"),)}, "console"),
    ("wrong-flavour", DOWN, NEEDS_OPEN | nvidia(open=False), "open kernel modules alone"),
    ("wrong-flavour", DOWN, NO_GSP | {"pci": (gpu("", device="1db1"),)}, "no GSP"),
    ("module-vermagic", DOWN, nvidia(vermagic=K4), f"built for {K4}"),
    ("module-vermagic", DOWN, log("nvidia: version magic '6.8.0-60 SMP' should be '6.8.0-1039 SMP'"), "version magic"),
    ("pci-region", DOWN, NO_BAR, "BAR1 is 0M"),
    ("gpu-unsupported", DOWN, log("NVRM: installed in this system is not supported by the", "NVRM: NVIDIA 580.126.20 driver release."), "does not know"),
    ("gpu-init-failed", DOWN, NO_GSP, "could not start"),
    ("not-loaded", DOWN, {}, "is on disk and is not loaded"),
    ("not-loaded", DOWN, {"nouveau": True}, "is on disk and is not loaded"),
    ("not-loaded", DOWN, log("vboxdrv: loading of module with unavailable key is rejected"), "not loaded"),
    ("version-mismatch", LOADED, {"loaded": OLD} | smi("Failed to initialize NVML: Driver/library version mismatch (exit 18)"), OLD),
    ("version-mismatch", LOADED, smi("Failed to initialize NVML: Driver/library version mismatch (exit 18)"), V),
    ("userspace-missing", LOADED, {"userspace": ""}, "libnvidia-ml is not there"),
    ("userspace-missing", LOADED, smi("absent"), "nvidia-smi is not there"),
    ("wrong-flavour", LOADED, {"loaded_open": False}, "the loaded module"),
    ("wrong-flavour", LOADED, {"loaded_open": False} | log("NVRM: Xid (PCI:000f:01:00): 169, pid=1, x"), "Xid 169"),
    ("gpu-fell-off", LOADED, log("NVRM: Xid (PCI:0009:01:00): 79, pid=1, GPU has fallen off the bus."), "GPU 0009:01:00 fell off"),
    ("gpu-fell-off", LOADED, smi("Unable to determine the device handle: GPU is lost. (exit 15)"), "a GPU fell off"),
    ("gsp-timeout", LOADED, log("NVRM: Xid (PCI:0009:01:00): 119, Timeout after 6s of waiting for RPC response from GPU0 GSP!"), "0009:01:00"),
    ("gsp-timeout", LOADED, log("NVRM: Xid (PCI:0009:01:00): 120, GSP task exception"), "0009:01:00"),
    ("gsp-timeout", LOADED, log("NVRM: RmInitAdapter: Cannot initialize GSP firmware RM"), "does not answer"),
    ("gpu-init-failed", LOADED, log("NVRM: GPU 0009:01:00.0: RmInitAdapter failed! (0x62:0x65:2028)"), "RmInitAdapter failed"),
    ("fabric-manager-missing", LOADED, {"pci": (gpu(), SWITCH)}, "no Fabric Manager"),
    ("fabric-manager-version", LOADED, {"pci": (gpu(), SWITCH), "packages": (Package("nvidia-fabricmanager-580", f"{OLD}-1"),)}, OLD),
    ("fabric-manager-stopped", LOADED, {"pci": (gpu(), SWITCH), "packages": (Package("nvidia-fabric-manager", f"{V}-1"),), "services": (Service("nvidia-fabricmanager", "failed"),)}, "is failed"),
    ("smi-hangs", LOADED, smi("hung") | {"holders": (Holder(5, "vllm"),)}, "vllm (5)"),
    ("device-nodes", LOADED, {"nodes": ()}, "/dev/nvidiactl is missing"),
    ("device-nodes", LOADED, {"nodes": ("/dev/nvidiactl",)}, "are 0 for 1 GPUs"),
    ("device-nodes", LOADED, smi("Failed to initialize NVML: Insufficient Permissions (exit 4)"), "may not be opened"),
    ("unknown", LOADED, log("NVRM: something new"), "NVRM: something new"),
    ("unknown", LOADED, {"log": None}, "may not be read"),
    ("unknown", GOOD, {}, "nvidia-smi works"),
    ("fabric-manager-stopped", NVSWITCH, {"services": (Service("nvidia-fabricmanager", "inactive"),)}, "is inactive"),
    ("fabric-in-progress", GOOD, {"gpus": (SmiGpu("0009:01:00.0", "In Progress"),)}, "In Progress"),
    ("gpu-not-listed", GOOD, {"pci": (gpu(), gpu("nvidia", "0019:01:00.0"))}, "0019:01:00.0"),
]  # fmt: skip


@pytest.mark.parametrize(("cause", "host", "changes", "words"), LADDER)
def test_the_ladder(cause: str, host: Evidence, changes: dict[str, Any], words: str) -> None:
    found = ladder(replace(host, **changes), flavour="open")
    assert found.cause == cause
    assert words in found.reason
    assert found.cure
    assert found.source == CAUSES[cause]


def test_an_old_line_in_the_log_does_not_blame_the_module_that_is_loaded_now() -> None:
    assert ladder(replace(LOADED, **NEEDS_OPEN), flavour="open").cause == "gpu-init-failed"


def test_the_more_certain_cause_comes_first() -> None:
    """All at once: each cause that is taken away leaves the next of the ladder."""
    host = replace(
        DOWN,
        packages=(replace(UTILS, broken="half-configured"),),
        modules=(absent(), module(K4)),
        disabled=("x: blacklist nvidia",),
        pci=(gpu("nouveau"),),
        **log("nvidia: loading of unsigned module is rejected"),
    )
    told = []
    for changes in ({}, {"packages": (UTILS,)}, nvidia(), {"disabled": ()}, {"pci": (gpu(""),)}, {"log": ()}):
        host = replace(host, **changes)
        told.append(ladder(host, flavour="open").cause)
    assert told == ["packages-broken", "module-other-kernel", "module-disabled", "nouveau", "secure-boot-unsigned", "not-loaded"]  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"nouveau": True, "pci": (gpu("nouveau"),)},
        {"next_kernel": NEW64, "modules": (absent(), module(NEW64))},
    ],
)
def test_a_reboot_is_the_cure_where_the_next_boot_is_proven(changes: dict[str, Any]) -> None:
    found = ladder(replace(DOWN, **changes), flavour="open")
    assert found.reboot
    assert found.cure.startswith("reboot: module")
    broken = replace(DOWN, **changes, disabled=("x: blacklist nvidia",))
    assert not ladder(broken, flavour="open").reboot


def test_the_proprietary_flavour_may_be_wanted() -> None:
    old = replace(GOOD, loaded_open=False, **nvidia(open=False))
    assert working(old, flavour="proprietary", fabric=False) == ()
    assert ladder(replace(old, smi="No devices were found (exit 6)", gpus=()), flavour="proprietary").cause == "unknown"


# --- whatever the host says -----------------------------------------------------------------------

KERNELS = st.sampled_from([K64, NEW64, K4, "5.14.0-503.el9.aarch64+64k", "", "x"])
VERSIONS = st.sampled_from([V, OLD, "", "1"])
UNSURE = st.sampled_from([True, False, None])
WORDS = st.text(max_size=20)
RAW = [line for entry in LADDER for line in entry[2].get("log") or ()] + [
    "Loading of unsigned module is rejected",
    "NVRM:",
]
STATES = st.sampled_from(["", "In Progress", "Completed", "Success", "Not Started", "?"])


def some(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(strategy, max_size=3).map(tuple)


MODULES = st.builds(KernelModule, KERNELS, st.booleans(), st.sampled_from(["", "/lib/modules/x/weak-updates/nvidia.ko", "/p"]), UNSURE, VERSIONS, UNSURE, UNSURE, st.sampled_from(["", CANONICAL, DKMS_KEY]), KERNELS, UNSURE, st.sampled_from(["", "built"]))  # fmt: skip
FUNCTIONS = st.builds(PciFunction, st.sampled_from(["0009:01:00.0", "0019:01:00.0", ""]), st.sampled_from(["2342", "1db1", "ffff", "31a1"]), st.sampled_from(["gpu", "nvswitch"]), st.sampled_from(["", "nvidia", "vfio-pci", "nouveau", "x"]))  # fmt: skip
PACKAGES = st.builds(Package, st.sampled_from(["nvidia-fabricmanager", "nvidia-dkms-580", "nvidia-driver-580", "x"]), VERSIONS, st.sampled_from(["", "half-configured"]))  # fmt: skip
SERVICE = st.builds(Service, st.sampled_from(["nvidia-persistenced", "nvidia-fabricmanager"]), st.sampled_from(["active", "failed", "absent"]), WORDS)  # fmt: skip
SMI = st.sampled_from(["ok", "absent", "hung", "", *(entry[2]["smi"] for entry in LADDER if "smi" in entry[2])]) | WORDS
FIELDS: dict[str, st.SearchStrategy[Any]] = dict(  # noqa: C408
    complete=st.sampled_from([True, True, True, False]),
    boot=WORDS,
    kernel=KERNELS,
    next_kernel=KERNELS,
    next_remark=WORDS,
    modules=some(MODULES),
    loaded=VERSIONS,
    loaded_open=UNSURE,
    nouveau=st.booleans(),
    nova=st.booleans(),
    userspace=VERSIONS,
    smi=SMI,
    gpus=some(st.builds(SmiGpu, st.sampled_from(["0009:01:00.0", "x"]), STATES, STATES)),
    pci=st.none() | some(FUNCTIONS),
    nodes=some(st.sampled_from(["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"])),
    disabled=some(WORDS),
    cmdline=some(WORDS),
    nouveau_off=st.booleans(),
    secure_boot=UNSURE,
    lockdown=st.sampled_from(["", "none", "integrity", "?"]),
    sig_enforce=UNSURE,
    trusted=st.none() | some(st.sampled_from([CANONICAL, DKMS_KEY])),
    mok=some(st.builds(MokKey, WORDS, st.sampled_from(["enrolled", "requested", "not enrolled", "blocked", "unknown", "?"]))),
    dkms=some(WORDS),
    build_log=some(st.sampled_from([f"for kernel {K64} (a)", "error", ""])),
    log=st.none() | some(st.sampled_from(RAW) | WORDS),
    manager=st.sampled_from(["", "dpkg", "rpm"]),
    packages=st.none() | some(PACKAGES),
    services=st.none() | some(SERVICE),
    holders=some(st.builds(Holder, st.integers(), WORDS)),
    reboot_required=WORDS,
)  # fmt: skip
#: Hosts of which nothing is sure, and the good one with up to three things changed (at random alone, hardly any is good).
HOSTS = st.builds(Evidence, **FIELDS) | st.sets(st.sampled_from(sorted(FIELDS)), max_size=3).flatmap(
    lambda names: st.fixed_dictionaries({name: FIELDS[name] for name in names})
).map(lambda changes: replace(GOOD, **changes))


@settings(max_examples=400, deadline=None)
@given(HOSTS, st.sampled_from(["open", "proprietary"]), st.booleans(), st.none() | st.integers(0, 3))
def test_any_host_has_one_cause_with_a_cure(host: Evidence, flavour: Any, fabric: bool, gpus: int | None) -> None:
    found = ladder(host, flavour=flavour)
    stop = before_reboot(host, flavour=flavour)
    wrong = working(host, flavour=flavour, fabric=fabric, gpus=gpus)
    assert isinstance(found, Finding)
    for finding in (found, *stop, *wrong):
        assert finding.cause in CAUSES
        assert finding.reason.strip()
        assert finding.cure.strip()
        assert finding.source == CAUSES[finding.cause]
        assert not (finding.reboot and stop), "no reboot where something forbids it"
    assert len(set(causes(wrong))) == len(wrong)
    if host.smi != "ok" or not host.loaded:
        assert wrong, "a driver that is down is never proven"


@settings(max_examples=200, deadline=None)
@given(HOSTS, st.sampled_from(["open", "proprietary"]))
def test_an_empty_answer_means_proven(host: Evidence, flavour: Any) -> None:
    if not before_reboot(host, flavour=flavour):
        coming = host.next_module
        assert host.complete
        assert coming.asked
        assert coming.version == host.userspace != ""
        assert coming.open is (flavour == "open")
        assert not any(package.broken for package in host.packages or ())


def test_every_cause_is_reached_by_a_test_and_is_on_the_page() -> None:
    reached = {entry[0] for entry in (*BEFORE, *WORKING, *LADDER)} | {"gpu-missing", "fabric-unknown"}
    assert reached == set(CAUSES)
    on_page = re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(on_page) == sorted(CAUSES)

"""What is wrong with a driver that is loaded, or tried to be: versions, flavour, GPUs that fail, the NVLink fabric. Pure.

Messages are NVIDIA's own (open-gpu-kernel-modules: nv.c, nv-pci.c, osinit.c; its Xid catalogue), as public logs show them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from embedfleet.facts.evidence import Evidence
from embedfleet.findings import Finding, Flavour, found, install, quoted
from embedfleet.gpus import GPUS
from embedfleet.reboot_rules import before_reboot

_XID = re.compile(r"Xid \(PCI:([0-9A-Fa-f:.]+)\): (\d+)")


def flat(evidence: Evidence) -> str:
    """Return the log as one line in lower case: the driver breaks its sentences, with NVRM at the head of each line."""
    text = re.sub(r"\n[^\n]*?NVRM:", " ", "\n".join(evidence.log or ()))
    return re.sub(r"\s+", " ", text).lower()


def xids(evidence: Evidence) -> dict[int, str]:
    """Return Xid -> the GPU that it last hit."""
    hits = (m for line in evidence.log or () for m in _XID.finditer(line))
    return {int(m[2]): m[1] for m in hits if len(m[2]) < 5}


def reboot_or(evidence: Evidence, flavour: Flavour, otherwise: str = "") -> tuple[str, bool]:
    """Return the cure by a reboot where that is safe, else what has to be done before it."""
    stop = before_reboot(evidence, flavour=flavour)
    if not stop:
        return f"reboot: module {evidence.next_module.version} for {evidence.next_kernel} is proven on disk", True
    return otherwise or f"before a reboot: {stop[0].cure} ({stop[0].reason.splitlines()[0]})", False


def mismatch(evidence: Evidence, flavour: Flavour) -> Iterator[Finding]:
    """The loaded module and the libraries are of two versions: an update without a reboot."""
    smi = evidence.smi.lower()
    differ = evidence.userspace and evidence.loaded != evidence.userspace
    if evidence.loaded and (differ or "library version mismatch" in smi or "(exit 18)" in smi):
        disk = evidence.running_module.version
        more = f", {disk} is on disk for {evidence.kernel}" if disk else ""
        using = ", ".join(f"{holder.name} ({holder.pid})" for holder in evidence.holders[:5])
        cure, reboot = reboot_or(evidence, flavour)
        yield found(
            "version-mismatch",
            f"module {evidence.loaded} is loaded, user space is {evidence.userspace or 'of another version'}{more}"
            + (f"; in use by {using}" if using else ""),
            cure,
            reboot=reboot,
        )


def loaded_flavour(evidence: Evidence, flavour: Flavour) -> Iterator[Finding]:
    """The loaded module is of the other flavour."""
    if evidence.loaded and evidence.loaded_open is not None and evidence.loaded_open != (flavour == "open"):
        have = "open" if evidence.loaded_open else "proprietary"
        hits = f", and GPU {xids(evidence)[169]} reports Xid 169" if 169 in xids(evidence) else ""
        cure, reboot = reboot_or(evidence, flavour, install(flavour))
        yield found("wrong-flavour", f"the loaded module {evidence.loaded} is the {have} one, {flavour} is wanted{hits}", cure, reboot=reboot)  # fmt: skip


def refused_flavour(evidence: Evidence, flavour: Flavour) -> Iterator[Finding]:
    """The kernel's log says that the GPU needs the other flavour; a line from before a change of modules does not count."""
    said = flat(evidence)
    module = evidence.running_module
    is_open = evidence.loaded_open if evidence.loaded else module.open
    version = evidence.loaded or module.version or "of unknown version"
    failed = "rminitadapter failed" in said or 169 in xids(evidence)
    if is_open is not True and "requires use of the nvidia open kernel modules" in said:
        yield found("wrong-flavour", f"the GPU works with the open kernel modules alone, module {version} is proprietary", install("open"))  # fmt: skip
    elif is_open is False and failed and flavour == "open":
        yield found("wrong-flavour", f"the GPU fails to start (RmInitAdapter, Xid 169) with module {version}, which is proprietary", install("open"))  # fmt: skip
    elif is_open is not False and "not supported by open nvidia.ko" in said and not _has_gsp(evidence):
        yield found("wrong-flavour", f"the GPU has no GSP, which the open module {version} needs", install("proprietary"))  # fmt: skip


def _has_gsp(evidence: Evidence) -> bool:
    """Whether all the GPUs are of Turing or newer, by their PCI ids: those have a GSP."""
    known = [GPUS[item.device].capability for item in evidence.reachable if item.device in GPUS]
    return bool(known) and all(value and float(value) >= 7.5 for value in known)


def faults(evidence: Evidence, _: Flavour) -> Iterator[Finding]:
    """A GPU that fails, by the kernel's log."""
    said, hits, log = flat(evidence), xids(evidence), evidence.log or ()
    smi = evidence.smi.lower()
    version = evidence.loaded or evidence.running_module.version
    nvrm = tuple(line for line in log if "NVRM" in line)
    if re.search(r"installed in this system is (not supported by the nvidia|supported through the nvidia)", said):
        yield found(
            "gpu-unsupported",
            f"driver {version} does not know this GPU:{quoted(nvrm, 3)}",
            "install a branch that does: older GPUs were dropped after 580, newer ones need a newer branch (NVIDIA's list of supported GPUs)",
        )
    if "region assigned to your nvidia device is invalid" in said:
        yield found(
            "pci-region",
            f"the firmware (or hypervisor) gave the GPU no memory window:{quoted(nvrm, 3)}",
            "switch on Above 4G Decoding (and Resizable BAR) in the firmware; in a guest, boot it by UEFI; or start the kernel with pci=realloc",
        )
    if 79 in hits or "fallen off the bus" in said or "gpu is lost" in smi or "(exit 15)" in smi:
        yield found(
            "gpu-fell-off",
            f"GPU {hits.get(79, '')} fell off the bus (Xid 79)".replace("GPU  fell", "a GPU fell"),
            "power the host off and on (a warm reboot may not do), then look at power, cooling, riser and firmware; if it comes again, have the GPU replaced",
        )
    if hits.keys() & {119, 120} or "cannot initialize gsp firmware" in said:
        hit = hits.get(119) or hits.get(120)
        yield found(
            "gsp-timeout",
            f"the GSP of GPU {hit or 'unknown'} does not answer driver {version} (Xid 119 or 120, or its firmware did not start)",
            "stop what uses the GPU and nvidia-smi --gpu-reset, or power the host off and on; if it comes again, install a newer release of the branch",
        )
    if "rminitadapter failed" in said or "not supported by open nvidia.ko" in said:
        yield found(
            "gpu-init-failed",
            f"driver {version} could not start the GPU:{quoted(nvrm, 3)}",
            "power the host off and on; if it stays, install another release of the branch and report it with nvidia-bug-report.sh",
        )


def fabric_manager(evidence: Evidence, _: Flavour) -> Iterator[Finding]:
    """NVSwitches on the bus want a Fabric Manager of the driver's version; without it CUDA fails with 802, nvidia-smi works."""
    if not evidence.switches or not evidence.loaded:
        return
    count, version = len(evidence.switches), evidence.fabric_manager
    unit = evidence.service("nvidia-fabricmanager")
    absent = unit is None or unit.active == "absent"
    if not version and absent and evidence.packages is not None:
        yield found("fabric-manager-missing", f"there are {count} NVSwitches and no Fabric Manager", f"install nvidia-fabricmanager {evidence.loaded} (up to branch 570: nvidia-fabricmanager-BRANCH), then systemctl enable --now nvidia-fabricmanager")  # fmt: skip
    elif version and version != evidence.loaded:
        yield found("fabric-manager-version", f"Fabric Manager is {version}, the loaded module is {evidence.loaded}", f"install nvidia-fabricmanager {evidence.loaded}, then systemctl restart nvidia-fabricmanager")  # fmt: skip
    elif unit is not None and unit.active != "active":
        yield found("fabric-manager-stopped", f"there are {count} NVSwitches, and nvidia-fabricmanager is {unit.active}", "systemctl enable --now nvidia-fabricmanager; journalctl -u nvidia-fabricmanager tells why it does not start")  # fmt: skip


def fabric_state(evidence: Evidence, _: Flavour) -> Iterator[Finding]:
    """GPUs that are not on their NVLink fabric; those without one have no state."""
    for gpu in evidence.gpus:
        state, status = gpu.fabric_state.lower(), gpu.fabric_status.lower()
        if state in ("in progress", "not started"):
            yield found(
                "fabric-in-progress",
                f"GPU {gpu.address} is not on its fabric yet: {gpu.fabric_state}",
                "wait some minutes; if it stays, see nvidia-fabricmanager (GB200, GB300: the Fabric Manager of the switch trays, and nvidia-imex)",
            )
        elif state and (state, status) != ("completed", "success"):
            yield found(
                "fabric-failed",
                f"GPU {gpu.address} failed to join its fabric: {gpu.fabric_state}, {gpu.fabric_status or 'no status'}",
                "see journalctl -u nvidia-fabricmanager, and nvidia-smi -q on Fabric; then restart nvidia-fabricmanager with the GPUs idle",
            )


def unlisted(evidence: Evidence, _: Flavour) -> Iterator[Finding]:
    """GPUs on the bus that nvidia-smi does not list."""
    if evidence.smi == "ok" and evidence.unlisted:
        gone = ", ".join(evidence.unlisted[:8])
        yield found(
            "gpu-not-listed",
            f"nvidia-smi lists {len(evidence.gpus)} GPUs, and not {gone}, which the PCI bus shows",
            "see what the kernel's log says of it (dmesg | grep NVRM), then power the host off and on",
        )


def nodes(evidence: Evidence, _: Flavour) -> Iterator[Finding]:
    """Device files that are missing, or that may not be opened."""
    files = [node for node in evidence.nodes if re.fullmatch(r"/dev/nvidia\d+", node)]
    gone = "/dev/nvidiactl" not in evidence.nodes or len(files) < len(evidence.reachable)
    refused = "insufficient permissions" in evidence.smi.lower() or "(exit 4)" in evidence.smi
    if evidence.loaded and (gone or refused):
        why = "may not be opened" if refused and not gone else f"are {len(files)} for {len(evidence.reachable)} GPUs"
        control = "" if "/dev/nvidiactl" in evidence.nodes else ", and /dev/nvidiactl is missing"
        yield found(
            "device-nodes",
            f"the device files /dev/nvidia* {why}{control}",
            "nvidia-modprobe -c 0 -u, and systemctl restart nvidia-persistenced; they are to be 0666 (NVreg_DeviceFileMode in modprobe.d)",
        )

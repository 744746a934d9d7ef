""" "nvidia-smi has failed": one named cause, the most certain first, each with its cure. Pure.

docs/driver-troubleshooting.md has the same order for people.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from embedfleet.facts.evidence import Evidence
from embedfleet.findings import Finding, Flavour, found, incomplete, install, quoted
from embedfleet.module_rules import missing, on_disk, signature, vermagic
from embedfleet.reboot_rules import disabled, nouveau_off, packages
from embedfleet.running_rules import (
    fabric_manager,
    fabric_state,
    faults,
    flat,
    loaded_flavour,
    mismatch,
    nodes,
    reboot_or,
    refused_flavour,
    unlisted,
)


def ladder(evidence: Evidence, *, flavour: Flavour) -> Finding:
    """Return the one cause why nvidia-smi fails (or CUDA, where nvidia-smi works); always one, with a cure."""
    if not evidence.complete:
        return incomplete()
    rungs = _WORKING if evidence.smi == "ok" else _FAILING
    return next((finding for rung in rungs for finding in rung(evidence, flavour)), _unknown(evidence))


def _hardware(evidence: Evidence, _: Flavour) -> Iterator[Finding]:
    gpus = [item for item in evidence.pci or () if item.kind == "gpu"]
    if evidence.pci is not None and not gpus:
        yield found(
            "no-gpu",
            "the PCI bus shows no GPU of NVIDIA's",
            "look at power, cabling and seating, at the firmware's settings for the slot, and, in a guest, at whether the GPU is passed to it; "
            "echo 1 >/sys/bus/pci/rescan finds one that was hidden",
        )
    elif gpus and not evidence.reachable:
        drivers = ", ".join(sorted({item.driver for item in gpus}))
        yield found(
            "passthrough",
            f"all {len(gpus)} GPUs are bound to {drivers}, that is, they belong to a guest",
            "deploy to that guest; or take vfio-pci.ids= from the kernel's arguments and vfio from modprobe.d, then reboot",
        )


def _no_driver(evidence: Evidence, flavour: Flavour) -> Iterator[Finding]:
    there = evidence.loaded or evidence.userspace or any(module.path for module in evidence.modules)
    if not there and not any(package.driver for package in evidence.packages or ()):
        yield found(
            "no-driver",
            "no driver is installed: no package, no library, no module for any kernel",
            install(flavour).replace(" in place of the other", ""),
        )


def _packages(evidence: Evidence, _: Flavour) -> Iterator[Finding]:
    yield from packages(evidence)


def _no_module(evidence: Evidence, flavour: Flavour) -> Iterator[Finding]:
    module = evidence.running_module
    if evidence.loaded:
        return
    if module.path:
        yield from (f for f in on_disk(evidence, evidence.kernel, flavour) if f.cause == "module-not-indexed")
    elif evidence.kernel != evidence.next_kernel and evidence.next_module.path:
        lacking = missing(evidence, evidence.kernel)
        cure, reboot = reboot_or(evidence, flavour, lacking.cure)
        yield found(lacking.cause, lacking.reason, cure, reboot=reboot)
    else:
        yield missing(evidence, evidence.kernel)


def _disabled(evidence: Evidence, _: Flavour) -> Iterator[Finding]:
    if not evidence.loaded:
        yield from disabled(evidence)


def _taken(evidence: Evidence, flavour: Flavour) -> Iterator[Finding]:
    bound = {item.address: item.driver for item in evidence.reachable if item.driver not in ("", "nvidia")}
    free = {address: driver for address, driver in bound.items() if re.match("(?i)nouveau|nova", driver)}
    said = re.search(r"is already bound to ([\w-]+)", flat(evidence))
    by_log = "" if evidence.loaded or not said or said[1].startswith("vfio") else said[1]
    unloaded = "nouveau" if evidence.nouveau else "nova_core" if evidence.nova else ""
    # One that is loaded and bound to no GPU (a chip that it does not know) is in nobody's way.
    name = next(iter(free.values()), "") or (unloaded if evidence.pci is None and not evidence.loaded else "")
    if name:
        where = f" {', '.join(free)}" if free else "s"
        first = f"{nouveau_off('nouveau' if name == 'nouveau' else 'nova_core')}, then reboot"
        cure, reboot = reboot_or(evidence, flavour, first)
        yield found("nouveau", f"{name} holds the GPU{where}, so nvidia cannot", cure, reboot=reboot)
    elif bound or by_log:
        drivers = ", ".join(sorted(set(bound.values()))) or by_log
        yield found(
            "other-driver",
            f"the GPU is bound to {drivers}, so nvidia cannot have it",
            "echo ADDRESS >/sys/bus/pci/devices/ADDRESS/driver/unbind, see driver_override beside it, then modprobe nvidia",
        )


def _signature(evidence: Evidence, _: Flavour) -> Iterator[Finding]:
    if evidence.loaded:
        return
    module = evidence.running_module
    if module.asked:
        yield from (finding for finding in signature(evidence, module) if finding.cause != "secure-boot-unknown")
    # Older kernels do not say which module it was; "nvidia: loading of ..." since 5.12, another module's name is not ours.
    for line in evidence.log or ():
        told = re.search(r"(?i)(?:(\w+): )?(loading of (?:unsigned module|module with [\w ]+) is rejected|key was rejected by service)", line)  # fmt: skip
        named = told[1] if told else None
        if told and (not named or named.lower().startswith(("nvidia", "modprobe", "insmod", "error"))):
            cause = "secure-boot-unsigned" if "unsigned" in line.lower() else "secure-boot-key-unknown"
            yield found(cause, f"the kernel refused the module for {evidence.kernel}: {told[2]}", "sign it with a key that is enrolled (mokutil --test-key), or install the distribution's signed module")  # fmt: skip
            return


def _another_build(evidence: Evidence, _: Flavour) -> Iterator[Finding]:
    if evidence.loaded:
        return
    yield from vermagic(evidence.running_module)
    line = next((x for x in evidence.log or () if re.search(r"nvidia: (version magic|disagrees about|unknown symbol)", x, re.I)), "")  # fmt: skip
    if line:
        yield found(
            "module-vermagic",
            f"the kernel {evidence.kernel} refused the module as built for another one:\n{line}",
            f"dkms autoinstall --force -k {evidence.kernel}, or install the prebuilt module of that very kernel",
        )


def _not_loaded(evidence: Evidence, _: Flavour) -> Iterator[Finding]:
    if not evidence.loaded:
        module = evidence.running_module
        nvrm = tuple(line for line in evidence.log or () if "NVRM" in line)
        yield found(
            "not-loaded",
            f"module {module.version or module.path} for {evidence.kernel} is on disk and is not loaded{quoted(nvrm, 3)}",
            "modprobe nvidia && nvidia-smi; what modprobe and dmesg say then is the cause",
        )


def _userspace(evidence: Evidence, _: Flavour) -> Iterator[Finding]:
    lost = not evidence.userspace or "(exit 12)" in evidence.smi
    if lost or evidence.smi == "absent":
        yield found(
            "userspace-missing",
            f"module {evidence.loaded} is loaded, and {'libnvidia-ml' if lost else 'nvidia-smi'} is not there",
            "install the driver's user space of that version (Ubuntu: nvidia-utils-BRANCH-server; RHEL: nvidia-driver-cuda), then ldconfig",
        )


def _hangs(evidence: Evidence, _: Flavour) -> Iterator[Finding]:
    if evidence.smi == "hung":
        using = ", ".join(f"{holder.name} ({holder.pid})" for holder in evidence.holders[:5]) or "nobody that shows"
        yield found(
            "smi-hangs",
            f"nvidia-smi does not end within 30 seconds; the driver is in use by {using}",
            "stop what uses the GPU; if nvidia-smi still hangs, power the host off and on (a reboot may wait for it for ever)",
        )


def _unknown(evidence: Evidence) -> Finding:
    said = "nvidia-smi works" if evidence.smi == "ok" else f"nvidia-smi says: {evidence.smi}"
    log = "the kernel's log may not be read" if evidence.log is None else "the kernel's last lines on it"
    lines = quoted(evidence.log or (), 8) or " are none" if evidence.log is not None else ""
    return found(
        "unknown",
        f"no known cause fits; {said}; {log}{':' if evidence.log else ''}{lines}",
        "read dmesg -T | grep -iE 'nvrm|nvidia|xid', then nvidia-bug-report.sh, and ask the maker with its log",
    )


_FAILING = (
    _hardware,
    _no_driver,
    _packages,
    _no_module,
    _disabled,
    _taken,
    _signature,
    refused_flavour,
    _another_build,
    lambda evidence, flavour: iter(()) if evidence.loaded else faults(evidence, flavour),
    _not_loaded,
    mismatch,
    _userspace,
    loaded_flavour,
    faults,
    fabric_manager,
    fabric_state,
    _hangs,
    nodes,
)
_WORKING = (mismatch, loaded_flavour, fabric_manager, fabric_state, _taken, unlisted)

"""What the evidence on NVIDIA's driver means: whether a reboot is safe, whether the driver works, and why it does not. Pure.

The rules are in module_rules (on disk), reboot_rules, running_rules (loaded) and ladder (in order); causes in findings.
"""

from __future__ import annotations

from collections.abc import Iterator

from embedfleet.facts.evidence import Evidence
from embedfleet.findings import CAUSES, Finding, Flavour, found, incomplete
from embedfleet.ladder import ladder
from embedfleet.module_rules import on_disk
from embedfleet.reboot_rules import before_reboot
from embedfleet.running_rules import fabric_manager, fabric_state, loaded_flavour, mismatch, unlisted

__all__ = ["CAUSES", "Finding", "Flavour", "before_reboot", "ladder", "working"]


def working(evidence: Evidence, *, flavour: Flavour, fabric: bool, gpus: int | None = None) -> tuple[Finding, ...]:
    """Return what of the driver does not work now, once by cause; empty where all of it is proven.

    :param fabric: whether the host's GPUs are to be on an NVLink fabric, so that one without a state is a finding
    :param gpus: how many GPUs nvidia-smi is to list, at least; None for those that the PCI bus shows
    """
    if not evidence.complete:
        return (incomplete(),)
    causes: dict[str, Finding] = {}
    for finding in _working(evidence, flavour, fabric, gpus):
        causes.setdefault(finding.cause, finding)
    return tuple(causes.values())


def _working(evidence: Evidence, flavour: Flavour, fabric: bool, gpus: int | None) -> Iterator[Finding]:
    if not evidence.loaded or evidence.smi != "ok":
        yield ladder(evidence, flavour=flavour)
    yield from mismatch(evidence, flavour)
    yield from loaded_flavour(evidence, flavour)
    if evidence.loaded and evidence.loaded_open is None:
        yield found(
            "flavour-unknown",
            f"whether the loaded module {evidence.loaded} is the open one is not known",
            "cat /proc/driver/nvidia/version tells",
        )
    # A module that is loaded passed the signature check; that of the next boot is before_reboot's business.
    for finding in on_disk(evidence, evidence.kernel, flavour):
        if not finding.cause.startswith("secure-boot"):
            yield finding
    yield from _all_gpus(evidence, flavour, gpus)
    yield from fabric_state(evidence, flavour)
    yield from fabric_manager(evidence, flavour)
    if fabric and not evidence.switches and evidence.gpus and not any(gpu.fabric_state for gpu in evidence.gpus):
        yield found(
            "fabric-unknown",
            "the GPUs are to be on an NVLink fabric, and none has a state of it",
            "nvidia-smi -q tells it as of driver 535; is this a host with an NVLink fabric?",
        )
    yield from _persistence(evidence)


def _all_gpus(evidence: Evidence, flavour: Flavour, gpus: int | None) -> Iterator[Finding]:
    yield from unlisted(evidence, flavour)
    if evidence.smi == "ok" and gpus is not None and len(evidence.gpus) < gpus:
        yield found(
            "gpu-missing",
            f"nvidia-smi lists {len(evidence.gpus)} GPUs, {gpus} are wanted",
            "compare with the PCI bus (lspci -d 10de:); one that is missing there as well is a matter of power, seating or firmware",
        )
    if evidence.pci is None and gpus is None:
        yield found(
            "pci-unknown",
            "the host shows no PCI bus, so whether nvidia-smi lists all its GPUs is not known",
            "say how many it has",
        )


def _persistence(evidence: Evidence) -> Iterator[Finding]:
    unit = evidence.service("nvidia-persistenced")
    if unit is None or unit.active != "active":
        yield found(
            "persistence",
            f"nvidia-persistenced is {unit.active if unit else 'not known to run: there is no systemd'}",
            "systemctl enable --now nvidia-persistenced",
        )

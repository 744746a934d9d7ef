"""What the evidence on NVIDIA's driver means: whether a reboot is safe, whether the driver works, and why it does not. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from embedfleet.facts.evidence import Evidence

Flavour = Literal["open", "proprietary"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    :param cause: stable id, e.g. "secure-boot-unsigned"; docs/driver-troubleshooting.md lists them
    :param reason: what is wrong, one sentence, with the versions and kernels in question
    :param cure: the command or step that cures it
    :param source: the report or document behind the rule
    :param reboot: whether a reboot is the cure, and is safe: the module that the next boot needs is proven on disk
    """

    cause: str
    reason: str
    cure: str
    source: str = ""
    reboot: bool = False


def before_reboot(evidence: Evidence, *, flavour: Flavour) -> tuple[Finding, ...]:
    """Return why the host must not be rebooted yet; empty where the driver is proven for the next boot."""
    raise NotImplementedError


def working(evidence: Evidence, *, flavour: Flavour, fabric: bool, gpus: int | None = None) -> tuple[Finding, ...]:
    """Return what of the driver does not work now; empty where all of it is proven.

    :param fabric: whether the host's GPUs are to be on an NVLink fabric (NVSwitch)
    :param gpus: how many GPUs nvidia-smi is to list, at least; None for as many as the PCI bus shows
    """
    raise NotImplementedError


def ladder(evidence: Evidence, *, flavour: Flavour) -> Finding:
    """Return the one cause why nvidia-smi fails, the most certain first; always one, with a cure."""
    raise NotImplementedError

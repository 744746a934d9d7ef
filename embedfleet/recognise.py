"""Which row of the platform table a host is: proven by PCI ids, GPU names and SoC ids, confirmed by the rest.

CPU facts alone prove nothing (Graviton4 and Axion have Grace's core), and DMI names differ by maker. Where nothing is
proven the host is *undecided*, which is an answer with a cure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from embedfleet.facts.gpu import PciGpu
from embedfleet.facts.survey import Survey
from embedfleet.gpus import GPUS, VFIO, row_of_name
from embedfleet.platforms import PLATFORMS, Platform
from embedfleet.problems import Problem, Refused

GRACE_SOC = "jep106:036b:0241"  # NVIDIA T241 (Linux drivers/irqchip/irq-gic-v3.c)
_GRACE_CORE, _GB10_CORES = "41/d4f", {"41/d85", "41/d87"}
_CORES = {"gh200": {_GRACE_CORE}, "gb200": {_GRACE_CORE}, "gb300": {_GRACE_CORE}, "gb10": _GB10_CORES}
_NONE = "no row fits: take it out of the inventory"
_NAME_IT = "name the platform in the inventory, one of: "


@dataclass(frozen=True)
class Answer:
    """What a host is.

    :param row: name of the platform row; None where the host is undecided or in no row
    :param why: what proves it, or why nothing does
    :param candidates: rows that the operator may name instead; empty where none fits, None for all of its architecture
    :param remarks: what an operator should know beside it (GPUs that stay unused, another mode of the CPU)
    """

    row: str | None
    why: str
    candidates: tuple[str, ...] | None = None
    remarks: tuple[str, ...] = ()


def choose(host: str, wanted: str, survey: Survey) -> Platform:
    """Return the row of `host`: the one named in the settings, else the one that the survey proves.

    :raises Refused: for an unknown row, a row of another architecture, or a host that cannot be told
    """
    if wanted != "auto":
        row = PLATFORMS.get(wanted)
        if row is None:
            cure = f"name one of: {', '.join(PLATFORMS)}; or leave it at 'auto'"
            raise Refused([Problem(host, "platform", f"{wanted!r} is no platform", cure)])
        if survey.machine != row.machine:
            reason = f"{wanted} is for {row.machine}, and this host is {survey.machine or 'unknown'}"
            raise Refused([Problem(host, "platform", reason, "name the row of this host's architecture")])
        other = _other_soc(survey)
        if other:
            raise Refused([Problem(host, "platform", other, _NONE)])
        return row
    answer = recognise(survey)
    if answer.row:
        return PLATFORMS[answer.row]
    rows = answer.candidates
    if rows is None:
        rows = tuple(row.name for row in PLATFORMS.values() if row.machine == survey.machine)
    cure = _NAME_IT + ", ".join(rows) if rows else _NONE
    raise Refused(
        [
            Problem(
                host, "platform", f"undecided: {answer.why}", cure, matters="a guess would build for the wrong hardware"
            )
        ]
    )


def recognise(survey: Survey) -> Answer:
    """Return what the survey proves. Never raises."""
    if not survey.machine:
        return Answer(None, "the architecture is unknown (`uname -m` said nothing)", tuple(PLATFORMS))
    other = _other_soc(survey)
    if other:
        return Answer(None, other, ())
    if survey.machine == "ppc64le":
        return _power(survey)
    if survey.machine not in ("aarch64", "x86_64"):
        return Answer(None, f"{survey.machine} is no architecture of the table", ())
    return _by_gpus(survey)


def _other_soc(survey: Survey) -> str:
    """Return why a system on chip of NVIDIA's is none of the table's, "" where it is not such a system."""
    tree = " ".join(survey.devicetree)
    if survey.machine == "aarch64" and ("nvidia,tegra" in tree or "Jetson" in tree or survey.kernel.endswith("-tegra")):
        return f"it is a Jetson ({survey.devicetree[0] if survey.devicetree else survey.kernel}), not a server of the table"
    for gpu in survey.pci or ():
        if gpu.device in GPUS and GPUS[gpu.device].refused:
            return f"PCI id 10de:{gpu.device}: {GPUS[gpu.device].refused}"
    return ""


def _power(survey: Survey) -> Answer:
    cpu = survey.cpu
    remarks = []
    if cpu.power and cpu.power_mode and cpu.power != cpu.power_mode:
        remarks.append(f"a Power{cpu.power} whose kernel runs in POWER{cpu.power_mode} mode")
    if survey.pci:
        names = _names(survey.pci)
        remarks.append(f"{names} stays unused: vLLM has no CUDA on ppc64le")
    row = {9: "power9", 10: "power10", 11: "power10"}.get(cpu.power or 0)
    # A partition in POWER9 mode has no instructions of its Power10: the mode decides what may be built.
    if row == "power10" and cpu.power_mode == 9:
        row = "power9"
    if row:
        return Answer(row, f"{cpu.name or 'version register'}: POWER{cpu.power}", remarks=tuple(remarks))
    if cpu.power == 8:
        return Answer(None, "POWER8: vLLM's CPU kernels need POWER9 or newer (cmake/cpu_extension.cmake)", ())
    return Answer(None, f"{cpu.name or 'the processor is unknown'}: no row for it", ("power9", "power10"))


def _names(gpus: tuple[PciGpu, ...]) -> str:
    count: dict[str, int] = {}
    for gpu in gpus:
        name = GPUS[gpu.device].name if gpu.device in GPUS else f"an NVIDIA GPU 10de:{gpu.device}"
        count[name] = count.get(name, 0) + 1
    return ", ".join(f"{number} x {name}" for name, number in count.items())


def _by_gpus(survey: Survey) -> Answer:
    arm = survey.machine == "aarch64"
    if survey.pci is None and not survey.gpus:
        return Answer(None, "the host shows no PCI bus, so whether it has a GPU is unknown")
    if survey.container and survey.pci and not survey.gpus:
        return Answer(None, f"a container ({survey.virt}) that sees {_names(survey.pci)} of its host and cannot use it")
    given = tuple(gpu for gpu in survey.pci or () if gpu.driver in VFIO)
    ours = tuple(gpu for gpu in survey.pci or () if gpu not in given)
    if given and not ours:
        why = f"{_names(given)} bound to {given[0].driver}, which is for virtual machines"
        return Answer(None, why, ("grace-cpu",) if arm else ("x86-cpu",))
    remarks: tuple[str, ...] = (
        (f"{_names(given)} bound to {given[0].driver}: left to virtual machines",) if given else ()
    )
    if not ours and not survey.gpus:
        return _without_gpu(survey)
    rows = {GPUS[gpu.device].row for gpu in ours if gpu.device in GPUS} | {row_of_name(gpu.name) for gpu in survey.gpus}
    grace = sorted(rows - {""})
    if grace and not arm:
        return Answer(None, f"{_names(ours) or survey.gpus[0].name} is Grace's GPU, yet the architecture is x86_64")
    if len(grace) > 1:
        return Answer(None, f"GPUs of {' and '.join(grace)} in one host", tuple(grace))
    if grace:
        discrete = tuple(gpu for gpu in ours if gpu.device not in GPUS or not GPUS[gpu.device].row)
        if discrete:
            remarks += (f"beside it {_names(discrete)}: kernels are built for {grace[0]} alone",)
        if survey.cpu.arm and not _CORES[grace[0]] & set(survey.cpu.arm):
            remarks += (f"the GPU says {grace[0]}, yet the cores are {', '.join(survey.cpu.arm)}",)
        return Answer(grace[0], f"{_names(ours) or survey.gpus[0].name}", remarks=remarks)
    unknown = tuple(gpu for gpu in ours if gpu.device not in GPUS)
    if unknown and not any(gpu.capability for gpu in survey.gpus):
        why = f"PCI id 10de:{unknown[0].device} is not in embedfleet/gpus.py, and no driver tells what it is"
        return Answer(None, why, ("arm-gpu", "gh200", "gb200", "gb300", "gb10") if arm else ("x86-gpu",))
    named = _names(ours) or ", ".join(sorted({gpu.name for gpu in survey.gpus}))
    return Answer("arm-gpu" if arm else "x86-gpu", named, remarks=remarks)


def _without_gpu(survey: Survey) -> Answer:
    driver, cores = survey.driver, set(survey.cpu.arm)
    if cores & _GB10_CORES:
        return Answer(None, "GB10's cores, yet no GPU on the PCI bus", ("gb10",))
    if driver.loaded or driver.smi != "absent":
        how = f"driver {driver.loaded} is loaded" if driver.loaded else f"nvidia-smi {driver.smi}"
        rows = ("grace-cpu",) if survey.machine == "aarch64" else ("x86-cpu",)
        return Answer(None, f"no GPU on the PCI bus, yet {how}: a GPU that is lost?", rows)
    if survey.machine == "x86_64":
        return Answer("x86-cpu", "x86_64, no NVIDIA GPU on the PCI bus")
    if GRACE_SOC in survey.soc:
        return Answer("grace-cpu", f"SoC {GRACE_SOC} (Grace), no NVIDIA GPU on the PCI bus")
    if _GRACE_CORE in cores:
        return Answer(
            None, "Neoverse V2 cores without a Grace SoC id: Graviton4 and Axion have them too", ("grace-cpu",)
        )
    shown = ", ".join(sorted(cores)) or "unknown cores"
    return Answer(None, f"an Arm host without NVIDIA GPU ({shown}): no row is known to fit", ("grace-cpu",))


def capabilities(survey: Survey) -> tuple[str, ...]:
    """Return the compute capabilities of a host's usable GPUs, from the driver or from the PCI ids; () for unknown."""
    told = {gpu.capability for gpu in survey.gpus if gpu.capability}
    ids = {GPUS[gpu.device].capability for gpu in survey.pci or () if gpu.device in GPUS and gpu.driver not in VFIO}
    return tuple(sorted((told or {c for c in ids if c}), key=float))


def ac922(survey: Survey) -> bool:
    """Whether this is an AC922: POWER9 with NVLink to V100s (8335-GTA and -GTB are POWER8 machines)."""
    return any(re.search(r"8335-GT[CGHWX]", text) for text in survey.devicetree)

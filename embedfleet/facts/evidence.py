"""All that proves NVIDIA's driver before a reboot and after it, or tells why it does not work: one round trip, no change.

Never raises. `None` and "" are *unknown*, which is never "there is none"; what a field takes for "none" it says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyinfra.api import FactBase, StringCommand

from embedfleet.facts import evidence_parse as read
from embedfleet.facts.driver_state import Holder, KernelModule, MokKey, Package, PciFunction, Service, SmiGpu
from embedfleet.facts.evidence_script import script
from embedfleet.facts.gpu import parse_driver
from embedfleet.facts.next_kernel import next_kernel
from embedfleet.facts.script import sections
from embedfleet.facts.system import parse_secure_boot


@dataclass(frozen=True)
class Evidence:
    """What a host tells of NVIDIA's driver.

    :param complete: whether it came back whole; where it did not, nothing below is worth anything
    :param boot: identity of this boot: another text means that host (or container) was started since
    :param kernel: the running kernel
    :param next_kernel: the kernel that the next boot would start, see `embedfleet.facts.next_kernel`; "" for unknown
    :param next_remark: how `next_kernel` was found, or why it is unknown
    :param initrds: names of the initramfs images in /boot that are not empty
    :param modules: NVIDIA's module for the running kernel and for every other one that the host has
    :param loaded: version of the loaded module, "" for none
    :param loaded_open: whether the loaded one is the open one
    :param nouveau, nova: whether that driver is loaded
    :param userspace: version of libnvidia-ml, "" for none
    :param smi: how nvidia-smi ended: "ok", "absent", "hung", or its message with its exit status
    :param gpus: the GPUs that nvidia-smi lists
    :param pci: GPUs and NVSwitches on the PCI bus; None where the host shows no bus
    :param nodes: device files, e.g. /dev/nvidia0, /dev/nvidiactl
    :param disabled: lines of modprobe.d that keep the module from loading, each with its file
    :param cmdline: arguments of the running kernel that keep it from loading
    :param nouveau_off: whether that driver (nouveau, where neither is loaded) is blacklisted, by modprobe.d or the running kernel
    :param secure_boot: whether the firmware enforces signatures
    :param lockdown: the kernel's lockdown: none, integrity, confidentiality
    :param sig_enforce: whether the kernel was told to take signed modules alone
    :param trusted: names of the keys that the running kernel trusts; None for unknown
    :param mok: the keys of DKMS
    :param dkms: lines of `dkms status` on nvidia
    :param build_log: the failed DKMS build: its kernel's line, then the lines that tell why
    :param log: the last lines of the kernel's log on the driver; None where it may not be read
    :param manager: what installed the packages: dpkg, rpm, "" for unknown
    :param packages: NVIDIA's packages, and others whose installation is broken and that the driver needs; None for unknown
    :param services: nvidia-persistenced, nvidia-fabricmanager, nvidia-imex; None without systemd
    :param holders: who has the driver open
    :param reboot_required: what the system says about a reboot that it waits for, "" for nothing
    """

    complete: bool = False
    boot: str = ""
    kernel: str = ""
    next_kernel: str = ""
    next_remark: str = ""
    initrds: tuple[str, ...] = ()
    modules: tuple[KernelModule, ...] = ()
    loaded: str = ""
    loaded_open: bool | None = None
    nouveau: bool = False
    nova: bool = False
    userspace: str = ""
    smi: str = "absent"
    gpus: tuple[SmiGpu, ...] = ()
    pci: tuple[PciFunction, ...] | None = None
    nodes: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()
    cmdline: tuple[str, ...] = ()
    nouveau_off: bool = False
    secure_boot: bool | None = None
    lockdown: str = ""
    sig_enforce: bool | None = None
    trusted: tuple[str, ...] | None = None
    mok: tuple[MokKey, ...] = ()
    dkms: tuple[str, ...] = ()
    build_log: tuple[str, ...] = ()
    log: tuple[str, ...] | None = None
    manager: str = ""
    packages: tuple[Package, ...] | None = None
    services: tuple[Service, ...] | None = None
    holders: tuple[Holder, ...] = ()
    reboot_required: str = ""

    def module(self, kernel: str) -> KernelModule:
        """Return what is known of the module for `kernel`; of one that the host does not have, nothing is."""
        return next((module for module in self.modules if module.kernel == kernel), KernelModule(kernel))

    def has_initrd(self, kernel: str) -> bool:
        """Say whether `kernel` has an initramfs, by Debian's name of it or Red Hat's."""
        return bool({f"initrd.img-{kernel}", f"initramfs-{kernel}.img", f"initrd-{kernel}"} & set(self.initrds))

    @property
    def running_module(self) -> KernelModule:
        """The module on disk for the running kernel."""
        return self.module(self.kernel)

    @property
    def next_module(self) -> KernelModule:
        """The module on disk for the kernel that would boot next."""
        return self.module(self.next_kernel)

    def elsewhere(self, kernel: str) -> tuple[str, ...]:
        """Return the other kernels that have a module: what a wrong kernel flavour looks like."""
        return tuple(module.kernel for module in self.modules if module.path and module.kernel != kernel)

    @property
    def reachable(self) -> tuple[PciFunction, ...]:
        """GPUs on the bus that this host may use: those that are passed to a guest are not."""
        return tuple(item for item in self.pci or () if item.kind == "gpu" and not item.passed_through)

    @property
    def unlisted(self) -> tuple[str, ...]:
        """GPUs on the bus that nvidia-smi does not list."""
        listed = {gpu.address for gpu in self.gpus}
        return tuple(item.address for item in self.reachable if item.address not in listed)

    @property
    def unseen(self) -> tuple[str, ...]:
        """GPUs that nvidia-smi lists and the bus does not show; none where there is no bus to see (containers)."""
        shown = {item.address for item in self.pci or ()}
        return tuple(gpu.address for gpu in self.gpus if self.pci is not None and gpu.address not in shown)

    @property
    def switches(self) -> tuple[PciFunction, ...]:
        """NVSwitches on the bus."""
        return tuple(item for item in self.pci or () if item.kind == "nvswitch")

    def service(self, name: str) -> Service | None:
        """Return a unit by its name without ".service"; None where systemd could not be asked."""
        if self.services is None:
            return None
        return next((unit for unit in self.services if unit.name == name), Service(name, "absent"))

    @property
    def fabric_manager(self) -> str:
        """Version of the installed Fabric Manager, "" for none."""
        return next((p.upstream for p in self.packages or () if p.fabric_manager), "")


class DriverEvidence(FactBase[Evidence]):
    """The evidence, in one round trip."""

    default = Evidence

    def command(self) -> StringCommand:
        return StringCommand(script())

    def process(self, output: list[str]) -> Evidence:
        return parse(list(output))


def parse(output: list[str]) -> Evidence:
    """Parse the script's output; unknown or garbled sections become unknown values."""
    told = sections(output)

    def lines(name: str) -> list[str]:
        return told.get(name, [])

    def first(name: str) -> str:
        return next((line.strip() for line in lines(name)), "")[:500]

    kernel = first("kernel")
    next_one, remark = next_kernel(kernel, lines("images"), first("grubby"), first("link"), lines("grub"))
    banner = parse_driver(first("banner"), first("loaded"), "", "", [], "", False)
    others = {line.strip() for line in lines("others")}
    gpus, smi = read.smi_gpus(lines("smi"))
    disabled, off = read.disabled(lines("modprobe"))
    arguments, off_now = read.cmdline(" ".join(lines("cmdline")))
    lockdown = re.search(r"\[(\w+)\]", first("lockdown"))
    log = lines("log")
    return Evidence(
        complete="end" in told,
        boot=first("boot"),
        kernel=kernel,
        next_kernel=next_one,
        next_remark=remark,
        initrds=tuple(line.strip() for line in lines("initrds")),
        modules=read.modules(lines("modules"), lines("files"), lines("dkms")),
        loaded=banner.loaded,
        loaded_open=banner.loaded_open,
        nouveau="nouveau" in others,
        nova="nova_core" in others,
        userspace=read.userspace(lines("linked"), lines("libraries")),
        smi=smi,
        gpus=gpus,
        pci=read.pci(lines("pci")),
        nodes=tuple(line.strip() for line in lines("nodes")),
        disabled=disabled,
        cmdline=arguments,
        nouveau_off=(others or {"nouveau"}) <= off | off_now,
        secure_boot=parse_secure_boot(lines("secureboot")),
        lockdown=lockdown[1] if lockdown else "",
        sig_enforce={"Y": True, "N": False}.get(first("sigenforce")),
        trusted=read.trusted(lines("keys")),
        mok=read.mok(lines("mok")),
        dkms=tuple(line.strip() for line in lines("dkms")),
        build_log=tuple(line.rstrip()[:300] for line in lines("build")[:16]),
        log=tuple(line.rstrip()[:400] for line in log[1:61]) if log and log[0].strip() == "readable" else None,
        manager=first("packages") if first("packages") in ("dpkg", "rpm") else "",
        packages=read.packages(lines("packages")),
        services=read.services(lines("services")),
        holders=read.holders(lines("holders")),
        reboot_required=", ".join(line.strip() for line in lines("reboot"))[:500],
    )

"""Why a host must not be rebooted yet, as far as NVIDIA's driver is concerned. Pure. Nobody reboots on faith."""

from __future__ import annotations

from collections.abc import Iterator

from embedfleet.facts.evidence import Evidence
from embedfleet.findings import Finding, Flavour, found, incomplete
from embedfleet.module_rules import on_disk


def nouveau_off(name: str) -> str:
    """How to keep nouveau, or nova_core, from the GPUs: the initramfs would load it before modprobe.d is read from disk."""
    return f"echo 'blacklist {name}' >/etc/modprobe.d/blacklist-{name}.conf, then update-initramfs -u (RHEL: dracut --force)"


def before_reboot(evidence: Evidence, *, flavour: Flavour) -> tuple[Finding, ...]:
    """Return why the host must not be rebooted yet; empty where the driver is proven for the next boot."""
    if not evidence.complete:
        return (incomplete(),)
    return tuple(_before_reboot(evidence, flavour))


def _before_reboot(evidence: Evidence, flavour: Flavour) -> Iterator[Finding]:
    yield from packages(evidence)
    if evidence.packages is None:
        yield found(
            "packages-unknown",
            "the package manager does not tell what is installed, so not whether a package is half-configured",
            "see that dpkg-query or rpm answers",
        )
    if evidence.next_kernel:
        yield from on_disk(evidence, evidence.next_kernel, flavour)
    else:
        yield found(
            "next-kernel-unknown",
            f"it is not known which kernel the next boot starts: {evidence.next_remark or 'nothing tells'}",
            "set GRUB_DEFAULT to 0 or to the full name of an entry, then update-grub (RHEL: grubby --set-default)",
        )
    if evidence.has_initrd(evidence.kernel) and not evidence.has_initrd(evidence.next_kernel):
        # A full /boot leaves a kernel without one, and such a kernel finds no disk.
        yield found(
            "initramfs-missing",
            f"kernel {evidence.next_kernel} would boot next, and has no initramfs, as {evidence.kernel} has",
            f"see that /boot has room, then update-initramfs -c -k {evidence.next_kernel} (RHEL: dracut --force --kver {evidence.next_kernel})",
        )
    yield from disabled(evidence)
    if (evidence.nouveau or evidence.nova) and not evidence.nouveau_off:
        name = "nouveau" if evidence.nouveau else "nova_core"
        yield found(
            "nouveau-not-off",
            f"{name} is loaded, and nothing keeps it from taking the GPUs at the next boot as well",
            nouveau_off(name),
        )


def packages(evidence: Evidence) -> Iterator[Finding]:
    """Packages whose installation did not come to its end."""
    broken = [f"{p.name} {p.version} ({p.broken})" for p in evidence.packages or () if p.broken]
    if broken:
        more = f" and {len(broken) - 4} more" if len(broken) > 4 else ""
        rpm = "dnf remove --duplicates, then dnf distro-sync '*nvidia*'"
        yield found(
            "packages-broken",
            f"not wholly installed: {', '.join(broken[:4])}{more}",
            rpm if evidence.manager == "rpm" else "dpkg --configure -a, then apt-get -f install",
        )


def disabled(evidence: Evidence) -> Iterator[Finding]:
    """What keeps the module from being loaded at all."""
    if evidence.disabled:
        yield found(
            "module-disabled",
            f"modprobe is told not to load nvidia: {'; '.join(evidence.disabled[:3])}",
            "take the line out, then update-initramfs -u (RHEL: dracut --force) and modprobe nvidia",
        )
    elif evidence.cmdline:
        yield found(
            "module-disabled",
            f"the kernel was started with {' '.join(evidence.cmdline)}",
            "take it out of GRUB_CMDLINE_LINUX in /etc/default/grub and update-grub (RHEL: grubby --remove-args), then reboot",
        )

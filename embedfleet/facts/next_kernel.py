"""Which kernel the next boot would start. Pure.

Told, in this order, by: GRUB's next_entry (a boot for once), grubby (RHEL), the generated grub.cfg with its saved entry, and where
there is no GRUB that can be read, by /vmlinuz where it is the newest kernel, or by there being one kernel alone. A host
without kernels in /boot (a container, a machine that its hypervisor hands a kernel) boots what it runs.

Not handled, so unknown, with a remark: an entry by number other than the first ("1>2"), an entry whose name holds the name
of no installed kernel, a choice made by a person at the menu or by firmware (systemd-boot, a unified kernel image, petitboot),
kexec, and a grub.cfg that writes its default in another way than grub-mkconfig does.
"""

from __future__ import annotations

import re

from embedfleet.facts.system import kernel_order

_IMAGE = re.compile(r"vmlinu[xz]-(\S+)$")


def kernel_of(image: str) -> str:
    """Return the kernel that an image's file name tells, "" for none: vmlinuz-6.8.0-60-generic -> 6.8.0-60-generic."""
    found = _IMAGE.search(image.strip().strip("\"'"))
    return found[1] if found and "rescue" not in found[1] else ""


def next_kernel(running: str, images: list[str], grubby: str, link: str, grub: list[str]) -> tuple[str, str]:
    """Return the kernel ("" for unknown), and how it was found or why it was not.

    :param images: names of the kernels in /boot
    :param grubby: what `grubby --default-kernel` says
    :param link: where /vmlinuz leads
    :param grub: `next_entry=`, `saved_entry=` of grubenv; then, after "cfg", `set default=` and `linux IMAGE` of grub.cfg
    """
    installed = list(dict.fromkeys(filter(None, map(kernel_of, images))))
    settings = dict(line.split("=", 1) for line in grub if re.match(r"(next|saved)_entry=", line))
    if once := settings.get("next_entry", "").strip():
        return _named(once, installed, "GRUB's next_entry")
    if told := kernel_of(grubby):
        return told, "grubby --default-kernel"
    if not installed:
        return running, "there is no kernel in /boot, so the running one is started again"
    if "cfg" in [line.strip() for line in grub]:
        return _by_grub(grub, settings.get("saved_entry", "").strip(), installed)
    newest = max(installed, key=kernel_order)
    linked = kernel_of(link)
    if len(installed) == 1 or linked == newest:
        return newest, "/vmlinuz" if linked == newest else "the one kernel in /boot"
    return "", f"there is no GRUB that can be read, and /boot has {len(installed)} kernels"


def _by_grub(grub: list[str], saved: str, installed: list[str]) -> tuple[str, str]:
    defaults = [m[1].strip("\"'") for m in (re.match(r"set default=(.*)", line.strip()) for line in grub) if m]
    default = next((text for text in defaults if "next_entry" not in text), "0")
    if "saved_entry" in default:
        default = saved
    if default in ("", "0"):
        first = next((kernel_of(line) for line in grub if line.startswith("linux ")), "")
        return (first, "the first entry of grub.cfg") if first else ("", "grub.cfg names no kernel in its first entry")
    return _named(default, installed, "GRUB's default")


def _named(entry: str, installed: list[str], where: str) -> tuple[str, str]:
    """Find the kernel in an entry's name or id: `gnulinux-6.8.0-60-generic-advanced-UUID`, `...>Ubuntu, with Linux 6.8.0-60-generic`."""
    held = [name for name in installed if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.+])", entry)]
    if not held:
        return "", f"{where} is {entry[:120]!r}, which names none of the kernels in /boot"
    return max(held, key=len), f"{where}, {entry[:120]!r}"

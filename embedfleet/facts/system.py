"""What a host's system is: release, kernel flavour, compilers, ports, Secure Boot, and whether it waits for a reboot."""

from __future__ import annotations

import re
from dataclasses import dataclass

from embedfleet.facts.cpu import integer


@dataclass(frozen=True)
class Listener:
    """A TCP port in use: by which program, in which systemd unit ('' where that could not be told)."""

    port: int
    program: str
    unit: str


def parse_listeners(tcp: list[str], ss: list[str]) -> tuple[Listener, ...]:
    """Parse /proc/net/tcp and tcp6, and `ss -Hltnpe` where there is one, which also tells who listens."""
    ports: dict[int, Listener] = {}
    for line in tcp:  # state 0A is LISTEN; owners are not here, so these come first
        cells = line.split()
        if len(cells) > 3 and cells[3] == "0A" and re.fullmatch(r"[0-9A-F]+:[0-9A-F]{4}", cells[1]):
            port = int(cells[1].rpartition(":")[2], 16)
            ports[port] = Listener(port, "", "")
    for line in ss:
        cells = line.split()
        if len(cells) < 4 or integer(cells[3].rpartition(":")[2]) is None:
            continue
        port = int(cells[3].rpartition(":")[2])
        # The socket's cgroup tells its unit even where processes of other users cannot be looked into.
        unit = re.search(r" cgroup:\S*/([^/\s]+\.(?:service|scope|socket))", line)
        program = re.search(r'\(\("([^"]*)"', line)
        known = ports.get(port)
        if not (known and known.unit):
            ports[port] = Listener(port, program[1] if program else "", unit[1] if unit else "")
    return tuple(ports[port] for port in sorted(ports))


def parse_disk(lines: list[str], paths: tuple[str, ...]) -> dict[str, int]:
    """Map the asked paths to MiB free: `df` answers in their order, after its heading."""
    rows = [line.split() for line in lines[1:]]
    sizes = [integer(row[3]) for row in rows if len(row) >= 6]
    if len(sizes) != len(paths) or None in sizes:
        return {}
    return {path: (size or 0) // 1024 for path, size in zip(paths, sizes, strict=True)}


def flavour(kernel: str) -> str:
    """Return the flavour that a kernel's name ends in: generic-64k, nvidia-64k, +64k (RHEL), 64kb (SLES), tegra ...

    Of the name alone; the page size is asked of the kernel, not read from its name.
    """
    if "+" in kernel:
        return "+" + kernel.rpartition("+")[2]
    parts = kernel.split("-")
    named = next((i for i, part in enumerate(parts) if i and not re.fullmatch(r"[0-9.]+", part)), len(parts))
    text = "-".join(parts[named:])
    return "" if re.search(r"\.(el\d|fc\d|amzn)", text) else text


def newest_kernel(running: str, installed: list[str]) -> str:
    """Return the newest installed kernel of the running one's flavour; the running one where nothing is newer."""
    alike = [name.strip() for name in installed if flavour(name.strip()) == flavour(running)]
    return max([running, *alike], key=kernel_order)


def kernel_order(kernel: str) -> list[int]:
    """Return what kernels are compared by: the numbers in their names."""
    return [int(number) for number in re.findall(r"\d{1,9}", kernel)]


def reboot_reasons(
    kernel: str, installed: list[str], required: list[str], loaded: str, on_disk: str
) -> tuple[str, ...]:
    """Return why a host waits for a reboot; empty where nothing says so.

    :param required: /run/reboot-required and its .pkgs (Debian, Ubuntu)
    :param loaded, on_disk: versions of NVIDIA's module
    """
    reasons = []
    words = [line.strip() for line in required if line.strip() and not line.startswith("***")]
    if required:
        reasons.append(f"the system asks for it ({', '.join(sorted(set(words))[:5]) or 'no package named'})")
    newest = newest_kernel(kernel, installed)
    if kernel and newest != kernel:
        reasons.append(f"kernel {newest} is installed, {kernel} runs")
    if loaded and on_disk and loaded != on_disk:
        reasons.append(f"NVIDIA module {on_disk} is installed, {loaded} is loaded")
    return tuple(reasons)


def parse_secure_boot(lines: list[str]) -> bool | None:
    """Parse the firmware's answer: True for enforced, False for not (or no UEFI at all), None for unknown."""
    word = lines[0].strip() if lines else ""
    return {"1": True, "0": False, "none": False}.get(word)


def parse_dgx(lines: list[str]) -> dict[str, str]:
    """Parse /etc/dgx-release: keys repeat after over-the-air updates, and the last one is what runs."""
    found: dict[str, str] = {}
    for line in lines:
        key, equals, value = line.partition("=")
        if equals and re.fullmatch(r"DGX_[A-Z_]{1,40}", key.strip()):
            found[key.strip()] = value.strip().strip("\"'")[:100]
    return found


def parse_versions(lines: list[str]) -> dict[str, str]:
    """Parse `name version` lines: compilers, or packages."""
    pairs = (line.split(None, 1) for line in lines)
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}

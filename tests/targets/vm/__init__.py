"""A real machine for what a container cannot show: its own kernel, initramfs, kernel command line, reboots, power cuts.

Debian for arm64 under qemu-system-aarch64. `python -m tests.targets.vm up` starts it, docs/testing-vm.md tells the rest.
"""

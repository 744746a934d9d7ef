"""What only a machine shows: modules, initramfs, kernel command line, sysctl, reboots, units at boot, power cuts."""

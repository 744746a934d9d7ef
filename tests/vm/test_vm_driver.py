"""The driver's component on a machine that boots: a real initramfs, a real modprobe configuration, a real reboot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.targets.vm.machine import Machine
from tests.targets.vm.state import REBOOT
from tests.vm.conftest import Deploys
from tests.vm.test_vm import causes, changed

pytestmark = pytest.mark.vm


def test_nouveau_is_kept_out_of_the_initramfs_by_one_reboot(machine: Machine, deploys: Deploys) -> None:
    before = causes(machine)
    run = replace(deploys, script="tests/vm/driver_boot.py").run(limit=1500)
    assert run.code == 0, run.text
    assert causes(machine) == [*before, REBOOT]
    inside = machine.ssh("lsinitramfs /boot/initrd.img-$(uname -r)")
    assert "etc/modprobe.d/embedfleet-nouveau.conf" in inside
    assert "blacklist nouveau" in machine.ssh("modprobe --showconfig")
    assert '"^nvidia-utils";' in machine.ssh("apt-config dump Unattended-Upgrade::Package-Blacklist")
    again = replace(deploys, script="tests/vm/driver_boot.py").run()
    assert (again.code, changed(again.text)) == (0, 0), again.text
    assert causes(machine) == [*before, REBOOT]


def test_the_evidence_of_a_machine_without_a_gpu(machine: Machine) -> None:
    """The whole script on a real kernel of arm64: what is not there is told as not there."""
    from embedfleet.diagnose import ladder
    from embedfleet.facts.evidence import parse
    from embedfleet.facts.evidence_script import script

    found = parse(machine.ssh(script(), limit=120).splitlines())
    assert found.complete
    assert found.kernel == machine.ssh("uname -r")
    assert found.next_kernel == found.kernel
    assert (found.loaded, found.smi, found.pci) == ("", "absent", ())
    assert ladder(found, flavour="open").cause == "no-gpu"

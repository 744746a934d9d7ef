"""The machine that `vagrant up` in tests/targets/vm started, as `vagrant ssh-config` describes it."""

import subprocess as _subprocess
from pathlib import Path as _Path

from tests.targets.vm.reach import from_ssh_config as _from_ssh_config

_folder = _Path(__file__).parents[1] / "tests" / "targets" / "vm"
try:
    _told = _subprocess.run(["vagrant", "ssh-config"], cwd=_folder, capture_output=True, text=True, timeout=120)
except FileNotFoundError:
    raise SystemExit(
        "vagrant is not installed; without it: python -m tests.targets.vm up, and inventory/vm.py"
    ) from None
if _told.returncode != 0:
    raise SystemExit(f"the machine is not up: cd {_folder} && vagrant up\n{_told.stderr.strip()}")

grace = _from_ssh_config(_told.stdout)

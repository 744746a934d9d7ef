"""The emulated machine of this checkout, by ssh: `python -m tests.targets.vm up` starts it (docs/testing-vm.md)."""

from tests.targets.host import RigError as _RigError
from tests.targets.naming import names as _names
from tests.targets.vm.reach import reach as _reach

try:
    grace = [_reach(_names())]
except _RigError as _error:
    raise SystemExit(f"the machine is not up: python -m tests.targets.vm up ({_error})") from None

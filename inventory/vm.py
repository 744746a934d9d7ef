"""The emulated machine of this checkout, by ssh: `python -m tests.targets.vm up` starts it (docs/testing-vm.md)."""

import contextlib as _contextlib

from tests.targets.host import RigError as _RigError
from tests.targets.info import machine_data as _machine_data
from tests.targets.info import read_info as _read_info
from tests.targets.naming import names as _names
from tests.targets.vm.reach import reach as _reach

try:
    _name, _data = _reach(_names())
except _RigError as _error:
    raise SystemExit(f"the machine is not up: python -m tests.targets.vm up ({_error})") from None
with _contextlib.suppress(
    _RigError, KeyError
):  # without a mirror for arm64 it is a host like any other: nothing is preset
    _data = {**_data, **_machine_data(_read_info(_names()))}
grace = [(_name, _data)]

"""Both programs are importable in tests: the deploy's package, and the host's embedfleetctl under files/."""

import sys
from pathlib import Path

import pyinfra_cli  # noqa: F401  patches the standard library for gevent; first, before anything uses sockets
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "files"))

# No deadline: how fast a busy machine is says nothing of the code (speed is measured in bench/).
settings.register_profile("embedfleet", deadline=None)
settings.load_profile("embedfleet")

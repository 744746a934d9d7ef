"""Both programs are importable in tests: the deploy's package, and the host's embedfleetctl under files/."""

import sys
from pathlib import Path

import pyinfra_cli  # noqa: F401  patches the standard library for gevent; first, before anything uses sockets

sys.path.insert(0, str(Path(__file__).parent / "files"))

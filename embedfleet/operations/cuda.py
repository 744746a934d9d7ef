"""The CUDA toolkit, where builds and just-in-time compilers need it."""

from __future__ import annotations

from collections.abc import Generator

from pyinfra import host
from pyinfra.api import FactBase, QuoteString, StringCommand, operation
from pyinfra.api.command import PyinfraCommand

from embedfleet.driver import cuda_home, toolkit_version
from embedfleet.operations.shell import failing
from embedfleet.operations.system import installed, settled
from embedfleet.problems import Problem
from embedfleet.systems import System


class Nvcc(FactBase[str]):
    """The CUDA version of nvcc below a folder, e.g. "13.0"; "" for none."""

    @staticmethod
    def default() -> str:
        """Return: there is none."""
        return ""

    def command(self, home: str) -> StringCommand:
        return StringCommand(
            QuoteString(f"{home}/bin/nvcc"), "--version 2>/dev/null | sed -n 's/.*release \\([0-9.]*\\).*/\\1/p'; true"
        )

    def process(self, output: list[str]) -> str:
        return next((line.strip() for line in output), "")


@operation()
def toolkit(package: str, system: System) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure CUDA's compiler in the one folder that builds use.

    + package: of the toolkit, which has its version in its name
    + system: the host's
    """
    home, wanted = cuda_home(package), toolkit_version(package)
    if host.get_fact(Nvcc, home=home) == wanted:
        host.noop(f"nvcc {wanted} is in {home}")
        return
    host.log(f"install {package}")
    yield from settled(system)
    yield from installed(system, [package], [package])
    there = host.get_fact(Nvcc, home=home)
    if there != wanted:
        reason = f"{package} is installed, and {home}/bin/nvcc is {there or 'not there'}"
        yield failing(
            Problem(host.name, "cuda_toolkit", reason, f"see what the package brought: list the files of {package}")
        )

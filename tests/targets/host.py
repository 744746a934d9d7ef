"""What every part of the rig needs from the machine it runs on: the cache, root, commands, messages, locks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


class RigError(Exception):
    """The rig can't go on; the text gives the reason, `cure` what a person can do about it."""

    def __init__(self, reason: str, cure: str) -> None:
        super().__init__(f"{reason}\n  cure: {cure}")


def say(text: str) -> None:
    """One line to stderr: stdout belongs to `info --json` and `exec`."""
    print(f"rig: {text}", file=sys.stderr, flush=True)


def cache_dir() -> Path:
    """Everything downloaded or built lives here, outside the checkout, shared by all checkouts of a user."""
    path = Path(os.environ.get("EMBEDFLEET_CACHE") or "~/.cache/embedfleet").expanduser().absolute()
    path.mkdir(parents=True, exist_ok=True)
    return path


def as_root() -> list[str]:
    """The prefix that makes a command run as root: nothing for root itself."""
    return [] if os.geteuid() == 0 else ["sudo", "-n"]


def run(
    command: Sequence[str | Path],
    *,
    cure: str = "read the message above",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    timeout: float | None = 1800,
) -> str:
    """Run a command and return its stdout; a failure becomes a RigError with the end of what it said."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            env={**os.environ, **env} if env else None,
            cwd=cwd,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    except FileNotFoundError as error:
        raise RigError(f"{words[0]} isn't installed", cure) from error
    except subprocess.TimeoutExpired as error:
        raise RigError(f"{shlex.join(words)} didn't end within {timeout:.0f} s", cure) from error
    if done.returncode != 0:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-15:])
        raise RigError(f"{shlex.join(words)[:400]} ended with {done.returncode}:\n{tail}", cure)
    return done.stdout


def find_tool(tool: str) -> str | None:
    """A program's path; a user's PATH on Debian lacks the sbin folders, where root's programs are."""
    return shutil.which(tool, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def ensure_tool(tool: str, *packages: str) -> None:
    """Install Debian packages with apt unless the tool is there already."""
    if find_tool(tool) is None:
        say(f"{tool} is missing: installing {' '.join(packages)} with apt")
        apt_install(*packages)


def apt_install(*packages: str) -> None:
    """Install Debian packages, with fresh package lists."""
    if shutil.which("apt-get") is None:
        raise RigError("this machine has no apt-get", f"install {' '.join(packages)} yourself")
    with lock("apt"):
        cure = f"install {' '.join(packages)} yourself, or run as root (or with passwordless sudo)"
        env_word = ["env", "DEBIAN_FRONTEND=noninteractive"]  # sudo drops the environment, env(1) doesn't
        run([*as_root(), "apt-get", "update"], cure=cure)
        run([*as_root(), *env_word, "apt-get", "install", "-y", "--no-install-recommends", *packages], cure=cure)


def write_whole(path: Path, text: str) -> None:
    """Write a file beside itself and rename it: whoever reads or serves it sees the old text or the new, never half of one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)


@contextlib.contextmanager
def lock(name: str) -> Iterator[None]:
    """One process at a time, over all checkouts that share the cache; says so when it has to wait."""
    folder = cache_dir() / "locks"
    folder.mkdir(exist_ok=True)
    with (folder / f"{name}.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that works on {name}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield

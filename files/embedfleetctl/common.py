"""Paths, atomic writes, links and the one way to fail."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path("/opt/embedfleet")
WORK = ROOT / "work"  # unfinished parts and build trees: same file system as the parts, so a rename finishes them
SPECS = Path("/var/lib/embedfleet/specs")
RESULTS = Path("/var/lib/embedfleet/results")
LOGS = Path("/var/log/embedfleet")
LOCKS = Path("/run/embedfleet-locks")  # root's alone: in /run/lock anybody could hold them against us
HOST_JSON = Path("/etc/embedfleet/host.json")
BUILD_USER = "embedfleet-build"
KINDS = ("tools", "conda", "engines", "models", "releases")


class Failure(Exception):
    """A step failed. Says which setting is at odds, why, and what cures it."""

    def __init__(self, setting: str, reason: str, cure: str) -> None:
        super().__init__(reason)
        self.setting, self.reason, self.cure = setting, reason, cure

    def as_dict(self) -> dict[str, str]:
        return {"setting": self.setting, "reason": self.reason, "cure": self.cure}


def say(text: str) -> None:
    """Print a line of progress: `#> ` marks what a follower of the log shows to people."""
    with contextlib.suppress(OSError):  # a full /var/log is no reason to stop the work
        print(f"#> {text}", flush=True)


def write_atomic(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file whole or not at all, surviving a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with open(new, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(new, mode)
        os.replace(new, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            new.unlink()


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty where there is no file or it is not JSON."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def switch_link(link: Path, target: str) -> None:
    """Point a symbolic link elsewhere in one step; it never is absent in between."""
    new = link.with_name(f".{link.name}.{os.getpid()}.new")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    os.symlink(target, new)
    os.replace(new, link)


def release_of(link: str) -> str | None:
    """Return the release that `current`, `previous` or `candidate` points at, None without one."""
    try:
        return os.path.basename(os.readlink(ROOT / link))
    except OSError:
        return None


def host_settings() -> dict[str, Any]:
    """Return what the deploy wrote for this host."""
    settings = read_json(HOST_JSON)
    if not settings:
        raise Failure("host.json", f"{HOST_JSON} is missing or not JSON", "run the deploy again; it writes that file")
    return settings


def run(argv: list[str], *, limit: float = 60, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a short command with a time limit; its output is returned, not shown."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        raise Failure(
            "host", f"`{' '.join(argv)}` did not end within {limit:.0f} s", "look at that command by hand"
        ) from None
    if check and done.returncode:
        tail = (done.stderr or done.stdout).strip()[-600:]
        raise Failure(
            "host", f"`{' '.join(argv)}` ended with {done.returncode}: {tail}", "look at that command by hand"
        )
    return done


def wait_until(check: Callable[[], bool], limit: float, interval: float = 0.25) -> bool:
    """Ask `check` until it is true or `limit` seconds are over; say which."""
    end = time.monotonic() + limit
    while not check():
        if time.monotonic() >= end:
            return False
        time.sleep(interval)
    return True


@contextlib.contextmanager
def lock(name: str, limit: float = 60) -> Iterator[None]:
    """Hold a lock among all embedfleetctl processes of the host."""
    LOCKS.mkdir(mode=0o700, exist_ok=True)
    path = LOCKS / f"{name}.lock"
    with open(path, "w", encoding="ascii") as handle:

        def held() -> bool:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        if not wait_until(held, limit):
            raise Failure(
                "host", f"another embedfleetctl holds {path} for over {limit:.0f} s", "let it end, or end it by its id"
            )
        yield

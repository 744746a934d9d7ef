"""One rig's machine: started, reached, rebooted, cut off, removed. Every wait has a limit and shows the console's end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.targets.containers import ensure_key
from tests.targets.host import RigError, ensure_tool, run, say
from tests.targets.info import read_info
from tests.targets.naming import CHECKOUT, Names
from tests.targets.vm import disk, qemu
from tests.targets.vm.image import ensure_image
from tests.targets.vm.reach import HOST
from tests.targets.vm.state import Boot, Files, State, alive, files, load

#: Emulated, on two busy cores, a boot to ssh took up to two minutes.
BOOT_LIMIT_S = 420
SETTLE_LIMIT_S = 300
STOP_LIMIT_S = 180

#: Kept, because Python warns about a child that still runs when its object goes away, and this one is meant to.
_started: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True)
class Machine:
    """The machine of one rig."""

    rig: Names

    @property
    def files(self) -> Files:
        return files(self.rig)

    # ---- what it is

    def state(self) -> State:
        """What its supervisor wrote; an error where none is at work."""
        state = load(self.files.state)
        if state is None:
            raise RigError(f"rig {self.rig.rig} has no machine", "run `python -m tests.targets.vm up`")
        return state

    def boots(self) -> list[Boot]:
        """Every boot since `up`, the first included."""
        return self.state().boots

    def off(self) -> bool:
        return not alive(load(self.files.state))

    # ---- life

    def up(self) -> None:
        """A machine that answers: the running one, or a new one on a fresh copy of the image."""
        ensure_tool(qemu.PROGRAM, "qemu-system-arm")
        if self.off():
            base = ensure_image()
            begun = time.monotonic()
            self._new_disk(str(base))
            self.start()
            self.settle()
            say(f"{HOST} runs at 127.0.0.1:{self.state().port}, {time.monotonic() - begun:.0f} s after its power came")
        self._name_mirror()

    def _new_disk(self, base: str) -> None:
        """A copy of the image with this rig's keys in it: the image itself stays as it was built."""
        self.files.folder.mkdir(parents=True, exist_ok=True)
        self.files.console.unlink(missing_ok=True)
        run(["cp", "--reflink=auto", "--sparse=always", base, self.files.disk], cure="check the free space (`df`)")
        self.files.base.write_text(base + "\n")
        key = ensure_key(self.rig.state)
        host_key = self.files.folder / "ssh_host_ed25519_key"
        if not host_key.exists():
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", HOST, "-f", host_key])
        disk.write(
            self.files.disk,
            {
                "/root/.ssh/authorized_keys": (key.with_suffix(".pub").read_text(), 0o600),
                "/etc/ssh/ssh_host_ed25519_key": (host_key.read_text(), 0o600),
                "/etc/ssh/ssh_host_ed25519_key.pub": (host_key.with_suffix(".pub").read_text(), 0o644),
            },
        )

    def start(self) -> None:
        """Switch it on, with the disk that is there."""
        port = _free_port()
        public = (self.files.folder / "ssh_host_ed25519_key.pub").read_text().split()[:2]
        self.files.known_hosts.write_text(f"[127.0.0.1]:{port} {' '.join(public)}\n")
        self.files.state.unlink(missing_ok=True)
        with self.files.log.open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.targets.vm.supervisor", str(self.files.folder), str(port)],
                cwd=CHECKOUT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # it outlives this process and its terminal
            )
        _started.append(process)
        self._until("start", lambda: (state := load(self.files.state)) is not None and state.running, 30)

    def stop(self) -> None:
        """Power it off in order and wait for that: its disk is clean then."""
        self.ssh("systemctl poweroff", check=False)
        self._until("power itself off", self.off, STOP_LIMIT_S, dead_is_fine=True)

    def reboot(self) -> None:
        """Reboot it from inside and wait until it answers again."""
        boots = len(self.boots())
        self.ssh("systemctl reboot", check=False)
        self.await_boot(boots + 1)

    def cut(self) -> None:
        """Cut the power; it comes back at once, and the machine with it."""
        state = self.state()
        if not state.running:
            raise RigError(f"{HOST} is not running", "run `python -m tests.targets.vm up`")
        os.kill(state.qemu, signal.SIGKILL)
        self.await_boot(len(state.boots) + 1)

    def await_boot(self, count: int) -> None:
        """Until the machine has booted `count` times and answers."""
        self._until(f"boot for the {count}th time", lambda: len(self.boots()) >= count, STOP_LIMIT_S)
        self.settle()

    def down(self) -> None:
        """Away with it and its disk."""
        state = load(self.files.state)
        if alive(state) and state is not None:
            os.kill(state.supervisor, signal.SIGTERM)
            self._until("end", self.off, 30, dead_is_fine=True)
        shutil.rmtree(self.files.folder, ignore_errors=True)

    # ---- reaching it

    def ssh_words(self) -> list[str]:
        """The ssh command that reaches it as root."""
        options = {
            "UserKnownHostsFile": self.files.known_hosts,
            "IdentitiesOnly": "yes",
            "BatchMode": "yes",
            "ConnectTimeout": 60,
            "ServerAliveInterval": 15,
            "LogLevel": "ERROR",
        }
        chosen = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        key = str(self.rig.state / "id_ed25519")
        return ["ssh", "-F", "none", "-i", key, *chosen, "-p", str(self.state().port), "root@127.0.0.1"]

    def ssh(self, command: str, check: bool = True, limit: float = 300) -> str:
        """A shell command in the machine; its output."""
        try:
            done = subprocess.run(
                [*self.ssh_words(), command], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=limit
            )
        except subprocess.TimeoutExpired as error:
            raise RigError(f"{command!r} did not end within {limit:.0f} s", self._console()) from error
        if check and done.returncode:
            raise RigError(f"{command!r} ended with {done.returncode}:\n{done.stdout}{done.stderr}", self._console())
        return done.stdout.strip()

    def settle(self) -> None:
        """Until sshd answers and systemd has nothing more to start."""
        self._until("answer by ssh", self._answers, BOOT_LIMIT_S)
        self._until("finish its start", self._settled, SETTLE_LIMIT_S)

    def _settled(self) -> bool:
        told = self.ssh("systemctl is-system-running --wait", check=False, limit=SETTLE_LIMIT_S)
        return told in ("running", "degraded")

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.state().port), timeout=10) as connection:
                connection.settimeout(10)
                return connection.recv(4) == b"SSH-"  # qemu itself accepts long before the guest does
        except OSError:
            return False

    def _until(self, what: str, ready: Callable[[], bool], limit: float, dead_is_fine: bool = False) -> None:
        deadline = time.monotonic() + limit
        begun = time.monotonic()
        while not ready():
            state = load(self.files.state)
            if state is not None and not dead_is_fine and not alive(state) and not ready():
                raise RigError(f"{HOST} is off: {state.error or 'it powered itself off'}", self._console())
            if time.monotonic() > deadline:
                raise RigError(f"{HOST} did not {what} within {limit:.0f} s", self._console())
            time.sleep(0.2 if time.monotonic() - begun < 5 else 1)

    def _console(self) -> str:
        """The console's end, as part of a message."""
        text = self.files.console.read_text(errors="replace") if self.files.console.exists() else ""
        lines = "\n    ".join(text.replace("\r", "").splitlines()[-15:])
        return f"read {self.files.console}, which ends with\n    {lines}"

    def _name_mirror(self) -> None:
        """The rig's mirror under its usual name; from the machine all connections go out through this host."""
        hosts = f"127.0.0.1 localhost\n127.0.1.1 {HOST}\n"
        with contextlib.suppress(RigError, KeyError):  # no rig with a mirror is up
            address = read_info(self.rig)["mirror"]["control"].split("//")[1].split(":")[0]
            hosts += f"{address} {self.rig.mirror} mirror\n"
        self.ssh(f"printf '%s' '{hosts}' | cmp -s - /etc/hosts || printf '%s' '{hosts}' > /etc/hosts")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

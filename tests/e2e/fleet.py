"""What the end-to-end tests need: the real command against the real target, and ways to disturb both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.targets.engine import docker_words

ROOT = Path(__file__).parents[2]
PYINFRA = str(Path(sys.executable).parent / "pyinfra")


@dataclass
class Run:
    """How a pyinfra run ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.out.splitlines()[0])
        return loaded

    @property
    def changed(self) -> list[str]:
        """Names of the operations that changed something (or, of a dry run, would)."""
        results = self.json["results"]
        if results is None:
            return [
                op["name"] for op in self.json["plan"] if op["hosts_with_change"] or op["hosts_with_conditional_change"]
            ]
        return [op["name"] for op in results["operations"] if op["success"]]


@dataclass
class Fleet:
    """One rig: a target of it, its mirror, and the command that people use.

    :param bare: what the target had when it was bare; None where that was not seen
    :param target: the one that runs are limited to, where the inventory is the rig's; "" for all of `others`
    """

    info: dict[str, Any]
    logs: Path
    inventory: str = "inventory/docker.py"
    runs: int = field(default=0)
    target: str = "x86"
    others: tuple[str, ...] = ()
    bare: set[str] | None = None

    @property
    def container(self) -> str:
        return str(self.info["hosts"][self.target]["container"])

    @property
    def host(self) -> str:
        """The target's name in the inventory, without the connector."""
        return self.container if os.access("/var/run/docker.sock", os.W_OK) else self.target

    @property
    def gateway(self) -> str:
        return f"http://{self.info['hosts'][self.target]['ip']}:8080"

    def command(self, *arguments: str, **data: object) -> list[str]:
        words = [PYINFRA, self.inventory, *(arguments or ("deploy.py", "-y"))]
        if self.inventory == "inventory/docker.py":
            for target in self.others or (self.target,):
                words += ["--limit", f"*{target}"]
        for name, value in data.items():
            words += ["--data", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
        return words

    def pyinfra(self, *arguments: str, ssh: bool = False, limit: float = 900, **data: object) -> Run:
        """Run pyinfra to its end; `data` are settings, as --data gives them."""
        done = subprocess.run(
            self.command(*arguments, **data),
            cwd=ROOT,
            env={**os.environ, **({"EMBEDFLEET_TRANSPORT": "ssh"} if ssh else {})},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=limit,
        )
        self.runs += 1
        (self.logs / f"{self.runs:02}.log").write_text(" ".join(done.args) + "\n" + done.stdout + done.stderr)
        return Run(done.returncode, done.stdout, done.stderr)

    def deploy(self, **data: object) -> Run:
        """Run the deploy as ops do."""
        return self.pyinfra("deploy.py", "-y", **data)

    @contextmanager
    def deploying(self, **data: object) -> Iterator[subprocess.Popen[str]]:
        """Start the deploy in the background; whatever happens, it is ended."""
        self.runs += 1
        with open(self.logs / f"{self.runs:02}-background.log", "w+") as log:
            process = subprocess.Popen(
                self.command("deploy.py", "-y", **data), cwd=ROOT, stdout=log, stderr=log, text=True, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(60)

    def on_target(self, command: str, check: bool = True, limit: float = 120) -> str:
        """Run a shell command on the target; return its output."""
        done = subprocess.run(
            [*docker_words(), "exec", "-i", self.container, "sh", "-c", command],
            capture_output=True,
            text=True,
            timeout=limit,
        )
        if check and done.returncode:
            raise AssertionError(f"{command!r} on the target: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    def until(self, condition: str, limit: float) -> None:
        """Wait on the target until a shell condition holds: looking from outside costs ten times as much each time."""
        told = self.on_target(
            f"timeout {limit:.0f} sh -c 'until {condition}; do sleep 0.5; done'; echo $?", limit=limit + 30
        )
        assert told == "0", f"waited {limit:.0f} s for {condition}"

    def reboot(self, limit: float = 180) -> None:
        """Reboot a target that can (on demand, in naming.py), and wait until it has booted: boot_id is another one, as on a server."""
        boot = "cat /proc/sys/kernel/random/boot_id"
        before = self.on_target(boot)
        self.on_target("systemctl reboot", check=False)
        up = f'[ "$({boot})" != {before} ] && systemctl is-system-running | grep -qx -e running -e degraded && echo up'
        wait("the reboot", lambda: self.on_target(up, check=False) == "up", limit)

    def state(self) -> dict[str, Any]:
        """Return what `embedfleetctl state` says."""
        loaded: dict[str, Any] = json.loads(self.on_target("/opt/embedfleet/bin/embedfleetctl state"))
        return loaded

    def kill_job(self, pattern: str) -> None:
        """SIGKILL every process of our jobs' units that match, as the out-of-memory killer or a power cut would."""
        self.on_target(f"systemctl kill --kill-who=all -s KILL 'embedfleet-job-{pattern}'", check=False)
        wait(f"the end of embedfleet-job-{pattern}", lambda: not self.active(f"embedfleet-job-{pattern}"), 30)

    def active(self, pattern: str) -> bool:
        """Say whether a unit that matches is at work."""
        return bool(self.on_target(f"systemctl list-units --no-legend --state=active,activating '{pattern}'"))

    def fault(self, match: str, mode: str, **more: object) -> None:
        """Have the mirror fail for paths with `match`."""
        self._control("POST", {"match": match, "mode": mode, **more})

    def heal(self) -> None:
        """Have the mirror work again, with an empty log."""
        self._control("DELETE")
        self._request("DELETE", "/_log")

    def mirror_log(self) -> list[dict[str, Any]]:
        """Return what was asked of the mirror since `heal`."""
        loaded = json.loads(self._request("GET", "/_log"))
        entries: list[dict[str, Any]] = loaded["requests"] if isinstance(loaded, dict) else loaded
        return entries

    def _control(self, method: str, body: object = None) -> None:
        self._request(method, "/_control", body)

    def _request(self, method: str, path: str, body: object = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.info["mirror"]["control"] + path, data, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return str(answer.read().decode())


def wait(what: str, check: Callable[[], object], limit: float) -> None:
    """Wait until `check` is true, at most `limit` seconds; looking costs the target a core, so it gets rare."""
    begun = time.monotonic()
    while not check():
        waited = time.monotonic() - begun
        assert waited < limit, f"waited {limit:.0f} s for {what}"
        time.sleep(0.2 if waited < 5 else 1 if waited < 20 else 2)


class Load:
    """Clients that ask the gateway for embeddings all the time, yet leave the cores to who starts; failures are kept."""

    def __init__(self, url: str, model: str, clients: int = 2) -> None:
        self.url, self.model = url, model
        self.failures: list[str] = []
        self.done = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._client, daemon=True) for _ in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)

    def _client(self) -> None:
        body = json.dumps({"model": self.model, "input": ["a text", "another text"]}).encode()
        while not self._stop.wait(0.7):
            request = urllib.request.Request(f"{self.url}/v1/embeddings", body, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=90) as answer:
                    assert len(json.load(answer)["data"]) == 2
                self.done += 1
            except (OSError, ValueError, AssertionError, urllib.error.HTTPError) as error:
                self.failures.append(f"{time.strftime('%T')} {type(error).__name__}: {error}")


def still_serves(fleet: Fleet, release: str) -> None:
    """What ran before runs on: right, current, with nothing left over of the attempt."""
    state = fleet.state()
    assert state["current"] == release
    assert state["rollout"] is None
    assert {i["release"] for i in state["instances"]} == {release}
    assert state["gateway"] == {"applied": True, "out": {}}
    assert not fleet.active("embedfleet-candidate@*")
    found = json.loads(fleet.on_target("/opt/embedfleet/bin/embedfleetctl verify --json"))
    assert found["right"], found


def failed(fleet: Fleet, *words: str, **data: object) -> str:
    """Deploy, which must fail with these words in its last report, and leave what ran before."""
    before = fleet.state()["current"]
    run = fleet.deploy(**data)
    assert run.code == 1, run.err
    told = " ".join(run.err[run.err.rindex("FAILED") :].split())  # as wrapped lines break phrases anywhere
    for word in (fleet.host, "why:", "cure:", *words):
        assert word in told, told
    still_serves(fleet, before)
    return told

"""Time a deploy that changes nothing against an Ansible playbook for the same state: python -m bench.compare [--runs N]

Both reach the deployed test target over ssh, with the same address, key and host keys, in turn. Prints commands,
changes and seconds of each run, then minimum, median and maximum of both. Exits 1 if a run failed or changed something.
--apply runs the playbook once instead, whatever it changes: on a bare target it makes what deploy.py makes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from bench import noop
from embedfleet.facts.state import ROOT as ON_HOST
from embedfleet.plan import Plan
from tests.targets import host as machine
from tests.targets.info import read_info
from tests.targets.naming import names

HERE = Path(__file__).parent / "ansible"
REQUIREMENTS = Path(__file__).with_name("requirements-ansible.txt")
INVENTORY = "inventory/docker.py"
SSH = {"EMBEDFLEET_TRANSPORT": "ssh"}
LIMIT = 1800  # seconds a playbook run may take

#: Folders of managed files that every Debian has; the others are made by whoever writes the files.
STANDARD = {"/etc/systemd/system", "/usr/local/share/ca-certificates"}


@dataclass(frozen=True)
class Run:
    """One run of one tool; commands: what it ran on the host over ssh, None where that was not counted."""

    tool: str
    code: int
    commands: int | None
    changed: tuple[str, ...]
    seconds: float
    log: str = field(repr=False, default="")
    tasks: tuple[tuple[str, float], ...] = ()

    @property
    def good(self) -> bool:
        """Whether it ended well and changed nothing."""
        return self.code == 0 and not self.changed

    def as_dict(self) -> dict[str, Any]:
        """Return the run for JSON."""
        told = {"tool": self.tool, "code": self.code, "commands": self.commands, "changed": list(self.changed)}
        return {**told, "seconds": self.seconds, **({"tasks": dict(self.tasks)} if self.tasks else {})}


# ---- pure: the playbook's inputs, what it printed, statistics


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Return minimum, median and maximum."""
    return {"min": min(seconds), "median": round(statistics.median(seconds), 2), "max": max(seconds)}


def accounts(sysusers: str) -> list[dict[str, str]]:
    """Return the accounts that a sysusers.d file declares."""
    words = [shlex.split(line, comments=True) for line in sysusers.splitlines()]
    keys = ("name", "comment", "home", "shell")
    return [dict(zip(keys, (line[1], *line[3:6]), strict=True)) for line in words if line and line[0] == "u"]


def variables(plan: Plan, inputs: Path) -> dict[str, Any]:
    """Return the playbook's variables: the plan, as Ansible's modules take it.

    :param inputs: where `write_inputs` puts the contents
    """
    declared = next(file.content for file in plan.files if file.path.startswith("/etc/sysusers.d/"))
    parents = {str(PurePosixPath(file.path).parent) for file in plan.files} - STANDARD - set(plan.directories)
    ours = dict.fromkeys(sorted(parents), ("755", "root"))
    return {
        "inputs": str(inputs),
        "accounts": [account for account in accounts(declared) if account["name"] in plan.accounts],
        "directories": [
            {"path": path, "mode": mode, "owner": owner} for path, (mode, owner) in (plan.directories | ours).items()
        ],
        "managed_files": [
            {"path": file.path, "mode": file.mode, "owner": file.owner, "group": file.group} for file in plan.files
        ],
        "packages": list(plan.system.packages),
        "certificates": list(plan.certificates),
        "parts": [
            {
                "kind": part.kind,
                "id": part.id,
                "limit": str(part.limit),
                "folder": f"{ON_HOST}/{part.kind}",
                "manifest": f"{ON_HOST}/{part.kind}/{part.id}/manifest.json",
            }
            for part in plan.parts
        ],
        "ports": list(plan.settings.instance_ports),
        "release": plan.release,
        "activate_limit": str(plan.activation_limit),
    }


def write_inputs(plan: Plan, folder: Path) -> None:
    """Write the playbook's variables, the managed files and the parts' specs."""
    for file in plan.files:
        path = folder / "files" / file.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.content, encoding="utf-8")
    specs = folder / "specs"
    specs.mkdir()
    for part in plan.parts:
        (specs / f"{part.kind}-{part.id}.json").write_text(json.dumps(part.spec, indent=1), encoding="utf-8")
    (folder / "vars.json").write_text(json.dumps(variables(plan, folder), indent=1), encoding="utf-8")


def inventory(info: dict[str, Any]) -> dict[str, Any]:
    """Return Ansible's inventory of a rig: the connection data that inventory/docker.py gives pyinfra."""
    ssh, name = info["ssh"], "x86"
    known_hosts = shlex.quote(f'UserKnownHostsFile="{ssh["known_hosts"]}"')  # ssh itself splits at spaces, too
    reach = {
        "ansible_host": info["hosts"][name]["ip"],
        "ansible_user": ssh["user"],
        "ansible_ssh_private_key_file": ssh["key"],
        "ansible_ssh_common_args": f"-o {known_hosts} -o StrictHostKeyChecking=yes",
    }
    return {"all": {"hosts": {name: reach}}}


def recap(lines: Sequence[str]) -> dict[str, int] | None:
    """Return the counts of the play recap (ok, changed, unreachable, failed, ...); None where there is none."""
    for line in reversed(lines):
        if re.match(r"\S+\s+: ok=\d+\s+changed=\d+\s", line):
            return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", line)}
    return None


def changes(lines: Sequence[str]) -> tuple[str, ...]:
    """Return what a playbook's output says was changed: task, and item of a loop."""
    found, task = [], ""
    for line in lines:
        if line.startswith("TASK ["):
            task = line[6:].rpartition("]")[0]
        elif line.startswith("changed: ["):
            item = re.search(r"\(item=(.*?)\)(?: =>|$)", line)
            found.append(f"{task}: {item[1]}" if item else task)
    return tuple(found)


def durations(stamped: Sequence[tuple[float, str]]) -> tuple[tuple[str, float], ...]:
    """Return the tasks of a run and their seconds, from its lines and the moment of each."""
    marks = [(at, line[6:].rpartition("]")[0]) for at, line in stamped if line.startswith("TASK [")]
    ends = [at for at, _ in marks[1:]] + [at for at, line in stamped if line.startswith("PLAY RECAP")][:1]
    return tuple((name, round(end - at, 2)) for (at, name), end in zip(marks, ends))


def text(runs: Sequence[Run]) -> str:
    """Return what people read: both tools' statistics, their ratio, and where Ansible's time goes."""
    ours, theirs = ([run for run in runs if run.tool == tool] for tool in ("embedfleet", "Ansible"))
    lines = ["", f"{'':<12}{'commands':>8}{'changes':>9}{'min s':>8}{'median s':>10}{'max s':>8}"]
    for kind in (ours, theirs):
        stats = summary([run.seconds for run in kind])
        changed = sum(len(run.changed) for run in kind)
        asked = "?" if kind[0].commands is None else kind[0].commands
        lines.append(
            f"{kind[0].tool:<12}{asked:>8}{changed:>9}{stats['min']:>8.2f}{stats['median']:>10.2f}{stats['max']:>8.2f}"
        )
    lines.append(
        f"\nAnsible's median is {ratio(runs):.1f} times embedfleet's. Its run nearest to that median, by task:"
    )
    middle = statistics.median([run.seconds for run in theirs])
    shown = min(theirs, key=lambda run: abs(run.seconds - middle))
    lines += [f"{seconds:>8.2f} s  {name}" for name, seconds in shown.tasks if seconds >= 0.05]
    rest = shown.seconds - sum(seconds for _, seconds in shown.tasks)
    return "\n".join([*lines, f"{rest:>8.2f} s  start, end and reading the playbook"])


def ratio(runs: Sequence[Run]) -> float:
    """Return Ansible's median as a multiple of embedfleet's."""
    ours, theirs = ([run.seconds for run in runs if run.tool == tool] for tool in ("embedfleet", "Ansible"))
    return round(statistics.median(theirs) / statistics.median(ours), 2)


# ---- both tools, run as programs


def ensure_ansible() -> Path:
    """Install the pinned ansible-core into the cache, once; the folder of its programs."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:8]
    venv = machine.cache_dir() / f"ansible-{digest}"
    with machine.lock("ansible"):
        if not (venv / ".ok").exists():
            machine.say("installing the pinned ansible-core into the cache (once)")
            shutil.rmtree(venv, ignore_errors=True)
            machine.run([sys.executable, "-m", "venv", venv])
            flags = ["--quiet", "--disable-pip-version-check", "--require-hashes", "--only-binary=:all:"]
            machine.run(
                [venv / "bin" / "python", "-m", "pip", "install", *flags, "-r", REQUIREMENTS],
                cure="check that pip reaches its index",
            )
            (venv / ".ok").touch()
    machine.ensure_tool("ssh", "openssh-client")
    return venv / "bin"


def run_embedfleet() -> Run:
    """Deploy once, as ops do."""
    found = noop.run([INVENTORY, "--limit", "*x86", "deploy.py"], SSH)
    changed = tuple(found["changed"] or ())
    return Run("embedfleet", found["code"], found.get("commands"), changed, found["seconds"], found["stderr"])


def run_ansible(programs: Path, work: Path, commands: int | None = None, verbose: bool = False) -> Run:
    """Run the playbook once.

    :param work: with hosts.json and inputs/
    :param commands: what a verbose run counted
    :param verbose: count the commands on the host; takes longer
    """
    words = [str(programs / "ansible-playbook"), "-i", str(work / "hosts.json"), str(HERE / "playbook.yml")]
    words += ["-e", f"@{work / 'inputs' / 'vars.json'}", *(["-vvv"] if verbose else [])]
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ANSIBLE_") and name != "PYTHONDONTWRITEBYTECODE"
    }
    env |= {"ANSIBLE_CONFIG": str(HERE / "ansible.cfg"), "ANSIBLE_HOME": str(work / "home"), "LC_ALL": "C.UTF-8"}
    begun = time.monotonic()
    process = subprocess.Popen(
        words, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    guard = threading.Timer(LIMIT, process.kill)
    guard.start()
    try:
        assert process.stdout
        stamped = [(time.monotonic() - begun, line.rstrip("\n")) for line in process.stdout]
        code = process.wait()
    finally:
        guard.cancel()
    seconds = round(time.monotonic() - begun, 2)
    lines = [line for _, line in stamped]
    counts = recap(lines)
    if code == 0 and (not counts or counts["changed"] != len({change.partition(":")[0] for change in changes(lines)})):
        code = 1  # the two ways to tell changes differ: neither is believed
    if verbose:
        commands = sum("SSH: EXEC" in line for line in lines)
    return Run("Ansible", code, commands, changes(lines), seconds, "\n".join(lines), durations(stamped))


def tell(run: Run, note: str = "") -> None:
    """Print one run; its log where it is not what it should be."""
    asked = "?" if run.commands is None else run.commands
    print(
        f"{run.tool:<12}{asked:>4} commands, {len(run.changed)} changes, {run.seconds:>6.2f} s{note}", file=sys.stderr
    )
    for change in run.changed:
        print(f"            changed: {change}", file=sys.stderr)
    if run.code:
        print(f"{run.log}\n{run.tool} failed ({run.code})", file=sys.stderr)


def compare(programs: Path, work: Path, count: int) -> list[Run]:
    """Run both in turn, after one untimed run of each; ends at the first run that is not right."""
    runs: list[Run] = []
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before the first run", file=sys.stderr)
    for untimed in (run_embedfleet(), first := run_ansible(programs, work, verbose=True)):
        tell(untimed, "  (not counted: caches fill, Ansible's commands are counted with -vvv)")
        if not untimed.good:
            return [untimed]
    for _ in range(count):
        for run in (run_embedfleet(), run_ansible(programs, work, first.commands)):
            tell(run)
            runs.append(run)
            if not run.good:
                return runs
    return runs


def main() -> int:
    """Run the comparison; exit 1 when a run failed or changed something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="timed runs of each tool")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--apply", action="store_true", help="run the playbook once, whatever it changes")
    args = parser.parse_args()
    try:
        info = read_info(names())
        programs = ensure_ansible()
    except machine.RigError as error:
        print(f"bench: error: {error}", file=sys.stderr)
        return 1
    if not args.apply:
        deployed = noop.run([INVENTORY, "--limit", "*x86", "verify.py"], SSH)
        if deployed["code"]:
            print(deployed["stderr"], file=sys.stderr)
            print(f"bench: the target is not deployed; run pyinfra {INVENTORY} deploy.py -y first", file=sys.stderr)
            return 1
    with tempfile.TemporaryDirectory(prefix="embedfleet-bench-") as folder:
        work = Path(folder)
        (work / "inputs").mkdir()
        (work / "hosts.json").write_text(json.dumps(inventory(info)), encoding="utf-8")
        rendered = noop.run(
            [INVENTORY, "--limit", "*x86", "bench/ansible/render.py"],
            {**SSH, "EMBEDFLEET_BENCH_INPUTS": str(work / "inputs")},
        )
        if rendered["code"] or not (work / "inputs" / "vars.json").exists():
            print(f"{rendered['stderr']}\nbench: the playbook's inputs could not be rendered", file=sys.stderr)
            return 1
        if args.apply:
            applied = run_ansible(programs, work)
            tell(applied)
            return applied.code
        runs = compare(programs, work, args.runs)
    good = all(run.good for run in runs)
    if args.json:
        stats = {
            tool: summary([run.seconds for run in runs if run.tool == tool])
            for tool in sorted({run.tool for run in runs})
        }
        print(json.dumps({"runs": [run.as_dict() for run in runs], **stats, "ratio": ratio(runs) if good else None}))
    elif good:
        print(text(runs))
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())

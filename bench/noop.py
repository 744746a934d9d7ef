"""Count and time a deploy that changes nothing: python -m bench.noop [--runs N] [--json] [INVENTORY] [pyinfra arguments]

Runs pyinfra as a program would, with a counter around the connectors' two ways to reach a host: a command, and an
upload. Prints remote commands, uploads, changes and seconds of each run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

_CHILD = """
import json, sys
from pyinfra_cli.cli import cli
from pyinfra.connectors.ssh import SSHConnector
from pyinfra.connectors.docker import DockerConnector
from pyinfra.connectors.fake import FakeConnector
counts = {"commands": 0, "uploads": 0}
def counted(cls, name, key):
    inner = getattr(cls, name)
    def outer(self, *args, **kwargs):
        counts[key] += 1
        return inner(self, *args, **kwargs)
    setattr(cls, name, outer)
for cls in (SSHConnector, DockerConnector, FakeConnector):
    counted(cls, "run_shell_command", "commands")
    counted(cls, "put_file", "uploads")
try:
    cli(sys.argv[1:])
finally:
    print("COUNTS " + json.dumps(counts), file=sys.stderr)
"""


def run(arguments: list[str], env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run pyinfra with `arguments` once; return code, remote commands, uploads, changes, seconds (whole process).

    With bytecode caching, as an operator's shell has it: PYTHONDONTWRITEBYTECODE has our modules compiled in every run.
    """
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, *arguments, "-y", "--json"],
        cwd=ROOT,
        env={k: v for k, v in {**os.environ, **(env or {})}.items() if k != "PYTHONDONTWRITEBYTECODE"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=1800,
    )
    seconds = time.monotonic() - begun
    counts = next((json.loads(x[7:]) for x in done.stderr.splitlines() if x.startswith("COUNTS ")), {})
    results = json.loads(done.stdout)["results"] if done.stdout.strip() else None
    changed = [op["name"] for op in results["operations"] if op["success"]] if results else None
    return {"code": done.returncode, **counts, "changed": changed, "seconds": round(seconds, 2), "stderr": done.stderr}


def main() -> int:
    """Run the benchmark; exit 1 when a run failed or changed something."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("arguments", nargs="*", default=["inventory/docker.py", "--limit", "*x86", "deploy.py"])
    args = parser.parse_args()
    results = [run(args.arguments) for _ in range(args.runs)]
    for result in results:
        stderr = result.pop("stderr")
        if result["code"] or result["changed"]:
            print(stderr, file=sys.stderr)
    if args.json:
        print(json.dumps(results))
    else:
        for result in results:
            print(
                f"{result['commands']} commands, {result['uploads']} uploads, {len(result['changed'] or [])} changes, {result['seconds']} s"
            )
    return int(any(result["code"] or result["changed"] for result in results))


if __name__ == "__main__":
    sys.exit(main())

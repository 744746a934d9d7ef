"""The machine's command line: `python -m tests.targets.vm {up,down,reboot,cut,ssh,info,image,clean}`."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from dataclasses import asdict

from tests.targets.host import RigError, lock, say
from tests.targets.naming import names
from tests.targets.vm.image import ensure_image, folder
from tests.targets.vm.machine import HOST, Machine

VERBS = {
    "image": "build the image, unless the cache has it",
    "up": "a machine that answers, from a fresh copy of the image unless one runs",
    "down": "remove the machine and its disk; the image stays",
    "reboot": "reboot it from inside and wait until it answers",
    "cut": "cut its power, give it back and wait until it answers",
    "clean": "down, and remove the images: all checkouts share them",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.targets.vm", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, text in VERBS.items():
        verbs.add_parser(verb, help=text)
    verbs.add_parser("info", help="how to reach it, and its boots").add_argument("--json", action="store_true")
    verbs.add_parser("ssh", help="a shell or a command in it").add_argument("command", nargs=argparse.REMAINDER)
    return parser


def show(machine: Machine, as_json: bool) -> None:
    """What runs, and how often it has booted."""
    state = machine.state()
    if as_json:
        print(json.dumps({**asdict(state), "ssh": machine.ssh_words()}, indent=2))
        return
    print(f"{HOST}   {'off' if machine.off() else 'on'}   {' '.join(machine.ssh_words())}")
    print(f"console    {machine.files.console}")
    for number, boot in enumerate(state.boots, 1):
        at = time.strftime("%H:%M:%S", time.localtime(boot.at))
        print(f"boot {number:<5} {at} {boot.cause}: {boot.kernel} {boot.cmdline}")


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    begun = time.monotonic()
    try:
        machine = Machine(names())
        if args.verb == "info":
            show(machine, args.json)
            return 0
        if args.verb == "ssh":
            words = args.command[1:] if args.command[:1] == ["--"] else args.command
            return subprocess.run([*machine.ssh_words(), *(["--", *words] if words else [])]).returncode
        with lock(f"vm-{machine.rig.rig}"):
            match args.verb:
                case "image":
                    ensure_image()
                case "clean":
                    machine.down()
                    shutil.rmtree(folder(), ignore_errors=True)
                case verb:
                    getattr(machine, verb)()
        say(f"{args.verb} of {HOST} done in {time.monotonic() - begun:.1f} s")
    except RigError as error:
        print(f"vm: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("vm: interrupted; run the same command again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

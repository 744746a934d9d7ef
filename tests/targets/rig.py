"""The test rig's command line: `python -m tests.targets.rig {up,mirror,down,clean,info,reset,present,drive,exec}`."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.targets import upstream
from tests.targets.containers import (
    address,
    await_target,
    create_target,
    ensure_key,
    host_keys,
    inspect,
)
from tests.targets.emulation import remove_emulation
from tests.targets.engine import docker, docker_words, ensure_engine
from tests.targets.hardware import HARDWARE, drive
from tests.targets.host import RigError, lock, say, write_whole
from tests.targets.image import (
    RECIPES,
    SERVER_PACKAGES,
    ensure_image,
    ensure_server_image,
    mirror_tag,
    server_tag,
    target_tag,
)
from tests.targets.info import read_info
from tests.targets.mirror import mirror
from tests.targets.naming import TARGETS, Names, names

SITE_CA = Path("/usr/local/share/ca-certificates")


def asked(rig: Names, hosts: list[str]) -> list[str]:
    """The targets to run: those asked for (none: all but those on demand), and those that this rig runs already."""
    unknown = sorted(set(hosts) - set(TARGETS))
    if unknown:
        raise RigError(f"no target is called {', '.join(unknown)}", f"there are {', '.join(TARGETS)}")
    meant = hosts or [host for host, target in TARGETS.items() if not target.on_demand]
    return [host for host in TARGETS if host in meant or inspect(rig.target(host)) is not None]


def targets(rig: Names, images: dict[str, str], hardware: dict[str, str] | None = None) -> dict[str, Any]:
    """Run the target containers; their part of rig.json, and known_hosts.

    :param images: host -> its image
    :param hardware: what some present themselves as, in place of what they do now (a new one: what naming.py says)
    """
    key = ensure_key(rig.state)
    known_hosts = rig.state / "known_hosts"
    public_key = key.with_suffix(".pub").read_text()
    shown = {host: target.hardware for host, target in TARGETS.items()} | presented(rig) | (hardware or {})
    created = {host: create_target(rig, host, image, public_key, shown[host]) for host, image in images.items()}
    found = {}
    for host in images:  # they boot side by side
        await_target(rig, host, created[host])
        found[host] = {
            "container": rig.target(host),
            "ip": address(rig.target(host), rig.network),
            "image": TARGETS[host].image,
            "hardware": shown[host],
            "folder": str(rig.hardware(host)),
        }
    # Each time: a container of the same name and address may be a new one, with keys of its own.
    lines = [line for entry in found.values() for line in host_keys(entry["container"], entry["ip"])]
    known_hosts.write_text("\n".join(lines) + "\n")
    return {"hosts": found, "ssh": {"user": "root", "key": str(key), "known_hosts": str(known_hosts)}}


def presented(rig: Names) -> dict[str, str]:
    """What this rig's targets present themselves as now."""
    try:
        hosts = read_info(rig)["hosts"]
    except RigError:
        return {}
    return {host: entry["hardware"] for host, entry in hosts.items() if entry.get("hardware") in HARDWARE}


def write_info(rig: Names, **parts: Any) -> None:
    """Replace parts of rig.json in one step; the others stay."""
    path = rig.state / "rig.json"
    old = json.loads(path.read_text()) if path.exists() else {"hosts": {}}
    write_whole(path, json.dumps({**old, **parts, "site_ca": site_ca()}, indent=2) + "\n")


def site_ca() -> list[str]:
    """The machine's own extra CA files. The deploy installs them on targets, not the rig."""
    return [str(path) for path in sorted(SITE_CA.rglob("*.crt"))] if SITE_CA.is_dir() else []


def up(rig: Names, hosts: list[str], hardware: dict[str, str] | None = None) -> None:
    """The mirror and targets; what runs already stays as it is."""
    ensure_engine()
    hosts = asked(rig, hosts)
    images = bootstrap(hosts)
    write_info(rig, **mirror(rig, hosts), **targets(rig, images, hardware))


def bootstrap(hosts: list[str]) -> dict[str, str]:
    """The image of each host; those that are missing are made two at a time: under emulation each is minutes of one core."""
    kinds = sorted({TARGETS[host].image for host in hosts})
    with ThreadPoolExecutor(2) as pool:
        tags = dict(zip(kinds, pool.map(ensure_image, kinds), strict=True))
    return {
        host: ensure_server_image(target.image) if target.on_demand or target.kmod else tags[target.image]
        for host, target in ((host, TARGETS[host]) for host in hosts)
    }


def present(rig: Names, host: str, hardware: str) -> None:
    """A target made anew that presents other hardware; the others stay as they are."""
    target = TARGETS[host]
    fit = [
        name
        for name, found in HARDWARE.items()
        if (found.machine, bool(found.initramfs)) == (target.machine, target.on_demand)
    ]
    if hardware not in fit:
        what = "a server without driver" if target.on_demand else "no server without driver"
        raise RigError(f"{host} is {target.machine} and {what}, {hardware} is not", f"one of {', '.join(fit)}")
    up(rig, [host], {host: hardware})


def reset(rig: Names, hosts: list[str]) -> None:
    """Fresh targets; the mirror goes on."""
    ensure_engine()
    running = asked(rig, hosts or ["x86"])
    for host in hosts or running:
        _remove_later(rig.target(host))
    up(rig, running)


def change(rig: Names, host: str, path: str, value: str) -> None:
    """Drive presented hardware; what its kernel shows follows at once."""
    drive(rig.hardware(host), path, value)
    if TARGETS[host].on_demand and inspect(rig.target(host)) is not None:
        docker("exec", rig.target(host), "sh", "/rig/lib/plug")


def away(rig: Names, hosts: list[str]) -> None:
    """Remove some targets; the others stay as they are."""
    ensure_engine()
    asked(rig, hosts)
    for host in hosts:
        _remove(rig.target(host))
    with contextlib.suppress(RigError):
        info = read_info(rig)
        write_info(rig, hosts={host: entry for host, entry in info["hosts"].items() if host not in hosts})


def down(rig: Names) -> None:
    """Remove the rig's containers and network; images, downloads and the ssh key stay."""
    ensure_engine()
    for name in (*(rig.target(host) for host in TARGETS), rig.mirror):
        _remove(name)
    for name in _going(rig):
        with contextlib.suppress(RigError):  # its removal is at work
            _remove(name)
    if rig.network in docker("network", "ls", "--format", "{{.Name}}").splitlines():
        docker("network", "rm", rig.network)
    (rig.state / "rig.json").unlink(missing_ok=True)


def clean(rig: Names) -> None:
    """`down`, this rig's state, and the images unless another checkout uses them. Downloads stay: they are shared."""
    down(rig)
    shutil.rmtree(rig.state, ignore_errors=True)
    for tag in (
        mirror_tag(target_tag("amd64")),
        *(server_tag(kind) for kind in SERVER_PACKAGES),
        *(target_tag(kind) for kind in RECIPES),
        *(upstream.tag(kind) for kind in RECIPES),
    ):
        done = subprocess.run([*docker_words(), "image", "rm", tag], capture_output=True, text=True)
        if done.returncode != 0 and "no such image" not in done.stderr.lower():
            say(f"kept {tag}: {done.stderr.strip()}")
    if not docker("ps", "-a", "--filter", "name=^embedfleet-", "--format", "{{.Names}}").split():
        remove_emulation()  # while there are others' targets, they need it


def execute(rig: Names, host: str, command: list[str]) -> int:
    """A command in a target (or in `mirror`), its output and exit code passed on."""
    container = rig.mirror if host == "mirror" else rig.target(host)
    if inspect(container) is None:
        raise RigError(
            f"there is no container {container}",
            f"run `python -m tests.targets.rig up {host if host in TARGETS else ''}`",
        )
    terminal = ["-t"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    words = command[1:] if command[:1] == ["--"] else command
    return subprocess.run([*docker_words(), "exec", "-i", *terminal, container, *(words or ["bash", "-l"])]).returncode


def show(rig: Names, as_json: bool) -> None:
    info = read_info(rig)
    if as_json:
        print(json.dumps(info, indent=2))
        return
    print(f"rig      {rig.rig}   ({rig.state / 'rig.json'})")
    print(f"mirror   {info['mirror']['control']}   (in the network: {info['mirror']['url']})")
    for host, entry in info["hosts"].items():
        ssh = info["ssh"]
        print(f"{host:<8} presents itself as {entry['hardware'] or 'what it is'}")
        print(f"{'':<8} ssh -i {ssh['key']} -o UserKnownHostsFile={ssh['known_hosts']} {ssh['user']}@{entry['ip']}")


def _remove(name: str) -> None:
    if inspect(name) is not None:
        docker("rm", "-f", "-v", name)


def _remove_later(name: str) -> None:
    """Stop a container and take its name away; its gigabytes are removed while the work goes on (48 s were seen)."""
    found = inspect(name)
    if found is None:
        return
    gone = f"{name}-gone-{found['Id'][:12]}"
    try:
        docker("rename", name, gone)
    except RigError:  # Docker renames none that is about to start again
        _remove(name)
        return
    if found["State"]["Running"]:
        docker("kill", gone)
    words = [*docker_words(), "rm", "-f", "-v", gone]
    subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)  # fmt: skip


def _going(rig: Names) -> list[str]:
    """What `_remove_later` has not removed yet, or never did."""
    names = docker("ps", "-a", "--format", "{{.Names}}").splitlines()
    return [name for name in names if name.startswith(f"embedfleet-{rig.rig}-") and "-gone-" in name]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.targets.rig", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, text in (
        ("up", "engine, images, mirror and targets (those named, or all that are not on demand)"),
        ("mirror", "fill the cache and run the mirror only"),
    ):
        verbs.add_parser(verb, help=text).add_argument("hosts", nargs="*", metavar="HOST", help="for these alone")
    sub = verbs.add_parser("reset", help="remove and recreate targets (seconds)")
    sub.add_argument("hosts", nargs="*", metavar="HOST", help="these alone")
    sub = verbs.add_parser("down", help="remove containers and network, or the targets named")
    sub.add_argument("hosts", nargs="*", metavar="HOST", help="these alone")
    verbs.add_parser("clean", help="down, and remove images and this rig's state")
    verbs.add_parser("info", help="how to reach it").add_argument("--json", action="store_true")
    sub = verbs.add_parser("present", help="have a target present other hardware; it is made anew")
    sub.add_argument("host", choices=[host for host, target in TARGETS.items() if target.hardware])
    sub.add_argument("hardware", choices=list(HARDWARE))
    sub = verbs.add_parser("drive", help="change a value of presented hardware: drive grace gpu/0/temperature.gpu 91")
    sub.add_argument("host", choices=[host for host, target in TARGETS.items() if target.hardware])
    sub.add_argument("path")
    sub.add_argument("value")
    sub = verbs.add_parser("exec", help="run a command in a target")
    sub.add_argument("host", choices=[*TARGETS, "mirror"])
    sub.add_argument("command", nargs=argparse.REMAINDER)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    started = time.monotonic()
    try:
        rig = names()
        if args.verb == "exec":
            return execute(rig, args.host, args.command)
        if args.verb == "info":
            show(rig, args.json)
            return 0
        rig.state.mkdir(parents=True, exist_ok=True)
        with lock(f"rig-{rig.rig}"):
            match args.verb:
                case "up":
                    up(rig, args.hosts)
                case "mirror":
                    write_info(rig, **mirror(rig, asked(rig, args.hosts)))
                case "present":
                    present(rig, args.host, args.hardware)
                case "drive":
                    change(rig, args.host, args.path, args.value)
                case "reset":
                    reset(rig, args.hosts)
                case "down":
                    away(rig, args.hosts) if args.hosts else down(rig)
                case "clean":
                    clean(rig)
        say(f"{args.verb} of rig {rig.rig} done in {time.monotonic() - started:.1f} s")
    except RigError as error:
        print(f"rig: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("rig: interrupted; run the same command again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

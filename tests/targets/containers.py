"""The rig's network and containers: the mirror, and targets with systemd as PID 1."""

from __future__ import annotations

import hashlib
import http.client
import ipaddress
import json
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.targets import upstream
from tests.targets.engine import docker, docker_words
from tests.targets.hardware import HARDWARE, version, write
from tests.targets.host import RigError, ensure_tool, lock, run, say
from tests.targets.naming import GIT_PORT, MIRROR_PORT, TARGETS, Names

LABEL = "embedfleet.config"
#: On the network: its subnet, where that was asked for.
SUBNET = "embedfleet.subnet"
SERVER = Path(__file__).with_name("mirror_server.py")
WAIT_S = 90

TARGET_FLAGS = (
    *("--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"),
    # exec: Docker's default is noexec, but servers can run what a build puts into /tmp
    *("--tmpfs", "/run", "--tmpfs", "/run/lock", "--tmpfs", "/tmp:exec,mode=1777"),
    # host: in cgroup v2's default, a private namespace, this mount shows systemd the root of the machine's tree
    *("--cgroupns", "host", "-v", "/sys/fs/cgroup:/sys/fs/cgroup:rw"),
    *("-e", "container=docker", "--shm-size", "1g"),
)


@dataclass(frozen=True)
class Served:
    """The folders that the mirror serves."""

    wheelhouse: Path
    models: tuple[Path, ...]
    conda: Path
    repositories: tuple[Path, ...]
    rpms: Path
    nvidia: Path


def inspect(name: str) -> dict[str, Any] | None:
    """`docker inspect` of a container, or None."""
    words = [*docker_words(), "container", "inspect", name]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        return None
    found: dict[str, Any] = json.loads(done.stdout)[0]
    return found


def address(name: str, network: str) -> str:
    """A container's IP address on the rig's network."""
    found = inspect(name)
    ip = found["NetworkSettings"]["Networks"].get(network, {}).get("IPAddress") if found else None
    if not ip:
        raise RigError(f"container {name} has no address on {network}", "run `python -m tests.targets.rig up`")
    return str(ip)


def ensure_network(network: str) -> None:
    """The rig's own bridge network, on which containers find each other by name.

    Made twice: Docker knows which subnet is free, but lets containers choose an address in one alone that was asked for.
    """
    if subnet(network) is not None:
        return
    with lock("network"):
        docker("network", "create", network)
        free = docker("network", "inspect", "-f", "{{(index .IPAM.Config 0).Subnet}}", network).strip()
        docker("network", "rm", network)
        docker("network", "create", "--subnet", free, "--label", f"{SUBNET}={free}", network)


def subnet(network: str) -> str | None:
    """The subnet that a network was made with; None without the network, empty where Docker chose it (an older rig's)."""
    words = [*docker_words(), "network", "inspect", "-f", f'{{{{index .Labels "{SUBNET}"}}}}', network]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.stdout.strip() if done.returncode == 0 else None


def kept_address(subnet: str, host: str) -> str:
    """The address of a target that reboots: from the subnet's end, as Docker gives addresses from its beginning."""
    return str(ipaddress.ip_network(subnet)[-2 - list(TARGETS).index(host)])


def ensure_container(
    name: str, words: Sequence[str], version: str = "", before: Callable[[], None] = lambda: None
) -> bool:
    """A running container made from these words of `docker run`; True when it was (re)created now.

    A container that stopped, or was made from other words, is replaced: nothing in it is worth keeping.

    :param before: called before it is created
    """
    config = hashlib.sha256(json.dumps([*words, version]).encode()).hexdigest()[:16]
    found = inspect(name)
    if found and found["State"]["Running"] and found["Config"]["Labels"].get(LABEL) == config:
        return False
    if found:
        docker("rm", "-f", "-v", name)
    before()
    docker("run", "-d", "--name", name, "--label", f"{LABEL}={config}", *words)
    return True


def ensure_mirror(names: Names, image: str, served: Served) -> str:
    """The mirror container; its IP address. Inside the network it is also plain `mirror`."""
    mounts = {
        served.wheelhouse / "simple": "/srv/mirror/simple",
        served.wheelhouse / "wheels": "/srv/mirror/wheels",
        served.conda: "/srv/mirror/conda",
        **{owner: f"/srv/mirror/models/{owner.name}" for folder in served.models for owner in sorted(folder.iterdir())},
        **{repository: f"/srv/git/{repository.name}" for repository in served.repositories},
        served.rpms: "/srv/mirror/rpm/rhel9/x86_64",
        # folder by folder: others serve apt and rpm repositories beside these
        **{path: f"/srv/mirror/{path.relative_to(served.nvidia)}" for path in sorted(served.nvidia.glob("[ar]*/*"))},
        served.nvidia / ".variants": "/srv/mirror/.variants",
        SERVER: "/srv/mirror_server.py",
    }
    volumes = [word for source, target in mounts.items() for word in ("-v", f"{source}:{target}:ro")]
    git = f"git daemon --reuseaddr --export-all --port={GIT_PORT} --base-path=/srv/git /srv/git"
    serve = f"exec python3 /srv/mirror_server.py --root /srv/mirror --port {MIRROR_PORT}"
    words = ["--hostname", "mirror", "--network", names.network, "--network-alias", "mirror", *volumes, image]
    # the server's own text belongs to the container's version: a bind mount of a file doesn't follow an editor's rename
    version = hashlib.sha256(SERVER.read_bytes()).hexdigest()
    created = ensure_container(names.mirror, [*words, "/bin/sh", "-c", f"{git} & {serve}"], version)
    ip = address(names.mirror, names.network)
    if created:
        say(f"waiting for the mirror at {ip} (limit {WAIT_S} s)")
    wait(lambda: _healthy(ip) and _listens(ip, GIT_PORT), names.mirror, "answer")
    return ip


def create_target(names: Names, host: str, image: str, public_key: str, hardware: str) -> bool:
    """A target container, presented as `hardware` (hardware.py; "" for what it is); True when it was created now."""
    name = names.target(host)
    # before init: a run interrupted at any moment leaves no target without its key
    start = f"mkdir -p -m 700 /root/.ssh && (umask 077 && echo '{public_key.strip()}' > /root/.ssh/authorized_keys)"
    if TARGETS[host].image == "rhel9" and not upstream.wanted():
        repository = (
            f"[rhel]\nname=RHEL 9 stand-in\nbaseurl=http://{names.mirror}:{MIRROR_PORT}/rpm/rhel9/x86_64\ngpgcheck=0\n"
        )
        start += f" && printf '{repository}' > /etc/yum.repos.d/rhel.repo"
    words = ["--hostname", host, "--network", names.network, *TARGET_FLAGS]
    folder, presented = names.hardware(host), ""
    if hardware:
        presented = version(HARDWARE[hardware])
        words += ["-v", f"{folder}:/rig:ro"]
        start += " && sh /rig/bin/present"
    if TARGETS[host].on_demand:
        # systemd's way to reboot in a container is to end, and Docker starts it again: same files, and the same address if asked for
        words += ["--restart", "unless-stopped"]
        if known := subnet(names.network):
            words += ["--ip", kept_address(known, host)]
        else:
            say(
                f"{host} may get another address when it reboots: {names.network} is an older rig's (`rig down`, then `up`)"
            )
    words += [image, "/bin/sh", "-c", f"{start} && exec /sbin/init"]
    return ensure_container(
        name, words, presented, before=lambda: write(folder, HARDWARE[hardware]) if hardware else None
    )


def await_target(names: Names, host: str, created: bool) -> None:
    """Until its systemd has booted and its sshd takes the rig's key."""
    name = names.target(host)
    if created:
        say(f"waiting for systemd in {name} (limit {WAIT_S} s)")
    wait(lambda: system_state(name) in ("running", "degraded"), name, "boot")
    ip = address(name, names.network)
    wait(lambda: _listens(ip, 22), name, "listen on port 22")
    if created:
        failed = docker("exec", name, "systemctl", "list-units", "--failed", "--plain", "--no-legend")
        units = " ".join(line.split()[0] for line in failed.splitlines() if line.strip())
        say(f"{name} ({TARGETS[host].image}) is {f'degraded by {units}' if units else 'running'} at {ip}")


def system_state(name: str) -> str:
    """systemctl is-system-running in a container; empty before PID 1 answers."""
    words = [*docker_words(), "exec", name, "systemctl", "is-system-running"]
    return subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout.strip()


def ensure_key(folder: Path) -> Path:
    """The rig's ssh key pair; the path of its private half."""
    key = folder / "id_ed25519"
    if not key.exists():
        ensure_tool("ssh-keygen", "openssh-client")
        run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "embedfleet-rig", "-f", key],
            cure="apt-get install openssh-client",
        )
    return key


def host_keys(name: str, ip: str) -> list[str]:
    """known_hosts lines of a target."""
    keys = docker("exec", name, "sh", "-c", "cat /etc/ssh/ssh_host_*_key.pub").splitlines()
    return [f"{name},{ip} {' '.join(key.split()[:2])}" for key in keys if key.strip()]


def wait(ready: Callable[[], bool], name: str, what: str) -> None:
    """Until `ready`, with a limit; ends early when the container is gone."""
    deadline = time.monotonic() + WAIT_S
    while not ready():
        found = inspect(name)
        if found is None or not found["State"]["Running"] or time.monotonic() > deadline:
            why = f"didn't {what} within {WAIT_S} s" if found and found["State"]["Running"] else "ended"
            done = subprocess.run([*docker_words(), "logs", "--tail", "15", name], capture_output=True, text=True)
            raise RigError(
                f"{name} {why}:\n{done.stdout}{done.stderr}".rstrip(), f"read `docker logs {name}`, then run `reset`"
            )
        time.sleep(0.2)


def _listens(ip: str, port: int) -> bool:
    try:
        socket.create_connection((ip, port), timeout=2).close()
    except OSError:
        return False
    return True


def _healthy(ip: str) -> bool:
    # plain http.client: urllib would send a request to this address through http_proxy
    connection = http.client.HTTPConnection(ip, MIRROR_PORT, timeout=2)
    try:
        connection.request("GET", "/_health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()

"""The mirror's apt and rpm repositories, used by the real apt, dpkg, modinfo and dnf: they behave, and they fail, as real ones."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.e2e.apt import HOME, Apt, Told
from tests.e2e.fleet import Fleet
from tests.targets.engine import docker_words
from tests.targets.image import ensure_image
from tests.targets.nvidia.specs import GONE, NEWER, NEXT, OLDER

pytestmark = pytest.mark.target

#: What there is on the target, as far as packages change it.
_PATHS = (
    "find / -xdev -path /proc -prune -o -path /sys -prune -o -path /tmp -prune -o -path /run -prune -o -path /var/log -prune"
    " -o -path /var/cache -prune -o -path /var/lib/dpkg -prune -o -path /var/lib/apt -prune -o -path /var/lib/systemd -prune"
    " -o -print | grep -v -e __pycache__ -e '^/etc/.*-$' -e '^/var/backups' | sort"
)


@pytest.fixture(scope="module")
def target(fleet: Fleet) -> Iterator[Apt]:
    """Apt for the mirror, with kmod's real modinfo at hand; in the end, the target is what it was."""
    apt = Apt(fleet)
    fleet.heal()
    before = fleet.on_target(_PATHS).splitlines()
    packages = set(fleet.on_target("dpkg-query -W -f '${Package}\\n'").splitlines())
    apt.prepare()
    if "kmod" not in packages:  # from the host's own sources; its lists stay out of the host
        own = f"env -u APT_CONFIG apt-get -qq -y -o Acquire::Languages=none -o Dir::State::lists={HOME}/own"
        apt.ok(f"mkdir -p {HOME}/own/partial && {own} update && {own} install kmod")
    yield apt
    fleet.heal()
    added = sorted(set(fleet.on_target("dpkg-query -W -f '${Package}\\n'").splitlines()) - packages)
    apt.ok(f"apt-get -y purge {' '.join(added)}; rm -rf {HOME}")
    after = fleet.on_target(_PATHS).splitlines()
    assert sorted(set(after) ^ set(before)) == []


@pytest.fixture
def apt(target: Apt) -> Iterator[Apt]:
    """A mirror that works, and afterwards none of the stand-ins."""
    target.fleet.heal()
    yield target
    target.fleet.heal()
    found = target.run(
        "dpkg-query -W -f '${Package}\\n' | grep -E 'nvidia|^cuda-|^linux-|^dkms$|libcuda|^firmware-nv'"
    ).text.split()
    if found:
        target.ok(f"apt-get -y purge {' '.join(found)}")


def _noble(apt: Apt, *suites: str) -> None:
    apt.use(*(f"{apt.urls['ubuntu']} {suite} restricted" for suite in suites))
    apt.ok("apt-get update")


def test_ubuntu_install_upgrade_and_change_of_branch(apt: Apt) -> None:
    _noble(apt, "noble")
    wanted = f"linux-modules-nvidia-580-server-open-{apt.kernel} nvidia-headless-no-dkms-580-server-open nvidia-utils-580-server"
    apt.ok(f"apt-get -y install {wanted} linux-modules-nvidia-580-server-open-generic")
    assert apt.ok("modinfo -F version nvidia").strip() == OLDER
    assert apt.ok("modinfo -F license nvidia").strip() == "Dual MIT/GPL"
    assert "/kernel/nvidia-580srv-open/nvidia.ko" in apt.ok("modinfo -F filename nvidia")
    assert apt.ok("modinfo -k 6.8.0-138-generic -F vermagic nvidia").startswith("6.8.0-138-generic ")
    assert f"libnvidia-ml.so.{OLDER}" in apt.ok("readlink -f /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
    query = "RIG_GPU=/tmp/rig-apt/gpu nvidia-smi --query-gpu=name,memory.total,driver_version,fan.speed --format=csv,noheader"
    apt.ok("cd /tmp/rig-apt; mkdir -p gpu/0; echo NVIDIA GH200 480GB > gpu/0/name; echo 97871 > gpu/0/memory.total")
    assert apt.ok(query).strip() == f"NVIDIA GH200 480GB, 97871 MiB, {OLDER}, [N/A]"
    apt.ok(f"echo {NEWER} > /tmp/rig-apt/gpu/loaded")
    assert apt.run(query).code == 18
    # static, as on Ubuntu: nobody enables it
    assert apt.run("systemctl is-enabled nvidia-persistenced").text.strip() == "static"

    _noble(apt, "noble", "noble-updates")
    # firmware has the version in its name, so a plain upgrade of apt-get holds everything back
    assert "kept back" in apt.ok("apt-get -y upgrade")
    assert apt.ok("modinfo -F version nvidia").strip() == OLDER
    # the new branch without the rest of the family, while the old one is not at its newest: "held broken packages"
    new = wanted.replace("580", "620")
    told = apt.run(f"apt-get -y install {new}")
    assert told.code == 100
    assert "held packages" in told.text
    apt.ok("apt-get -y upgrade --with-new-pkgs")
    assert apt.ok("modinfo -F version nvidia").strip() == NEWER
    family = "libnvidia-cfg1 libnvidia-compute nvidia-compute-utils nvidia-kernel-common"
    told = apt.run(f"apt-get -y install {new} {' '.join(f'{name}-620-server' for name in family.split())}")
    assert told.code == 0, told.text
    assert f"Removing nvidia-kernel-common-580-server ({NEWER}" in told.text
    assert apt.ok("modinfo -F version nvidia").strip() == NEXT


def test_pins_hold_and_dkms_builds_skips_and_fails(apt: Apt) -> None:
    apt.use(f"{apt.urls['nvidia']}/ubuntu2404/x86_64/ /", f"{apt.urls['ubuntu']} noble restricted")
    apt.ok("apt-get update")

    def candidate() -> str:
        return apt.ok("apt-cache policy nvidia-open | sed -n 's/ *Candidate: //p'").strip()

    assert candidate() == f"{NEXT}-1ubuntu1"
    apt.ok(f"apt-get -y install nvidia-driver-pinning-{OLDER}")
    assert candidate() == f"{OLDER}-0ubuntu1"
    apt.ok(f"apt-get -y install nvidia-driver-pinning-580 linux-image-{apt.kernel}")
    assert candidate() == f"{NEWER}-0ubuntu1"
    # without headers the installation looks good, and there is no module
    told = apt.ok("apt-get -y install nvidia-open")
    assert f"Module build for kernel {apt.kernel} was skipped since the" in told
    assert apt.version("nvidia-dkms-580-open") == f"{NEWER}-0ubuntu1"
    assert apt.ok("dkms status").strip() == f"nvidia/{NEWER}: added"
    assert apt.run("modinfo nvidia").code != 0
    told = apt.run(f"dkms build nvidia/{NEWER}")
    assert told.code == 1
    assert (
        f"Error! Your kernel headers for kernel {apt.kernel} cannot be found at /lib/modules/{apt.kernel}/build"
        in told.text
    )
    # the headers come later, and dkms's hook builds
    apt.ok(f"apt-get -y install linux-headers-{apt.kernel}")
    assert apt.ok("dkms status").strip() == f"nvidia/{NEWER}, {apt.kernel}, x86_64: installed"
    assert apt.ok("modinfo -F version nvidia").strip() == NEWER
    assert "/updates/dkms/nvidia.ko" in apt.ok("modinfo -F filename nvidia")
    # headers that don't fit
    apt.ok(f"rm /usr/src/linux-headers-{apt.kernel}/include/generated/autoconf.h")
    told = apt.run("apt-get -y install --reinstall nvidia-dkms-580-open")
    assert told.code == 100
    assert f"Error! Bad return status for module build on kernel: {apt.kernel} (x86_64)" in told.text
    assert "post-installation script subprocess returned error exit status 10" in told.text
    assert "autoconf.h: No such file or directory" in apt.ok(f"cat /var/lib/dkms/nvidia/{NEWER}/build/make.log")
    apt.ok(f"apt-get -y install --reinstall linux-headers-{apt.kernel} && dpkg --configure -a")


def test_debian_names_the_toolkit_and_cuda(apt: Apt) -> None:
    apt.use(
        f"{apt.urls['nvidia']}/debian12/x86_64/ /",
        f"{apt.urls['libnvidia-container']}/stable/deb/amd64 /",
        f"{apt.urls['ubuntu']} noble restricted",
    )
    apt.ok("apt-get update")
    assert "Inst nvidia-kernel-open-dkms" in apt.ok("apt-get -s install nvidia-open")
    names = (
        "nvidia-container-toolkit",
        "nvidia-container-toolkit-base",
        "libnvidia-container-tools",
        "libnvidia-container1",
    )
    # one pinned package asks for the same version of the others, whose newest does not fit
    told = apt.run("apt-get -y install nvidia-container-toolkit=1.18.1-1")
    assert told.code == 100
    assert "nvidia-container-toolkit-base (= 1.18.1-1)" in told.text
    apt.ok(f"apt-get -y install {' '.join(f'{name}=1.18.1-1' for name in names)} cuda-toolkit-13-0")
    assert apt.ok("nvidia-ctk --version").startswith("NVIDIA Container Toolkit CLI version 1.18.1\n")
    apt.ok("apt-get -y upgrade")
    assert {apt.version(name) for name in names} == {"1.19.1-1"}

    apt.ok("""echo '{"log-driver": "journald", "runtimes": {"other": {"path": "x"}}}' > /tmp/rig-apt/daemon.json""")
    configure = "nvidia-ctk runtime configure --runtime=docker --config=/tmp/rig-apt/daemon.json --cdi.enabled"
    assert "It is recommended that docker daemon be restarted." in apt.ok(configure)
    first = apt.ok("cat /tmp/rig-apt/daemon.json")
    assert json.loads(first) == {
        "features": {"cdi": True},
        "log-driver": "journald",
        "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}, "other": {"path": "x"}},
    }
    apt.ok(configure)
    assert apt.ok("cat /tmp/rig-apt/daemon.json") == first

    assert apt.ok("readlink -f /usr/local/cuda").strip() == "/usr/local/cuda-13.0"
    assert "Cuda compilation tools, release 13.0, V13.0.88\n" in apt.ok("/usr/local/cuda/bin/nvcc --version")


#: Mode -> more of the fault, what `apt-get update` says, its exit code.
FAULTS = {
    "404": ({}, "does not have a Release file", 100),
    # what may pass is a warning: apt-get update ends with 0, and goes on with the lists that it has
    "503": ({}, "W: Failed to fetch", 0),
    "cut": ({"after_bytes": 100}, "W: Failed to fetch", 0),
    "corrupt": ({"after_bytes": 300}, "E: ", 100),
    "expired-key": ({}, "EXPKEYSIG", 100),
    "new-key": ({}, "NO_PUBKEY", 100),
    "badsig": ({}, "BADSIG", 100),
    "expired-release": ({}, "is expired (invalid since", 100),
}


@pytest.mark.parametrize("mode", FAULTS)
def test_apt_says_what_is_wrong(apt: Apt, mode: str) -> None:
    more, words, code = FAULTS[mode]
    apt.use(f"{apt.urls['nvidia']}/ubuntu2404/x86_64/ /")
    apt.fleet.fault("/apt/nvidia/ubuntu2404/x86_64/", mode, **more)
    told = apt.run("apt-get update")
    assert words in told.text
    assert told.code == code, told.text
    apt.fleet.heal()
    apt.ok("apt-get update")


def test_stale_index_lists_what_is_gone(apt: Apt) -> None:
    apt.use(f"{apt.urls['nvidia']}/ubuntu2404/x86_64/ /")
    apt.fleet.fault("/apt/nvidia/ubuntu2404/x86_64/", "stale")
    apt.ok("apt-get update")
    assert f"Candidate: {GONE}-0ubuntu1" in apt.ok("apt-cache policy nvidia-open")
    told = apt.run("apt-get -y install nvidia-utils-580")
    assert told.code == 100
    assert "404  Not Found" in told.text
    # a list that is older than the one apt has is not taken over, as with a real mirror that lags behind
    apt.fleet.heal()
    apt.ok("apt-get update")
    apt.fleet.fault("/apt/nvidia/ubuntu2404/x86_64/", "stale")
    apt.ok("apt-get update")
    assert f"Candidate: {NEXT}-1ubuntu1" in apt.ok("apt-cache policy nvidia-open")


def test_package_that_is_not_what_the_index_says(apt: Apt) -> None:
    apt.use(f"{apt.urls['nvidia']}/ubuntu2404/x86_64/ /")
    apt.ok("apt-get update")
    apt.fleet.fault("cuda-nvcc-13-0_", "corrupt", after_bytes=500)
    told = apt.run("apt-get -y install cuda-toolkit-13-0")
    assert told.code == 100
    assert "Hash Sum mismatch" in told.text
    apt.fleet.heal()
    apt.fleet.fault("cuda-nvcc-13-0_", "slow", rate=500)
    apt.ok("apt-get -y install cuda-toolkit-13-0")


RPM = r"""
set -eu
cat > /tmp/rig.repo <<REPO
[main]
[cuda]
name=cuda
baseurl=$URL/nvidia/rhel9/$ARCH
gpgkey=$URL/nvidia/rhel9/$ARCH/D42D0685.pub
gpgcheck=1
repo_gpgcheck=1
[toolkit]
name=toolkit
baseurl=$URL/libnvidia-container/stable/rpm/$MACHINE
gpgkey=$URL/libnvidia-container/gpgkey
gpgcheck=1
repo_gpgcheck=1
[rhel]
name=rhel
baseurl=$URL/rhel/9/$MACHINE
gpgcheck=0
REPO
"""

_DNF = "dnf -y -c /tmp/rig.repo --setopt=reposdir=/none --setopt=retries=1"
#: For another architecture: a root of its own, and no scripts, for want of a shell of that architecture there.
_FOREIGN = f"{_DNF} --installroot=/tmp/root --releasever=9 --forcearch=aarch64 --setopt=tsflags=noscripts --setopt=cachedir=/tmp/cache"


@pytest.fixture(scope="module")
def dnf(fleet: Fleet) -> Iterator[str]:
    """A container of the image that stands in for RHEL 9, which has the real dnf and rpm; gone in the end."""
    name, network = f"{fleet.container}-dnf", fleet.container.rsplit("-", 1)[0]
    subprocess.run([*docker_words(), "rm", "-f", name], capture_output=True)
    words = [*docker_words(), "run", "-d", "--init", "--name", name, "--network", network, ensure_image("rhel9")]
    subprocess.run([*words, "sleep", "600"], check=True, capture_output=True)
    try:
        yield name
    finally:
        subprocess.run([*docker_words(), "rm", "-f", name], capture_output=True)


def _in(name: str, fleet: Fleet, arch: str, command: str) -> Told:
    machine, words = ("aarch64", _FOREIGN) if arch == "sbsa" else (arch, _DNF)
    settings = f"URL={fleet.info['repos']['rpm']['nvidia'].removesuffix('/nvidia')} ARCH={arch} MACHINE={machine}\n"
    script = settings + RPM + f'dnf() {{ command {words} "$@"; }}\n' + command
    done = subprocess.run(
        [*docker_words(), "exec", "-i", name, "bash", "-c", script], capture_output=True, text=True, timeout=180
    )
    return Told(done.returncode, done.stdout + done.stderr)


@pytest.mark.parametrize("arch", ["x86_64", "sbsa"])
def test_dnf_installs_what_a_stream_has(fleet: Fleet, dnf: str, arch: str) -> None:
    fleet.heal()
    install = "dnf install nvidia-open nvidia-container-toolkit cuda-toolkit-13-0"
    told = _in(dnf, fleet, arch, f"dnf module list nvidia-driver; dnf module enable nvidia-driver:580-open; {install}")
    assert told.code == 0, told.text
    for stream in ("580-open", "620-open", "open-dkms"):
        assert stream in told.text
    root = "/tmp/root" if arch == "sbsa" else "/"
    query = f"rpm --root {root} -q --qf '%{{epoch}}:%{{version}} ' nvidia-open kmod-nvidia-open-dkms"
    told = _in(dnf, fleet, arch, f"{query}; /{root}/usr/local/cuda-13.0/bin/nvcc -V")
    assert f"3:{NEWER} 3:{NEWER} " in told.text
    assert "release 13.0, V13.0.88" in told.text
    if arch == "x86_64":  # its scripts ran: dkms found no headers, and the package counts as installed all the same
        assert f"nvidia-open/{NEWER}: added" in _in(dnf, fleet, arch, "dkms status").text
        build = f"dnf install kernel-devel-$(uname -r); dkms install nvidia-open/{NEWER}; dkms status"
        told = _in(dnf, fleet, arch, f"{build}; ls /lib/modules/$(uname -r)/extra")
        assert f"nvidia-open/{NEWER}, {fleet.on_target('uname -r')}, x86_64: installed" in told.text, told.text
        assert "nvidia-uvm.ko" in told.text


def test_dnf_says_what_is_wrong(fleet: Fleet, dnf: str) -> None:
    where = "/rpm/nvidia/rhel9/x86_64/repodata"
    for mode, words in (("badsig", "GPG"), ("expired-key", "GPG"), ("503", "503")):
        fleet.heal()
        fleet.fault(where, mode)
        told = _in(dnf, fleet, "x86_64", "dnf --refresh --repo=cuda makecache")
        assert told.code == 1, f"{mode}\n{told.text}"
        assert words in told.text, f"{mode}\n{told.text}"
    fleet.heal()
    fleet.fault(where, "stale")
    install = f"dnf --repo=cuda,rhel install nvidia-fabric-manager-{GONE}"
    told = _in(dnf, fleet, "x86_64", f"dnf clean all; {install}")
    fleet.heal()
    assert told.code == 1
    assert "404" in told.text, told.text

"""NVIDIA's own apt repository (developer.download.nvidia.com/compute/cuda/repos/<distribution>/<architecture>/)."""

from __future__ import annotations

from tests.targets.nvidia.kernelmodule import OPEN
from tests.targets.nvidia.package import File, Package, own, text
from tests.targets.nvidia.payload import (
    CFG,
    COMPUTE,
    MACHINE,
    REBOOT,
    branch,
    dkms_source,
    firmware,
    libraries,
    script,
    service,
    smi,
    start,
    stop,
)
from tests.targets.nvidia.specs import CUDA_VERSION, NVCC_BUILD, NVCC_BUILT, NVCC_VERSION, NVIDIA_ARCH
from tests.targets.nvidia.ubuntu import dkms_scripts

#: GUIDE: Ubuntu's names of this repository lost their branch with this one.
UNBRANCHED = 590

#: What nvidia-driver-pinning-* names (MEM: its exact file; public scripts rely on its priority of 1000).
_PINNED = "nvidia-open* nvidia-driver* nvidia-dkms* nvidia-kernel* nvidia-firmware* nvidia-utils* nvidia-compute* libnvidia-* nvidia-persistenced* firmware-nvidia-* libcuda1 nvidia-smi nvidia-fabricmanager nvidia-imex cuda-drivers*"  # fmt: skip


def packages(distro: str, arch: str, drivers: tuple[str, ...], keyring: bytes) -> list[Package]:
    """Everything of one directory of the repository."""
    found = [cuda_keyring(distro, arch, keyring), *toolkit(arch)]
    for driver in drivers:
        names = debian if distro.startswith("debian") else ubuntu
        found += [*names(driver, arch), *fabric(driver, arch)]
    pins = {*drivers, *(branch(driver) for driver in drivers)}
    return [*found, *(pinning(pin) for pin in sorted(pins))]


def _persistenced(name: str, version: str, driver: str, arch: str, needs: tuple[str, ...], **more: tuple[str, ...]) -> Package:  # fmt: skip
    return Package(
        name,
        version,
        arch,
        "Daemon to maintain persistent software state in the NVIDIA driver",
        needs,
        files=service("nvidia-persistenced", driver),
        scripts={
            "postinst": script(start("nvidia-persistenced", enable=True)),
            "prerm": script(stop("nvidia-persistenced")),
        },
        **more,
    )


def ubuntu(driver: str, arch: str) -> list[Package]:
    """Driver packages for Ubuntu: with the branch in their names up to 580, without it from 590 on (GUIDE)."""
    number, machine = branch(driver), MACHINE[arch]
    old = int(number) < UNBRANCHED
    suffix = f"-{number}" if old else ""
    version = f"{driver}-0ubuntu1" if old else f"{driver}-1ubuntu1"
    exactly = f"(= {version})"
    folder = f"/usr/lib/{machine}-linux-gnu"

    def virtual(base: str) -> dict[str, tuple[str, ...]]:
        # a branch takes another's place, and 590's names take those of the branches
        if old:
            return {"provides": (base,), "conflicts": (base,), "replaces": (base,)}
        return {"conflicts": (f"{base}-580",), "replaces": (f"{base}-580",)}

    compute_files, compute_links = libraries(COMPUTE, driver, machine, folder)
    cfg_files, cfg_links = libraries(CFG, driver, machine, folder)
    dkms = f"nvidia-dkms{suffix}-open"
    common, compute = f"nvidia-kernel-common{suffix}", f"libnvidia-compute{suffix}"
    daemon = f"nvidia-compute-utils{suffix}" if old else "nvidia-persistenced"
    daemon_more = (
        virtual("nvidia-compute-utils")
        if old
        else {"conflicts": ("nvidia-compute-utils",), "replaces": ("nvidia-compute-utils",)}
    )
    utils = f"nvidia-utils{suffix}"
    firmware_name = f"nvidia-firmware-{number}-{driver}" if old else "nvidia-firmware"
    driver_name = f"nvidia-driver{suffix}-open"
    parts = (f"libnvidia-cfg1{suffix}", compute, daemon, utils, common, dkms)
    found = [
        Package(firmware_name, version, arch, "Firmware files used by the kernel module", files=firmware(driver)),
        Package(
            common,
            version,
            arch,
            "Shared files used with the kernel module",
            (f"{firmware_name} {exactly}",),
            files={"/lib/modprobe.d/nvidia-graphics-drivers.conf": text("blacklist nouveau\nalias nouveau off\n")},
            scripts={"postinst": script(REBOOT)},
            **virtual("nvidia-kernel-common"),
        ),
        Package(
            f"libnvidia-cfg1{suffix}",
            version,
            arch,
            "NVIDIA binary OpenGL/GLX configuration library",
            files=cfg_files,
            links=cfg_links,
            **virtual("libnvidia-cfg1"),
        ),
        Package(
            compute,
            version,
            arch,
            "NVIDIA libcompute package",
            files=compute_files,
            links=compute_links,
            **virtual("libnvidia-compute"),
        ),
        _persistenced(daemon, version, driver, arch, (f"{compute} {exactly}",), **daemon_more),
        Package(
            utils,
            version,
            arch,
            "NVIDIA driver support binaries",
            (f"{compute} {exactly}",),
            files=smi(driver),
            **virtual("nvidia-utils"),
        ),
        Package(
            dkms,
            version,
            arch,
            "NVIDIA DKMS package (open kernel module)",
            ("dkms", f"{common} {exactly}"),
            provides=("nvidia-dkms-kernel",),
            conflicts=("nvidia-dkms-kernel",),
            replaces=("nvidia-dkms-kernel",),
            files=dkms_source("nvidia", driver, OPEN, [machine]),
            scripts=dkms_scripts("nvidia", driver),
        ),
        Package(
            driver_name,
            version,
            arch,
            "NVIDIA driver metapackage (open kernel module)",
            tuple(f"{part} {exactly}" for part in parts),
        ),
    ]
    if old:
        needs = (f"{driver_name} (>= {version})",)
        found.append(Package(f"nvidia-open{suffix}", version, arch, "NVIDIA open GPU driver metapackage", needs))
        found.append(
            Package(
                "nvidia-open",
                version,
                arch,
                "NVIDIA open GPU driver metapackage",
                (f"nvidia-open{suffix} (>= {version})",),
            )
        )
    else:
        found.append(
            Package("nvidia-open", version, arch, "NVIDIA open GPU driver metapackage", (f"{driver_name} {exactly}",))
        )
    return found


def debian(driver: str, arch: str) -> list[Package]:
    """Driver packages for Debian, which never had a branch in their names."""
    machine = MACHINE[arch]
    version = f"{driver}-1"
    exactly = f"(= {version})"
    folder = f"/usr/lib/{machine}-linux-gnu"
    cuda_files, cuda_links = libraries({k: v for k, v in COMPUTE.items() if "-ml" not in k}, driver, machine, folder)
    ml_files, ml_links = libraries({k: v for k, v in COMPUTE.items() if "-ml" in k}, driver, machine, folder)

    def one(name: str, summary: str, *depends: str, **more: object) -> Package:
        needs = tuple(f"{need} {exactly}" for need in depends)
        return Package(name, version, arch, summary, needs, **more)  # type: ignore[arg-type]

    return [
        one("firmware-nvidia-gsp", "NVIDIA GSP firmware", files=firmware(driver)),
        one("libcuda1", "NVIDIA CUDA Driver Library", files=cuda_files, links=cuda_links),
        one("libnvidia-ml1", "NVIDIA Management Library (NVML) runtime library", files=ml_files, links=ml_links),
        one("nvidia-smi", "NVIDIA System Management Interface", "libnvidia-ml1", files=smi(driver)),
        one(
            "nvidia-kernel-support",
            "NVIDIA binary kernel module support files",
            "firmware-nvidia-gsp",
            files={"/etc/modprobe.d/nvidia-blacklists-nouveau.conf": File(b"blacklist nouveau\n", conf=True)},
        ),
        _persistenced("nvidia-persistenced", version, driver, arch, (f"libnvidia-ml1 {exactly}",)),
        Package(
            "nvidia-kernel-open-dkms",
            version,
            arch,
            "NVIDIA open kernel module DKMS source",
            ("dkms", f"nvidia-kernel-support {exactly}"),
            files=dkms_source("nvidia", driver, OPEN, [machine]),
            scripts=dkms_scripts("nvidia", driver),
        ),
        one(
            "nvidia-driver-cuda", "NVIDIA CUDA integration components", "libcuda1", "nvidia-smi", "nvidia-persistenced"
        ),
        one("nvidia-driver", "NVIDIA metapackage", "libcuda1", "nvidia-kernel-support"),
        one(
            "nvidia-open",
            "NVIDIA open GPU driver metapackage",
            "nvidia-driver",
            "nvidia-driver-cuda",
            "nvidia-kernel-open-dkms",
        ),
    ]


def fabric(driver: str, arch: str) -> list[Package]:
    """NVSwitch and multi-node NVLink: of exactly the driver's version, or they refuse to start."""
    conf = {"/usr/share/nvidia/nvswitch/fabricmanager.cfg": text("LOG_LEVEL=4\nDAEMONIZE=1\n")}
    return [
        Package(
            "nvidia-fabricmanager",
            f"{driver}-1",
            arch,
            "Fabric Manager for NVSwitch based systems",
            files={**service("nvidia-fabricmanager", driver), **conf},
            scripts={"prerm": script(stop("nvidia-fabricmanager"))},
        ),
        Package(
            "nvidia-imex",
            f"{driver}-1",
            arch,
            "NVIDIA Internode Memory Exchange/Management Service",
            files={**service("nvidia-imex", driver), "/etc/nvidia-imex/config.cfg": text("LOG_LEVEL=4\n", conf=True)},
            scripts={"prerm": script(stop("nvidia-imex"))},
        ),
    ]


def pinning(what: str) -> Package:
    """nvidia-driver-pinning-<branch or version>: an apt preference, nothing else.

    The file's name is a guess, but for one thing: apt would pass over one with a version's dots in it.
    """
    entry = f"Package: {_PINNED}\nPin: version {what}{'.*' if '.' not in what else '-*'}\nPin-Priority: 1000\n"
    others = ("nvidia-driver-pinning",)
    return Package(
        f"nvidia-driver-pinning-{what}",
        f"{what}-1",
        "all",
        f"Pin the NVIDIA driver to {what}",
        provides=others,
        conflicts=others,
        replaces=others,
        files={"/etc/apt/preferences.d/nvidia-driver-pinning": text(entry)},
    )


def cuda_keyring(distro: str, arch: str, keyring: bytes) -> Package:
    """KEYRING: the key, the list (of the real host: a site with a mirror changes it), the pin (MEM: its text)."""
    place = f"{distro}/{NVIDIA_ARCH[arch]}"
    line = f"deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] https://developer.download.nvidia.com/compute/cuda/repos/{place}/ /\n"
    return Package(
        "cuda-keyring",
        "1.1-1",
        "all",
        "GPG keyring for the CUDA repository",
        files={
            "/usr/share/keyrings/cuda-archive-keyring.gpg": File(keyring),
            f"/etc/apt/sources.list.d/cuda-{place.replace('/', '-')}.list": text(line, conf=True),
            "/etc/apt/preferences.d/cuda-repository-pin-600": text(pin(), conf=True),
        },
    )


def pin() -> str:
    """cuda-<distribution>.pin, by which this repository's packages win over the distribution's."""
    return "Package: *\nPin: release l=NVIDIA CUDA\nPin-Priority: 600\n"


def toolkit(arch: str) -> list[Package]:
    """CUDA's compiler, in the packages of toolkit 13.0 that lead to it."""
    files, links, scripts = cuda_root(MACHINE[arch])
    return [
        Package(
            "cuda-nvcc-13-0",
            NVCC_VERSION,
            arch,
            "CUDA nvcc",
            ("cuda-toolkit-13-0-config-common",),
            files=files,
            links=links,
        ),
        Package(
            "cuda-toolkit-13-0-config-common",
            CUDA_VERSION,
            "all",
            "Common config package for CUDA Toolkit 13.0",
            ("cuda-toolkit-13-config-common",),
            scripts=scripts,
        ),
        Package(
            "cuda-toolkit-13-config-common",
            CUDA_VERSION,
            "all",
            "Common config package for CUDA Toolkit 13",
            ("cuda-toolkit-config-common",),
        ),
        Package(
            "cuda-toolkit-config-common",
            CUDA_VERSION,
            "all",
            "Common config package for CUDA Toolkit",
            files={
                "/etc/ld.so.conf.d/000_cuda.conf": text(
                    "/usr/local/cuda/targets/x86_64-linux/lib\n"
                    if arch == "amd64"
                    else "/usr/local/cuda/targets/sbsa-linux/lib\n",
                    conf=True,
                )
            },
        ),
        Package(
            "cuda-compiler-13-0",
            CUDA_VERSION,
            arch,
            "CUDA compiler",
            (f"cuda-nvcc-13-0 (>= {NVCC_VERSION.split('-')[0]})",),
        ),
        Package(
            "cuda-toolkit-13-0",
            CUDA_VERSION,
            arch,
            "CUDA Toolkit 13.0 meta-package",
            (f"cuda-compiler-13-0 (>= {CUDA_VERSION.split('-')[0]})",),
        ),
    ]


def cuda_root(machine: str) -> tuple[dict[str, File], dict[str, str], dict[str, str]]:
    """/usr/local/cuda-13.0: files, links, and the scripts which make /usr/local/cuda an alternative."""
    root, target = "/usr/local/cuda-13.0", "x86_64-linux" if machine == "x86_64" else "sbsa-linux"
    nvcc = own("nvcc", RELEASE="13.0", VERSION=NVCC_VERSION.split("-")[0], BUILT=NVCC_BUILT, BUILD=NVCC_BUILD)
    files = {f"{root}/bin/nvcc": nvcc, f"{root}/targets/{target}/lib/.keep": text("")}
    links = {f"{root}/lib64": f"targets/{target}/lib"}
    add = "update-alternatives --install /usr/local/{0} {0} /usr/local/cuda-13.0 130"
    scripts = {
        "postinst": script(*(add.format(name) for name in ("cuda", "cuda-13"))),
        "prerm": script(*(f"update-alternatives --remove {name} {root} || true" for name in ("cuda", "cuda-13"))),
    }
    return files, links, scripts

"""NVIDIA's repository for RHEL 9 and its module streams, and the few packages of RHEL that drivers ask for."""

from __future__ import annotations

from tests.targets.nvidia.cuda import cuda_root
from tests.targets.nvidia.kernelmodule import OPEN
from tests.targets.nvidia.package import Package, own, text
from tests.targets.nvidia.payload import CFG, COMPUTE, dkms_source, firmware, libraries, service, smi
from tests.targets.nvidia.specs import CUDA_VERSION, EL_KERNEL, EL_RELEASE, NVCC_VERSION, STREAMS

EPOCH = "3"  # YUM: every spec of the driver

#: YUM, dkms-open-nvidia.spec: each step may fail, and the package is installed all the same.
_POST = """\
dkms add -m nvidia-open -v {0} -q || :
dkms build -m nvidia-open -v {0} -q || :
dkms install -m nvidia-open -v {0} -q --force || :"""

_MODULAR = ("nvidia-open", "nvidia-driver", "nvidia-driver-libs", "nvidia-driver-cuda", "nvidia-driver-cuda-libs",
            "libnvidia-ml", "nvidia-kmod-common", "kmod-nvidia-open-dkms", "nvidia-persistenced", "nvidia-modprobe")  # fmt: skip


def driver(version: str, arch: str) -> list[Package]:
    """The driver's packages of one version (YUM: names and what requires what)."""
    evr = f"{EPOCH}:{version}-{EL_RELEASE}"
    same = f"= {EPOCH}:{version}"

    def one(name: str, summary: str, *depends: str, **more: object) -> Package:
        needs = tuple(need if " " in need else f"{need} {same}" for need in depends)
        return Package(name, evr, arch, summary, needs, **more)  # type: ignore[arg-type]

    def libs(names: dict[str, str]) -> dict[str, object]:
        files, links = libraries(names, version, arch, "/usr/lib64")
        return {"files": files, "links": links}

    cuda = {name: soname for name, soname in COMPUTE.items() if "-ml" not in name}
    return [
        one("libnvidia-ml", "NVIDIA Management Library (NVML)", **libs({"libnvidia-ml.so": "libnvidia-ml.so.1"})),
        one("nvidia-driver-libs", "Libraries for nvidia-driver", **libs(CFG)),
        one("nvidia-driver-cuda-libs", "Libraries for nvidia-driver-cuda", "libnvidia-ml", **libs(cuda)),
        one("nvidia-driver-cuda", "CUDA integration for nvidia-driver", "nvidia-driver-cuda-libs", "nvidia-kmod-common",
            "nvidia-persistenced", files=smi(version)),
        one("nvidia-driver", "NVIDIA's proprietary display driver for NVIDIA graphic cards", "nvidia-driver-libs",
            "nvidia-kmod-common"),
        one("nvidia-kmod-common", "Common file for NVIDIA's proprietary driver kernel modules", "nvidia-modprobe",
            f"nvidia-kmod {same}",
            files={**firmware(version), "/usr/lib/modprobe.d/nvidia.conf": text("blacklist nouveau\n")}),
        one("nvidia-modprobe", "NVIDIA kernel module loader"),
        one("nvidia-persistenced", "A daemon to maintain persistent software state in the NVIDIA driver", "libnvidia-ml",
            files={path.replace("/lib/systemd", "/usr/lib/systemd"): file
                   for path, file in service("nvidia-persistenced", version).items()}),
        Package("kmod-nvidia-open-dkms", evr, "noarch", "NVIDIA open kernel module source",
                ("dkms", f"nvidia-kmod-common {same}"), provides=(f"nvidia-kmod {same}",),
                files=dkms_source("nvidia-open", version, OPEN, ["x86_64", "aarch64"]),
                scripts={"postinst": _POST.format(version),
                         "prerm": f"dkms remove -m nvidia-open -v {version} -q --all || :"}),
        one("nvidia-open", "NVIDIA open GPU driver metapackage", "nvidia-driver", "nvidia-driver-cuda", "kmod-nvidia-open-dkms"),
        Package("nvidia-fabric-manager", f"{version}-1", arch, "Fabric Manager for NVSwitch based systems",
                provides=(f"nvidia-fabricmanager = {version}-1",),
                files={path.replace("/lib/systemd", "/usr/lib/systemd"): file
                       for path, file in service("nvidia-fabricmanager", version).items()}),
        Package("nvidia-imex", f"{version}-1", arch, "NVIDIA Internode Memory Exchange/Management Service",
                files={path.replace("/lib/systemd", "/usr/lib/systemd"): file
                       for path, file in service("nvidia-imex", version).items()}),
    ]  # fmt: skip


def toolkit(arch: str) -> list[Package]:
    """CUDA 13.0's compiler, and dkms, which this repository brings for RHEL (MEM)."""
    files, links, _ = cuda_root(arch)
    link = "ln -sfn /usr/local/cuda-13.0 /usr/local/cuda"
    return [
        Package("cuda-nvcc-13-0", NVCC_VERSION, arch, "CUDA nvcc", files=files, links=links, scripts={"postinst": link}),
        Package("cuda-compiler-13-0", CUDA_VERSION, arch, "CUDA compiler", (f"cuda-nvcc-13-0 >= {NVCC_VERSION.split('-')[0]}",)),
        Package("cuda-toolkit-13-0", CUDA_VERSION, arch, "CUDA Toolkit 13.0 meta-package", (f"cuda-compiler-13-0 >= {CUDA_VERSION.split('-')[0]}",)),
        Package("dkms", "3.0.13-1.el9", "noarch", "Dynamic Kernel Module Support Framework",
                files={"/usr/sbin/dkms": own("dkms", DEST="extra")}),
    ]  # fmt: skip


def base(arch: str, kernels: tuple[str, ...] = ()) -> list[Package]:
    """What of RHEL itself the stand-ins need: a shell, and the kernels' development packages.

    :param kernels: what the targets run; `dnf install kernel-devel-$(uname -r)` finds theirs as well
    """
    kernel, release = EL_KERNEL.split("-", 1)
    flavours = {"kernel": "", **({"kernel-64k": "+64k"} if arch == "aarch64" else {})}
    found = [Package("bash", "5.1.8-9.el9", arch, "The GNU Bourne Again shell", provides=("/bin/sh", "/usr/bin/sh"))]
    for name, suffix in flavours.items():
        uname = f"{EL_KERNEL}.{arch}{suffix}"
        source = f"/usr/src/kernels/{uname}"
        headers = {f"{source}/include/generated/autoconf.h": text("#define CONFIG_MODULES 1\n")}
        provides = (f"{name}-devel-uname-r = {uname}",)
        found.append(Package(f"{name}-devel", f"{kernel}-{release}", arch, "Development package for kernel modules",
                             provides=provides, files=headers, links={f"/lib/modules/{uname}/build": source}))  # fmt: skip
    for uname in kernels:  # a version of rpm's can't have such a name's dashes
        source = f"/usr/src/kernels/{uname}"
        headers = {f"{source}/include/generated/autoconf.h": text("#define CONFIG_MODULES 1\n")}
        found.append(Package("kernel-devel-rig", "1-1", arch, "Development package for the rig's kernel",
                             provides=(f"kernel-devel-{uname}",), files=headers,
                             links={f"/lib/modules/{uname}/build": source}))  # fmt: skip
    return found


def modules_yaml(arch: str) -> str:
    """Module metadata (modulemd-stream v2): each stream and the packages that belong to it."""
    parts = []
    for number, (stream, versions) in enumerate(STREAMS.items(), 1):
        names = [
            f"{name}-{EPOCH}:{version}-{EL_RELEASE}.{'noarch' if name == 'kmod-nvidia-open-dkms' else arch}"
            for version in versions
            for name in _MODULAR
        ]
        artifacts = "\n".join(f"    - {name}" for name in names)
        parts.append(
            "---\ndocument: modulemd\nversion: 2\ndata:\n  name: nvidia-driver\n"
            f'  stream: "{stream}"\n  version: 2026{number:02}01000000\n  context: c0ffee0{number}\n  arch: {arch}\n'
            f"  summary: Nvidia driver for {stream} branch\n  description: >-\n    Nvidia driver, {stream}.\n"
            "  license:\n    module: [MIT]\n  profiles:\n    default:\n      rpms: [nvidia-open]\n"
            f"  artifacts:\n    rpms:\n{artifacts}\n...\n"
        )
    return "".join(parts)

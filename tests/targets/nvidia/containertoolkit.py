"""The four packages of nvidia.github.io/libnvidia-container, as .deb and as .rpm."""

from __future__ import annotations

from tests.targets.nvidia.package import File, Package, own, program, text
from tests.targets.nvidia.payload import script

_REFRESH = (
    "[Unit]\nDescription=Refresh NVIDIA CDI specification file\n\n"
    "[Service]\nType=oneshot\nExecCondition=/usr/bin/test -d /rig/gpu\n"
    "ExecStart=/usr/bin/nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml\n\n"
    "[Install]\nWantedBy=multi-user.target\n"
)
_PATH = (
    "[Unit]\nDescription=Trigger CDI refresh on NVIDIA driver install / uninstall events\n\n"
    "[Path]\nPathChanged=/lib/modules/%v/modules.dep\n\n[Install]\nWantedBy=multi-user.target\n"
)

#: TOOLKIT: nvidia-container-toolkit-base.postinst of 1.18 and newer.
_CONFIGURE = """\
/usr/bin/nvidia-ctk --quiet config --config-file=/etc/nvidia-container-runtime/config.toml --in-place
if command -v systemctl >/dev/null 2>&1; then
    case $(systemctl is-system-running 2>/dev/null || true) in
        running | degraded)
            systemctl daemon-reload || echo "Warning: Failed to reload systemd daemon" >&2
            for unit in nvidia-cdi-refresh.path nvidia-cdi-refresh.service; do
                systemctl enable --now $unit || echo "Warning: Failed to enable $unit" >&2
            done ;;
    esac
fi"""
_LEAVE = """\
if [ "$1" = remove ] || [ "$1" = 0 ]; then
    if [ -d /run/systemd/system ]; then
        systemctl disable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service >/dev/null 2>&1 || true
    fi
fi"""


def packages(version: str, arch: str, *, rpm: bool = False) -> list[Package]:
    """The toolkit of one version ("1.19.1-1"), in the words of dpkg or rpm."""
    plain = version.split("-")[0]
    exactly, least = (f" = {version}", f" >= {version}") if rpm else (f" (= {version})", f" (>= {version})")
    below = "libnvidia-container-tools < 2.0.0" if rpm else "libnvidia-container-tools (<< 2.0.0)"
    tools = "libnvidia-container-tools"
    folder = "/usr/lib64" if rpm else f"/usr/lib/{'x86_64' if arch == 'amd64' else 'aarch64'}-linux-gnu"
    runtime = program(
        f'#!/bin/sh\ncase ${{1:-}} in --version) echo "NVIDIA Container Runtime version {plain}" ;; esac\nexec runc "$@"\n'
    )
    cli = program(f"#!/bin/sh\ncase ${{1:-}} in --version | -V) echo 'cli-version: {plain}'; echo 'lib-version: {plain}' ;; esac\n")  # fmt: skip
    hook = program("#!/bin/sh\nexit 0\n")
    return [
        Package("libnvidia-container1", version, arch, "NVIDIA container runtime library",
                files={f"{folder}/libnvidia-container.so.{plain}": text(f"stand-in {plain}\n")},
                links={f"{folder}/libnvidia-container.so.1": f"libnvidia-container.so.{plain}"}),
        Package(tools, version, arch, "NVIDIA container runtime library (command-line tools)",
                (f"libnvidia-container1{least}",), files={"/usr/bin/nvidia-container-cli": cli}),
        Package("nvidia-container-toolkit-base", version, arch, "NVIDIA Container Toolkit Base",
                files={
                    "/usr/bin/nvidia-ctk": own("nvidia-ctk", VERSION=plain),
                    "/usr/bin/nvidia-container-runtime": runtime,
                    "/usr/bin/nvidia-cdi-hook": hook,
                    "/lib/systemd/system/nvidia-cdi-refresh.service": text(_REFRESH),
                    "/lib/systemd/system/nvidia-cdi-refresh.path": text(_PATH),
                    "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env": File(b"", conf=True),
                },
                scripts={
                    "postinst": script(_CONFIGURE),
                    "prerm": script(_LEAVE),
                    "postrm": script('[ "$1" != purge ] || rm -rf /etc/nvidia-container-runtime'),
                }),
        Package("nvidia-container-toolkit", version, arch, "NVIDIA Container toolkit",
                (f"nvidia-container-toolkit-base{exactly}", f"{tools}{exactly}", below),
                files={"/usr/bin/nvidia-container-runtime-hook": hook},
                links={"/usr/bin/nvidia-container-toolkit": "nvidia-container-runtime-hook"}),
    ]  # fmt: skip

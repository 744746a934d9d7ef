"""Every setting: typed, documented, defaulted. What ops write in group_data/ and inventory/ ends here.

Settings are flat names, as pyinfra merges group data name by name: `group_data/power.py` can change one of them without
repeating the rest. An unknown name is an error that names the nearest one, since a misspelt setting that is
silently ignored is how a fleet ends up half upgraded.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from embedfleet.models import MODELS, Model
from embedfleet.problems import Problem, Refused

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Port = Annotated[int, Field(ge=1, le=65535)]
Fingerprint = Annotated[str, StringConstraints(pattern=r"^[0-9A-F]{40}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]

# Host data of pyinfra and its connectors, which is not ours to judge (pyinfra 3.10, pyinfra/connectors/*.py).
_PYINFRA_DATA = re.compile(r"^(_.*|(ssh|docker|podman|chroot|local|vagrant|terraform|fake|winrm)_.*)$")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Patch(_Strict):
    """A patch for vLLM's sources, applied with `git apply` before the build."""

    file: str = Field(description="path on the controller, relative to the repository")
    sha256: Sha256 = Field(description="of that file; another content is refused")


class KnownModel(_Strict):
    """How right vectors look of a model that embedfleet/models.py has no row for: measured once, on a host that is trusted."""

    dimension: int = Field(ge=1, description="of its vectors")
    max_len: int = Field(ge=1, description="tokens a text may have")
    near: float | None = Field(None, ge=-1, le=1, description="similarity of the probe's related texts")
    far: float | None = Field(None, ge=-1, le=1, description="similarity of its unrelated texts")
    tolerance: float = Field(0.02, gt=0, le=0.5, description="how far a similarity may be off")
    disk_gib: float = Field(5.0, gt=0, description="what it takes on disk")


class PrecompiledWheel(_Strict):
    """A wheel whose compiled kernels are reused by the source build (vLLM's VLLM_USE_PRECOMPILED)."""

    url: str
    sha256: Sha256


class Settings(_Strict):
    """The settings of one host. Paths on the controller are relative to the repository."""

    # --- what runs --------------------------------------------------------------------------------------------------
    platform: str = Field("auto", description="row of embedfleet/platforms.py; auto recognises what it can prove")
    device: Literal["platform", "cpu", "cuda"] = Field("platform", description="platform: its row's")
    model_id: str = Field("BAAI/bge-m3", pattern=r"^[^/\s]+/[^/\s]+$", description="ModelScope model id")
    model_revision: str = Field("master", min_length=1, description="tag, branch or commit; pin it in production")
    model_name: Name = Field("bge-m3", description="name that clients send as `model`")
    model_endpoint: str = Field(
        "https://modelscope.cn", pattern=r"^https?://", description="ModelScope server or mirror"
    )
    model_sha256: dict[str, Sha256] = Field({}, description="file -> sha256; each must be there and be right")
    model_exclude: list[str] = Field(
        ["onnx/*", "imgs/*", "*.jpg", "*.png", "*.md", "openvino/*"], description="file patterns that serving needs not"
    )
    model_known: KnownModel | None = Field(
        None, description="how right vectors of model_id look, where the project knows no such model"
    )
    model_retries: int = Field(
        5, ge=0, description="times that the ModelScope client tries a file again, waiting longer each time"
    )
    max_model_len: int | None = Field(None, ge=1, description="tokens a text may have; None: the model's own limit")
    max_num_batched_tokens: int | None = Field(None, ge=1, description="tokens in a batch; at least max_model_len")
    max_num_seqs: int = Field(128, ge=1, description="texts in a batch")
    dtype: Literal["platform", "float32", "float16", "bfloat16"] = Field("platform", description="platform: its row's")
    enforce_eager: bool | None = Field(None, description="no torch.compile, no CUDA graphs; None: the platform row's")
    gpu_memory_utilization: float | None = Field(None, gt=0, le=0.95, description="share of GPU memory; cuda only")
    api_server_count: int = Field(1, ge=1, description="API processes an instance (the bottleneck of short requests)")
    serve_args: dict[str, str | int | float | bool] = Field({}, description="more `vllm serve` flags, without --")
    serve_env: dict[str, str] = Field({}, description="more environment of the instances")
    # --- instances and gateway --------------------------------------------------------------------------------------
    instance_ports: list[Port] = Field([8000, 8001], min_length=1, description="one instance a port, on localhost")
    side_port: Port = Field(8900, description="where a new release is proven before it takes traffic")
    gateway_host: str = Field("0.0.0.0", description="address that the gateway listens on")
    gateway_port: Port = Field(8080, description="port of the gateway")
    drain_timeout: int = Field(60, ge=1, description="seconds to wait for running requests of a drained instance")
    start_timeout: int = Field(900, ge=10, description="seconds for an instance to give a right embedding")
    keep_releases: int = Field(3, ge=2, description="releases kept on disk, current and previous among them")
    # --- engine -----------------------------------------------------------------------------------------------------
    vllm_version: Annotated[str, StringConstraints(pattern=r"^\d+\.\d+\.\d+(\.post\d+)?$")] | None = Field(
        None, description="vLLM release; None: the platform row's"
    )
    install: Literal["platform", "source", "wheel"] = Field(
        "platform", description="how vLLM gets there; wheels are refused for now"
    )
    vllm_git_url: str = Field("https://github.com/vllm-project/vllm.git", description="repository or mirror")
    vllm_git_ref: str | None = Field(None, description="tag to build; None: v<vllm_version>")
    vllm_commit: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")] | None = Field(
        None, description="commit that the tag must be; a moved tag is refused"
    )
    vllm_patches: list[Patch] = Field([], description="applied in order")
    vllm_requirements: str | None = Field(None, description="lock file with hashes; None: the platform row's")
    vllm_cmake_args: list[str] | None = Field(None, description="CMAKE_ARGS, none with a space; None: the row's")
    vllm_build_env: dict[str, str] = Field({}, description="more environment of the build")
    vllm_precompiled: PrecompiledWheel | None = Field(None, description="take compiled kernels from this wheel")
    build_jobs: int | None = Field(None, ge=1, description="parallel compiler jobs; None: from memory and cores")
    build_timeout: int = Field(7200, ge=60, description="seconds a build may take")
    # --- python and conda -------------------------------------------------------------------------------------------
    conda_channel: str = Field("https://conda.anaconda.org/conda-forge", description="channel URL")
    conda_lock: str | None = Field(None, description="lock file; None: files/locks/conda-<subdir>.lock")
    python_index_url: str | None = Field(None, description="package index; None: pip's default")
    python_extra_index_urls: list[str] = Field([], description="asked as well, e.g. IBM's index on Power")
    tools_requirements: str = Field("files/locks/tools.lock", description="lock of the host's own tools")
    # --- driver, CUDA, containers -----------------------------------------------------------------------------------
    driver: Literal["platform", "install", "keep"] = Field(
        "platform", description="NVIDIA's driver: install it, keep what is there, or what the platform row says"
    )
    driver_branch: int | None = Field(None, ge=400, le=999, description="driver branch; None: the platform row's")
    driver_version: Annotated[str, StringConstraints(pattern=r"^(newest|\d+(\.\d+){1,2})$")] | None = Field(
        None,
        description="exact version, or newest; None: any of the branch that is there, so that a deploy never changes it by itself",
    )
    driver_source: Literal["platform", "distribution", "nvidia"] = Field(
        "platform",
        description="whose packages; platform: Canonical's signed modules on Ubuntu, else NVIDIA's repository",
    )
    kernel_modules: Literal["open", "proprietary"] = Field("open", description="flavour of NVIDIA's kernel modules")
    dgx_os_driver: Literal["keep", "replace"] = Field(
        "keep", description="DGX OS brings its own driver; replace treats it as any other system's"
    )
    imex_nodes: list[str] = Field(
        [], description="addresses of all nodes of this host's NVLink domain; GB200 and GB300 only"
    )
    reboot: Literal["never", "if_needed", "always"] = Field(
        "if_needed",
        description="if_needed: where the driver needs it; always: for whatever waits for one; one host at a time, drained",
    )
    reboot_timeout: int = Field(
        1500, ge=30, description="seconds for a host to come back, and as many again to serve; Grace's firmware is slow"
    )
    nvidia_repository_url: str = Field(
        "https://developer.download.nvidia.com/compute/cuda/repos",
        description="NVIDIA's driver and CUDA packages, or a mirror",
    )
    nvidia_key_url: str | None = Field(
        None, description="key of that repository; None: where NVIDIA keeps it beside the packages"
    )
    nvidia_key_fingerprints: list[Fingerprint] | None = Field(
        None, min_length=1, description="of the keys that may sign there; None: NVIDIA's own"
    )
    allow_http_repositories: bool = Field(
        False, description="take packages over plain http, e.g. from a mirror in the rack"
    )
    cuda_toolkit: Annotated[str, StringConstraints(pattern=r"^(none|cuda-toolkit-\d+-\d+)$")] | None = Field(
        None, description="package of the CUDA toolkit; none: it is there already; None: the platform row's"
    )
    container_toolkit: Literal["auto", "install", "none"] = Field(
        "auto",
        description="NVIDIA Container Toolkit; auto: where the platform has GPUs and a container runtime is there, DGX OS excepted",
    )
    container_toolkit_version: Annotated[str, StringConstraints(pattern=r"^\d+\.\d+\.\d+$")] = Field(
        "1.19.1", description="exact version; a newer one that is installed is kept"
    )
    container_runtimes: list[Literal["docker", "containerd", "crio", "podman"]] | None = Field(
        None, description="what it is configured for; None: what is there (containerd where it is not merely docker's)"
    )
    container_toolkit_url: str = Field(
        "https://nvidia.github.io/libnvidia-container",
        pattern=r"^https?://",
        description="its packages, or a mirror of them",
    )
    container_toolkit_key_url: str | None = Field(None, description="key of that repository; None: gpgkey beside it")
    container_toolkit_key_fingerprints: list[Fingerprint] | None = Field(
        None, min_length=1, description="of the keys that may sign there; None: NVIDIA's own"
    )
    container_toolkit_image: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w./:@-]*$")] | None = Field(
        None, description="image with a C library, in which nvidia-smi proves each change; None: no such proof"
    )
    # --- host -------------------------------------------------------------------------------------------------------
    site_ca_certificates: list[str] = Field([], description="PEM files of the site's own authorities")
    on_refused: Literal["skip", "stop"] = Field(
        "skip", description="a refused host: skip it and go on with the others, or stop the run before any change"
    )
    service_user: Name = Field("embedfleet", description="account of instances and gateway, without login")
    format: Literal["table", "json"] = Field("table", description="of reports: --data format=json for programs")

    @property
    def model(self) -> Model | None:
        """What is known of the model: by the settings, else by the project; None for nothing."""
        return Model(**self.model_known.model_dump()) if self.model_known else MODELS.get(self.model_id)

    @field_validator("gateway_host")
    @classmethod
    def _address(cls, value: str) -> str:
        ipaddress.ip_address(value)  # nginx takes names too, but one that does not resolve at boot keeps it down
        return value

    @field_validator("imex_nodes")
    @classmethod
    def _addresses(cls, value: list[str]) -> list[str]:
        return [str(ipaddress.ip_address(each)) for each in value]  # the daemon's file holds addresses alone

    @field_validator("service_user")
    @classmethod
    def _no_root(cls, value: str) -> str:
        if value in ("root", "embedfleet-build"):
            raise ValueError(f"{value} may not serve: name an account that can write nothing")
        return value

    @model_validator(mode="after")
    def _agree(self) -> Settings:
        if self.max_model_len and self.max_num_batched_tokens and self.max_num_batched_tokens < self.max_model_len:
            # vLLM refuses it at start for models that cannot chunk (vllm/config/scheduler.py; vllm#30126, #21179).
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is under max_model_len "
                f"({self.max_model_len}); raise the one or lower the other"
            )
        ports = [*self.instance_ports, self.side_port, self.gateway_port]
        twice = sorted({p for p in ports if ports.count(p) > 1})
        if twice:
            raise ValueError(
                f"port {', '.join(map(str, twice))} stands twice in instance_ports, side_port, gateway_port"
            )
        stems = [re.sub(r".*/|\.[^./]*$", "", name) for name in self.site_ca_certificates]
        if len(set(stems)) != len(stems):
            raise ValueError("site_ca_certificates: two files have the same name, which the host's folder cannot hold")
        for arg in self.vllm_cmake_args or []:
            if re.search(r"\s", arg):
                # setup.py splits CMAKE_ARGS at spaces and knows no quotes (vLLM setup.py, CMAKE_ARGS).
                raise ValueError(f"vllm_cmake_args: {arg!r} has a space, which vLLM's build cannot take")
        return self


def load(data: Mapping[str, Any], host: str) -> Settings:
    """Return the settings of `host` from its merged inventory and group data.

    :param data: pyinfra's `host.data.dict()`; pyinfra's own names (`_sudo`, `ssh_user`, ...) are left alone
    :raises Refused: with a problem for every unknown name and every wrong value, not only the first
    """
    ours = {name: value for name, value in data.items() if not _PYINFRA_DATA.match(name)}
    known = list(Settings.model_fields)
    problems = []
    for name in sorted(set(ours) - set(known)):
        near = difflib.get_close_matches(name, known, n=1)
        cure = f"did you mean {near[0]!r}?" if near else "see docs/settings.md for every setting"
        problems.append(Problem(host, name, "there is no such setting", cure))
    try:
        settings = Settings.model_validate({name: value for name, value in ours.items() if name in known})
    except ValidationError as error:
        for item in error.errors(include_url=False):
            where = ".".join(str(part) for part in item["loc"]) or "settings"
            given = "" if not item["loc"] else f", not {_shown(item['loc'][0], item['input'])}"
            what = item["msg"].removeprefix("Value error, ").removeprefix("Input ")
            problems.append(Problem(host, where, f"{what}{given}", _cure(str(item["loc"][0]) if item["loc"] else "")))
        raise Refused(problems) from None
    if problems:
        raise Refused(problems)
    return settings


def _shown(name: object, value: object) -> str:
    """Return a wrong value and its type; only the type where it may hold a secret: URLs, environments, long texts."""
    kind = type(value).__name__
    plain = isinstance(value, int | float) or (isinstance(value, str) and re.fullmatch(r"[\w .,+-]{0,40}", value))
    return f"{value!r} ({kind})" if plain and not str(name).endswith("_env") else f"a {kind} like this one"


def _cure(name: str) -> str:
    field = Settings.model_fields.get(name)
    about = f" ({field.description})" if field and field.description else ""
    return f"correct it in the host's inventory or group_data{about}"

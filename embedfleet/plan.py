"""The plan of one host: a pure function of settings, survey and local files. No host access, no I/O.

Every part is named by what goes into it, so "does it exist?" is the whole question of "is it up to date?".
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from embedfleet.containers import Toolkit, plan_toolkit, toolkit_files, toolkit_repository
from embedfleet.driver import Driver, cuda_home, cuda_toolkit, plan_driver
from embedfleet.driver import repository as nvidia_repository
from embedfleet.facts.state import ROOT
from embedfleet.facts.survey import Survey
from embedfleet.models import FAR, NEAR, QUERY, Model
from embedfleet.platforms import Platform
from embedfleet.recognise import capabilities
from embedfleet.render import GATEWAY_STALE, ManagedFile, certificate_path, driver_files, managed_files, units
from embedfleet.repositories import Repository
from embedfleet.settings import Settings
from embedfleet.sources import Sources
from embedfleet.stack import MIN_CAPABILITY
from embedfleet.systems import DEBIAN, System, system_of


@dataclass(frozen=True, repr=False)
class Part:
    """A part to be made on the host unless it is finished there.

    :param spec: what the host's embedfleetctl needs to make it; JSON
    :param limit: seconds it may take
    """

    kind: str
    id: str
    spec: dict[str, Any]
    limit: int

    def __repr__(self) -> str:
        """Short: pyinfra prints an operation's arguments, and specs hold whole lock files."""
        return f"{self.kind}/{self.id}"


@dataclass(frozen=True)
class Plan:
    """All that operations need to know of one host."""

    host: str
    settings: Settings
    platform: Platform
    release: str
    tools: Part
    conda: Part
    engine: Part
    model: Part
    release_part: Part
    files: tuple[ManagedFile, ...]
    system: System
    accounts: tuple[str, ...]
    directories: dict[str, tuple[str, str]]  # path -> (octal mode, owner)
    certificates: tuple[str, ...]  # their files under the system's anchors
    there: frozenset[str]  # finished parts on the host, as kind/id
    packages: tuple[str, ...]  # of the distribution
    repositories: tuple[Repository, ...]
    driver: Driver
    toolkit: str  # package of the CUDA toolkit; "" for none
    containers: Toolkit | None  # NVIDIA's container toolkit; None for not ours
    serving: bool  # whether a release runs there now
    machine: str

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts, in the order in which they are made."""
        return (self.tools, self.conda, self.engine, self.model, self.release_part)

    @property
    def gateway_files(self) -> tuple[ManagedFile, ...]:
        """The files that the gateway runs with."""
        return tuple(
            file for file in self.files if file.mark == GATEWAY_STALE or file.path == "/etc/embedfleet/host.json"
        )

    @property
    def activation_limit(self) -> int:
        """Seconds that a whole rollout may take, its way back included."""
        one = self.settings.start_timeout + self.settings.drain_timeout + 120
        return 2 * one * (len(self.settings.instance_ports) + 1)


BUILD_USER = "embedfleet-build"


def fingerprint(*inputs: Any) -> str:
    """Return ten hex digits that change when any of `inputs` (JSON values) does."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:10]


def make_plan(host: str, settings: Settings, platform: Platform, survey: Survey, sources: Sources) -> Plan:
    """Return the plan of a host that `problems_of` has nothing fatal against."""
    system = system_of(survey) or DEBIAN  # another is refused, and its other problems are told with it
    model = settings.model or Model(dimension=0, max_len=0, disk_gib=5)
    extra = settings.python_extra_index_urls or ([] if settings.python_index_url else list(platform.indexes))
    indexes = {"index_url": settings.python_index_url, "extra_index_urls": extra}

    tools_id = fingerprint(sources.locks["tools"], survey.os_id, survey.os_version, platform.machine)
    tools = Part("tools", tools_id, {**indexes, "python": system.python, "content_lock": sources.locks["tools"]}, 1800)

    conda_id = fingerprint(sources.locks["conda"], platform.conda_subdir)
    conda_spec = {"channel": settings.conda_channel, "subdir": platform.conda_subdir, "tools": tools_id}
    conda = Part("conda", conda_id, {**conda_spec, "content_lock": sources.locks["conda"]}, 1800)

    engine = _engine(settings, platform, system, survey, sources, conda_id, tools_id, indexes)
    short = settings.model_id.rpartition("/")[2]
    model_id = f"{short}-{fingerprint(settings.model_id, settings.model_revision, settings.model_sha256, settings.model_exclude)}"
    model_spec = {
        "model_id": settings.model_id,
        "revision": settings.model_revision,
        "endpoint": settings.model_endpoint,
        "exclude": settings.model_exclude,
        "sha256": settings.model_sha256,
        "retries": settings.model_retries,
        "known_sha256": {} if settings.model_sha256 else model.sha256,
        "tools": tools_id,
        "limit": 14400,
    }
    serve = {"args": serve_args(settings, platform, model), "env": serve_env(settings, platform, survey)}
    probe = {
        "model": settings.model_name,
        "dimension": model.dimension,
        "texts": [QUERY, NEAR, FAR],
        "near": model.near,
        "far": model.far,
        "tolerance": model.tolerance,
        "start_timeout": settings.start_timeout,
    }
    driver = plan_driver(settings, platform, system, survey)
    toolkit = cuda_toolkit(settings, platform)
    containers = plan_toolkit(settings, platform, survey)
    repositories = _repositories(settings, system, survey, driver, toolkit, containers)
    version = platform.version(settings.vllm_version)
    unit_files = units(settings, platform, sources)
    # The unit's text is part of the release: a changed unit takes the same proven way to the instances as a new engine.
    release = f"{version}-{settings.model_name}-{fingerprint(engine.id, model_id, serve, probe, unit_files)}"
    release_spec = {"engines": engine.id, "models": model_id, "serve": serve, "probe": probe}
    return Plan(
        host=host,
        settings=settings,
        platform=platform,
        release=release,
        tools=tools,
        conda=conda,
        engine=engine,
        model=Part("models", model_id, model_spec, 14400 + 600),
        release_part=Part("releases", release, release_spec, 600),
        files=(
            *managed_files(settings, system, sources, unit_files),
            *driver_files(driver, system),
            *toolkit_files(containers),
        ),
        system=system,
        accounts=(settings.service_user, BUILD_USER),
        directories=_directories(),
        certificates=tuple(certificate_path(system, name) for name in sources.certificates),
        there=survey.parts,
        packages=(*system.packages, *([system.gpg] if repositories and system.gpg else [])),
        repositories=repositories,
        driver=driver,
        toolkit=toolkit,
        containers=containers,
        serving=bool(survey.current),
        machine=survey.machine,
    )


def _repositories(
    settings: Settings, system: System, survey: Survey, driver: Driver, toolkit: str, containers: Toolkit | None
) -> tuple[Repository, ...]:
    """What the host's packages of ours come from beside the distribution's own sources."""
    needed = toolkit or (driver.action == "install" and driver.source == "nvidia")
    found = [nvidia_repository(settings, system, survey)] if needed else []
    if containers:
        found.append(toolkit_repository(settings, system, survey))
    return tuple(repository for repository in found if repository)


def _engine(
    settings: Settings,
    platform: Platform,
    system: System,
    survey: Survey,
    sources: Sources,
    conda: str,
    tools: str,
    indexes: dict[str, Any],
) -> Part:
    version = platform.version(settings.vllm_version)
    cmake = list(platform.cmake_args if settings.vllm_cmake_args is None else settings.vllm_cmake_args)
    env = {"VLLM_TARGET_DEVICE": platform.device, **platform.build_env}
    if platform.toolkit:
        env["CUDA_HOME"] = cuda_home(cuda_toolkit(settings, platform) or platform.toolkit)
    cards = [value for value in capabilities(survey) if float(value) >= MIN_CAPABILITY]
    arch_list = platform.arch_list or " ".join(cards)
    if platform.device == "cuda" and arch_list:
        env["TORCH_CUDA_ARCH_LIST"] = arch_list
    if cmake:
        env["CMAKE_ARGS"] = " ".join(cmake)
    env |= settings.vllm_build_env
    patches = [{"name": name, "sha256": digest} for name, digest, _ in sources.patches]
    built_of = {
        "version": version,
        "git_ref": settings.vllm_git_ref or f"v{version}",
        "commit": settings.vllm_commit,
        "patches": patches,
        "build_env": env,
        "precompiled": settings.vllm_precompiled.model_dump() if settings.vllm_precompiled else None,
        "conda": conda,
    }
    precompiled = {"precompiled": settings.vllm_precompiled.sha256} if settings.vllm_precompiled else {}
    # Where things come from (URLs) and how many jobs build them change nothing of the result, so not the id either.
    digest = fingerprint(built_of | precompiled, sources.locks["engine"], platform.machine)
    spec = {
        **built_of,
        **indexes,
        "git_url": settings.vllm_git_url,
        "patches": [{"name": name, "sha256": sha, "text": text} for name, sha, text in sources.patches],
        "build_env": {**env, "MAX_JOBS": str(jobs(settings, platform, survey))},
        "tools": tools,
        "compilers": system.compilers,
        "limit": settings.build_timeout,
        "content_lock": sources.locks["engine"],
    }
    return Part("engines", f"vllm-{version}-{platform.device}-{digest}", spec, settings.build_timeout + 3600)


def jobs(settings: Settings, platform: Platform, survey: Survey) -> int:
    """Return MAX_JOBS: as many as cores and memory allow; vLLM's own default takes every core and runs out of memory."""
    if settings.build_jobs:
        return settings.build_jobs
    cores = survey.cpu.count or 1
    memory = (survey.available_mib or 0) / 1024
    return max(1, min(cores, int(memory // platform.build_gib)))


def serve_args(settings: Settings, platform: Platform, model: Model) -> list[str]:
    """Return the flags of `vllm serve`, each valid for the pinned vLLM (0.32, 0.33); no --task, no --device."""
    dtype = platform.dtype if settings.dtype == "platform" else settings.dtype
    max_len = settings.max_model_len or model.max_len
    args = ["--served-model-name", settings.model_name, settings.model_id, "--runner", "pooling", "--dtype", dtype]
    if max_len:
        batched = settings.max_num_batched_tokens or max(max_len, 16384 if platform.device == "cuda" else 2048)
        args += ["--max-model-len", str(max_len), "--max-num-batched-tokens", str(batched)]
    args += ["--max-num-seqs", str(settings.max_num_seqs)]
    utilization = settings.gpu_memory_utilization or platform.gpu_memory_utilization
    if platform.device == "cuda" and utilization:
        args += ["--gpu-memory-utilization", str(utilization)]
    if platform.device == "cpu":
        # An encoder has no KV cache. Without this flag vLLM wants 92 % of the memory of NUMA node 0 free and dies at
        # start where it is not (seen with 0.32 on 2 cores).
        args += ["--kv-cache-memory-bytes", "64M"]
    if platform.enforce_eager if settings.enforce_eager is None else settings.enforce_eager:
        args.append("--enforce-eager")
    if settings.api_server_count > 1:
        args += ["--api-server-count", str(settings.api_server_count)]
    args += ["--disable-access-log-for-endpoints", "/health,/metrics"]
    for name, value in sorted(settings.serve_args.items(), key=lambda pair: pair[0].removeprefix("--")):
        name = name.removeprefix("--")
        if value is True:
            args.append(f"--{name}")
        elif value is not False:
            args += [f"--{name}", str(value)]
    return args


def threads(settings: Settings, survey: Survey) -> int:
    """Return the OpenMP threads of an instance: the host's, divided by the instances.

    Of Power's eight SMT threads a core four count, as vLLM's own binding has it (vllm/platforms/cpu.py).
    """
    count, smt = survey.cpu.count or 1, survey.cpu.threads or 1
    if survey.machine == "ppc64le" and smt > 4:
        count = count * 4 // smt
    return max(1, count // len(settings.instance_ports))


def serve_env(settings: Settings, platform: Platform, survey: Survey) -> dict[str, str]:
    """Return the environment of the instances: offline, no usage statistics, threads from the host's cores."""
    env = {
        # Without these torch's process group listens on the host's address, port after port (seen with 0.32).
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    if platform.device == "cpu":
        env |= {
            "VLLM_TARGET_DEVICE": "cpu",
            "OMP_NUM_THREADS": str(threads(settings, survey)),
        }
    return {**env, **platform.serve_env, **settings.serve_env}


def _directories() -> dict[str, tuple[str, str]]:
    root, build = "root", BUILD_USER
    owned = {f"{ROOT}/{name}": ("755", root) for name in ("tools", "conda", "engines", "models", "releases", "work")}
    return {
        ROOT: ("755", root),
        **owned,
        f"{ROOT}/work/home": ("755", build),
        "/var/lib/embedfleet": ("755", root),
        "/var/lib/embedfleet/specs": ("700", root),
        "/var/lib/embedfleet/results": ("755", root),
        "/var/lib/embedfleet/gateway": ("755", root),
        "/var/log/embedfleet": ("755", root),
    }

"""The files on the controller that a plan is made of, read once: locks, patches, certificates, templates, programs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from embedfleet.platforms import Platform
from embedfleet.problems import Problem, Refused
from embedfleet.settings import Settings


@dataclass(frozen=True)
class Sources:
    """Texts by their role.

    :param locks: "tools", "conda", "engine" -> text of the lock file
    :param patches: (name, sha256, text), in the order of the settings
    :param certificates: name -> PEM text
    :param templates: name -> Jinja2 text
    :param programs: path below /opt/embedfleet/lib -> text
    """

    locks: dict[str, str]
    patches: tuple[tuple[str, str, str], ...] = ()
    certificates: dict[str, str] = field(default_factory=dict)
    templates: dict[str, str] = field(default_factory=dict)
    programs: dict[str, str] = field(default_factory=dict)


def read(host: str, settings: Settings, platform: Platform, root: Path) -> Sources:
    """Read the files that `settings` name, relative to `root`.

    :raises Refused: with every file that is missing or is not what its checksum says
    """
    problems: list[Problem] = []

    def text(setting: str, name: str, cure: str) -> str:
        try:
            return (root / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "is not UTF-8 text"
            problems.append(Problem(host, setting, f"{name}: {why}", cure))
            return ""

    conda = settings.conda_lock or f"files/locks/conda-{platform.conda_subdir}.lock"
    engine = settings.vllm_requirements or platform.requirements.format(version=platform.version(settings.vllm_version))
    locks = {
        "tools": text("tools_requirements", settings.tools_requirements, "name a lock file with hashes"),
        "conda": text(
            "conda_lock", conda, f"make it from your channel: make conda-lock SUBDIR={platform.conda_subdir}"
        ),
        "engine": text("vllm_requirements", engine, "make it: docs/upgrade.md, 'Another vLLM version'"),
    }
    patches = []
    for patch in settings.vllm_patches:
        content = text("vllm_patches", patch.file, "correct the file's name")
        have = hashlib.sha256(content.encode()).hexdigest()
        if content and have != patch.sha256:
            reason = f"{patch.file} has sha256 {have}, expected {patch.sha256}"
            problems.append(Problem(host, "vllm_patches", reason, "review the patch, then correct its sha256"))
        patches.append((Path(patch.file).name, patch.sha256, content))
    certificates = {}
    for name in settings.site_ca_certificates:
        content = text("site_ca_certificates", name, "correct the file's name")
        if content and "-----BEGIN CERTIFICATE-----" not in content:
            problems.append(Problem(host, "site_ca_certificates", f"{name} is no PEM certificate", "give PEM, not DER"))
        certificates[Path(name).stem] = content
    if problems:
        raise Refused(problems)
    templates = {path.name: path.read_text(encoding="utf-8") for path in sorted((root / "templates").glob("*.j2"))}
    programs = {
        str(path.relative_to(root / "files")): path.read_text(encoding="utf-8")
        for path in sorted((root / "files" / "embedfleetctl").rglob("*.py"))
    }
    return Sources(locks, tuple(patches), certificates, templates, programs)

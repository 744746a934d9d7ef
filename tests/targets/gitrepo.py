"""A git repository like upstream's vLLM, made from the official sdist: two tags, always the same commit ids."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tarfile
from pathlib import Path

from tests.targets.host import RigError, cache_dir, lock, run, say
from tests.targets.wheelhouse import pip_words

VERSION = "0.32.0"

#: Written by the packaging tools into an sdist; upstream's repository has none of them.
GENERATED = ("PKG-INFO", "setup.cfg", "vllm.egg-info", "vllm/_version.py")

#: A file whose comment the second tag changes: enough for an upgrade, nothing to rebuild.
TOUCHED = "vllm/version.py"

RECIPE = 1


def ensure_sdist(version: str = VERSION) -> Path:
    """The official sdist in the cache, downloaded with pip when it isn't there."""
    folder = cache_dir() / "downloads"
    sdist = folder / f"vllm-{version}.tar.gz"
    if sdist.exists():
        return sdist
    with lock("sdist"):
        if sdist.exists():
            return sdist
        folder.mkdir(exist_ok=True)
        say(
            f"downloading vLLM {version}'s sdist with pip (about a minute: pip runs the build backend for the metadata)"
        )
        words = [*pip_words(), "download", "--quiet", "--no-deps", "--no-binary", "vllm", f"vllm=={version}"]
        # "empty" and no suffix: otherwise the backend looks for a device and pip refuses a version like 0.32.0+cpu
        env = {"VLLM_TARGET_DEVICE": "empty", "VLLM_SKIP_VERSION_SUFFIX": "1"}
        incoming = folder / f".sdist-{os.getpid()}"
        try:
            run(
                [*words, "-d", incoming],
                env=env,
                cure=f"check that pip reaches its index, or put vllm-{version}.tar.gz into {folder}",
            )
            (incoming / sdist.name).rename(sdist)
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
    return sdist


def ensure_vllm_repo(sdist: Path, version: str = VERSION) -> Path:
    """A bare repository `vllm.git` with the tags v<version> and v<version>.post1; shallow and by-commit clones work."""
    stat = sdist.stat()
    key = hashlib.sha256(f"{RECIPE} {sdist.name} {stat.st_size} {version}".encode()).hexdigest()[:12]
    done = cache_dir() / "git" / f"vllm-{version}-{key}"
    bare = done / "vllm.git"
    if bare.is_dir():
        return bare
    with lock("git"):
        if bare.is_dir():
            return bare
        say(f"making a git repository of vLLM {version} from its sdist")
        work = done.with_name(f".{done.name}.{os.getpid()}")
        shutil.rmtree(work, ignore_errors=True)
        try:
            _build(sdist, version, work)
            shutil.rmtree(work / "tree")
            work.rename(done)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return bare


def commit_of(bare: Path, tag: str) -> str:
    """The commit that a tag names."""
    return _git(bare, "rev-parse", f"refs/tags/{tag}^{{commit}}").strip()


def _extract(sdist: Path, work: Path) -> None:
    """Unpack with plain modes and no owners: the tree, and so the commit id, is the same on every machine.

    By hand, because Debian 12's Python 3.11.2 has no extraction filters yet, and newer ones warn without one.
    """
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = lambda member, _path: member
        for member in archive:
            if (
                not (member.isfile() or member.isdir())
                or member.name.startswith("/")
                or ".." in Path(member.name).parts
            ):
                continue
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
            archive.extract(member, work)


def _build(sdist: Path, version: str, work: Path) -> None:
    work.mkdir(parents=True)
    _extract(sdist, work)
    (work / f"vllm-{version}").rename(tree := work / "tree")
    for name in GENERATED:
        path = tree / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    bare = work / "vllm.git"
    init_bare(bare)
    commit_tree(bare, tree, f"v{version}", 1)
    touched = tree / TOUCHED
    text = touched.read_text()
    new = re.sub(r"(?m)\A(# SPDX-License-Identifier: .*)$", r"\1 (embedfleet test rig: post1)", text, count=1)
    if new == text:
        raise RigError(
            f"{TOUCHED} doesn't start with the comment that the second tag changes", "choose another file in gitrepo.py"
        )
    touched.write_text(new)
    commit_tree(bare, tree, f"v{version}.post1", 2)
    _git(bare, "gc", "--quiet", "--prune=now")


#: Nothing of this machine's git configuration may change what is committed.
_ENV = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}


def init_bare(bare: Path) -> None:
    """An empty bare repository that serves shallow and by-commit clones."""
    run(["git", "init", "--quiet", "--bare", "--initial-branch=main", bare], env=_ENV, cure="apt-get install git")
    for key in ("allowReachableSHA1InWant", "allowFilter"):
        _git(bare, "config", f"uploadpack.{key}", "true")
    _git(bare, "config", "gc.auto", "0")


def commit_tree(bare: Path, tree: Path, tag: str, day: int) -> None:
    """Commit all of a tree, tag it; the same commit id on every machine."""
    when = f"2026-01-0{day}T00:00:00+0000"
    identity = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in _WHO.items()}
    env = {**identity, "GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when}
    # --force: the sdist's own .gitignore would leave out files that upstream tracks
    _git(bare, f"--work-tree={tree}", "add", "--all", "--force", env=env, cwd=tree)
    _git(bare, f"--work-tree={tree}", "commit", "--quiet", "--no-verify", "-m", f"vLLM {tag[1:]}", env=env, cwd=tree)
    _git(bare, "tag", tag)
    (bare / "index").unlink()  # left over by committing from a work tree


_WHO = {"NAME": "embedfleet test rig", "EMAIL": "rig@localhost"}


def _git(bare: Path, *args: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    # a bare repository has no work tree of its own; safe.directory: the cache may belong to another user than root
    words = [
        "git",
        f"--git-dir={bare}",
        "-c",
        "safe.directory=*",
        "-c",
        "core.bare=false",
        "-c",
        "core.autocrlf=false",
        *args,
    ]
    return run(words, env={**_ENV, **(env or {})}, cwd=cwd, cure="git 2.28 or newer is needed (apt-get install git)")

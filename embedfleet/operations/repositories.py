"""Package repositories with pinned keys, each in one file of ours."""

from __future__ import annotations

import hashlib
import io
import posixpath
import re
from collections.abc import Generator, Sequence

from pyinfra import host
from pyinfra.api import FileUploadCommand, QuoteString, StringCommand, operation
from pyinfra.api.command import PyinfraCommand

from embedfleet.facts.repositories import KEYS, REPLACED, UNDO, WRITTEN, PackageSources
from embedfleet.operations.shell import Told, locked
from embedfleet.operations.system import updated
from embedfleet.repositories import OFF, Repository, switched_off, without_password
from embedfleet.systems import System

# No operation of pyinfra's fits: apt.key takes whatever the server has, and does not notice another key later. Only keys whose
# fingerprint is pinned are exported into the file that signatures are checked with; whatever else the server sent is dropped.
# No agent: Debian's gpg comes without one, and then ends an import that went well with 2 (seen on Debian 12).
_KEY = r"""
set -e; t=$(mktemp -d); trap 'rm -rf "$t"' EXIT
curl -fsSL --retry 3 --retry-all-errors --connect-timeout 20 --max-time 120 -o "$t/key" "$url"
export GNUPGHOME=$t
gpg --batch --no-autostart --quiet --import "$t/key" 2>"$t/said" || { cat "$t/said"; exit 1; }
have=$(gpg --batch --no-autostart --with-colons --list-keys 2>/dev/null | awk -F: '$1=="pub"{p=1} p&&$1=="fpr"{print $10; p=0}')
for want in $wanted; do
  case " "$(echo $have)" " in *" $want "*) ;; *) echo "the key there is $(echo $have), not $want"; exit 1 ;; esac
done
gpg --batch --no-autostart --armor --export $wanted >"$t/out"
command -v rpm >/dev/null && for want in $wanted; do
  id=$(echo "$want" | tail -c 9 | tr A-F a-f)
  rpm -q gpg-pubkey 2>/dev/null | grep -q "^gpg-pubkey-$id-" || { mkdir -p "${keys%/*}"; echo "$id" >>"$keys"; }
done
install -D -m 644 "$t/out" "$key.new" && mv -f "$key.new" "$key"
"""


@operation()
def configured(
    repositories: Sequence[Repository], system: System, machine: str
) -> Generator[PyinfraCommand, None, None]:
    """
    Ensure repositories: key checked against its pinned fingerprint, one file each, others' entries for the same place off.

    + repositories: what the host is to have; others of ours go
    + system: the host's, which says how they are written
    + machine: `uname -m`
    """
    found = host.get_fact(PackageSources)
    wanted = {repository.path(system): repository for repository in repositories}
    theirs = {path: text for path, text in found.files.items() if not _ours(path)}
    gone = [path for path in found.files if _ours(path) and path not in wanted]
    gone += sorted(found.keys - {repository.key(system) for repository in repositories})
    edits = switched_off(theirs, tuple(repositories), machine)
    changed = [r for path, r in wanted.items() if found.files.get(path) != r.text(system)]
    keyless = [r for r in repositories if r.key(system) not in found.keys]
    # A run that was cut off after the file was written left no lists.
    unread = [r for r in repositories if system.manager == "apt" and not _listed(r, found.lists)]
    if not (gone or edits or changed or keyless or unread):
        host.noop(f"{len(repositories)} repositories are right")
        return
    for repository in keyless:
        host.log(f"take the key of {repository.title}")
        yield Told(
            StringCommand(
                "url=", QuoteString(repository.key_url), "; key=", QuoteString(repository.key(system)),
                f"; keys={KEYS}; wanted='{' '.join(repository.fingerprints)}'\n{_KEY}", _separator="",
            ),
            setting=f"repository {repository.name}",
            cure="see that the host reaches the key's address; where the vendor has announced a new key, pin its fingerprint in the settings",
        )  # fmt: skip
    for path, text in edits.items():
        host.log(f"switch off an entry for the same place in {path} (kept in {REPLACED})")
        yield from _edit(path, text)
    for repository in changed:
        host.log(f"write {repository.path(system)}")
        yield from _write(repository.path(system), repository.text(system))
    if gone:
        yield StringCommand("rm -f --", *(QuoteString(path) for path in gone))
    for repository in [r for r in repositories if r in changed or r in keyless or r in unread]:
        yield _read(repository, system)


def _ours(path: str) -> bool:
    return posixpath.basename(path).startswith("embedfleet-")


def _listed(repository: Repository, lists: frozenset[str]) -> bool:
    return bool({f"{apt_name(repository.uri)}_{kind}" for kind in ("InRelease", "Release")} & lists)


def apt_name(uri: str) -> str:
    """Return how apt names the lists of a flat repository: the quoting is its own (apt-pkg/contrib/strutl.cc, URItoFileName)."""
    path = re.sub(r"^[a-z]+://(?:[^/@]*@)?", "", uri).rstrip("/")
    quoted = "".join(f"%{ord(each):02x}" if each in '\\|{}[]<>"^~_=!@#$%&*' else each for each in path)
    return quoted.replace("/", "_")


def _temp(path: str, text: str) -> str:
    return str(host.get_temp_filename(f"embedfleet-{hashlib.sha256((path + text).encode()).hexdigest()}"))


def _write(path: str, text: str) -> Generator[PyinfraCommand, None, None]:
    temp = _temp(path, text)
    yield FileUploadCommand(io.StringIO(text), temp)
    target = QuoteString(path)
    yield StringCommand(
        "install -D -m 644", QuoteString(temp), QuoteString(path + ".new"), "&& mv -f", QuoteString(path + ".new"), target,
        "&& rm -f", QuoteString(temp),
    )  # fmt: skip


def _edit(path: str, text: str) -> Generator[PyinfraCommand, None, None]:
    """Change somebody else's file: its mode and owner stay, and the first original is kept for uninstall.py."""
    temp = _temp(path, text)
    yield FileUploadCommand(io.StringIO(text), temp)
    # One that somebody changed since our last edit has a new original: what it is now, with our words taken back.
    yield StringCommand(
        StringCommand(
            "set -e; p=", QuoteString(path), "; t=", QuoteString(temp), "; off=", QuoteString(OFF), _separator=""
        ),
        f'; o={REPLACED}$p; w={WRITTEN}$p; mkdir -p "${{o%/*}}" "${{w%/*}}"; if ! [ -e "$o" ]; then cp -p "$p" "$o";'
        f' elif ! cmp -s "$p" "$w"; then cp -p "$p" "$o"; {UNDO.replace("$f", "$o")}; fi; cp "$t" "$p"; cp "$t" "$w"; rm -f "$t"',
    )


def _read(repository: Repository, system: System) -> Told:
    """Fetch the lists of one repository: `apt-get update` for all ends with 0 when a server answers 503 (seen)."""
    cure = f"see that the host reaches {without_password(repository.uri)}, and that its signature is of the pinned key; then deploy again"
    setting = f"repository {repository.name}"
    if system.manager == "apt":
        options = (
            "--error-on=any -o APT::Get::List-Cleanup=0 -o Dir::Etc::sourceparts=-"
            f" -o Dir::Etc::sourcelist={repository.path(system)}"
        )
        return updated(options, setting=setting, cure=cure)
    command = f"dnf -q -y --disablerepo='*' --enablerepo='embedfleet-{repository.name}' makecache"
    return locked(command, setting=setting, cure=cure)

"""What the scripts of the larger facts share: how they print in sections, and how they ask a program that may hang."""

from __future__ import annotations

# s: begins a section. f: prints the first line of a file, without a fork. limited: runs a program for at most 30 seconds and
# kills it with its children; a GPU that died makes nvidia-smi hang, and `timeout` is not on every minimal image.
# secureboot: the firmware's answer, 1, 0 or none. R: a folder that stands for /, in tests.
PRELUDE = r"""
R=''
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin:/usr/local/cuda/bin"
s() { printf '\n@@%s\n' "$1"; }
f() { [ -r "$1" ] && { read -r l <"$1" || [ -n "$l" ]; } 2>/dev/null && echo "$l"; }
limited() {
  command -v "$1" >/dev/null || return
  o=$(mktemp 2>/dev/null) || { echo "not asked: no room in /tmp"; return; }
  w=$(command -v setsid)
  $w sh -c '{ "$@"; echo "@rc=$?"; } 2>&1 </dev/null | head -c 65536 >"$0"' "$o" "$@" & p=$!; n=0
  while kill -0 $p 2>/dev/null && [ $n -lt 300 ]; do sleep 0.1; n=$((n+1)); done
  if kill -0 $p 2>/dev/null; then
    echo @hung; kill -9 -$p 2>/dev/null || kill -9 $(cat /proc/$p/task/$p/children 2>/dev/null) $p
  else cat "$o"; fi
  rm -f "$o"
}
secureboot() {
  if [ -d "$R/sys/firmware/efi" ]; then od -An -tu1 -j4 -N1 "$R"/sys/firmware/efi/efivars/SecureBoot-* 2>/dev/null
  elif [ -e "$R/sys/firmware/devicetree/base/ibm,secureboot/os-secureboot-enforcing" ]; then echo 1; else echo none; fi
}
""".lstrip("\n")


def sections(output: list[str]) -> dict[str, list[str]]:
    """Return what a script printed, by section, without empty lines; what comes before the first section is dropped."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in output:
        if line.startswith("@@"):
            current = found.setdefault(line[2:].strip(), [])
        elif line.strip():
            current.append(line)
    return found

"""The script behind the driver's evidence: reads, changes nothing, and leaves a section empty where a program is missing.

It tells what is there; what follows from it (which kernel boots next, whether a key is trusted) is decided in Python.
"""

from __future__ import annotations

import shlex

from embedfleet.facts.script import PRELUDE

# One round trip, in a second where a driver is installed (modinfo unpacks the module of every kernel, dkms is a shell script),
# in a tenth where none is. Every section is cut to a length that no healthy host reaches.
_SCRIPT = (
    PRELUDE
    + r"""
has() { command -v "$1" >/dev/null; }
there() { for i; do [ -e "$i" ] && echo "${i#"$R"}"; done; }
s boot; echo "$(f "$R/proc/sys/kernel/random/boot_id") $(sed 's/.*) //' "$R/proc/1/stat" 2>/dev/null | cut -d' ' -f20)"
s kernel; k0=$(uname -r); echo "$k0"; s cmdline; f "$R/proc/cmdline" | head -c 4096

s images; for i in "$R"/boot/vmlinu[xz]-*; do [ -e "$i" ] && echo "${i##*/}"; done | head -n 40
s initrds; for i in "$R"/boot/initr*; do [ -s "$i" ] && echo "${i##*/}"; done | head -n 80
s grubby; has grubby && grubby --default-kernel 2>/dev/null | head -n 1
s link; { readlink "$R/vmlinuz" || readlink "$R/boot/vmlinuz"; } 2>/dev/null
s grub; for g in "$R/boot/grub" "$R/boot/grub2"; do
  [ -r "$g/grubenv" ] && grep -aE '^(saved_entry|next_entry)=.' "$g/grubenv" | head -c 1024
  [ -r "$g/grub.cfg" ] && { echo cfg; sed -nE 's/^[[:space:]]*(set default=.*)/\1/p; s/^[[:space:]]*linux(efi|16)?[[:space:]]+([^[:space:]]+).*/linux \2/p' "$g/grub.cfg" | head -n 40; }
done

s modules; n=0; for d in "$R/lib/modules/$k0" "$R"/lib/modules/*; do
  k=${d##*/}; [ "$k" = '*' ] && continue; [ $n -gt 0 ] && [ "$k" = "$k0" ] && continue
  n=$((n+1)); [ $n -gt 12 ] && break; echo "kernel $k"
  [ -d "$d" ] && if [ -e "$d/build" ]; then echo headers yes; else echo headers no; fi
  if has modinfo; then { modinfo -k "$k" nvidia || modinfo -k "$k" nvidia-current; } 2>&1 |
    grep -E '^(filename|version|license|vermagic|signer|sig_id|sig_key):|ERROR' | head -c 2048; fi
done
s files; find "$R/lib/modules/" \( -name 'nvidia.ko*' -o -name 'nvidia-current.ko*' \) 2>/dev/null | head -n 40 | while read -r i; do echo "${i#"$R"}"; done
s dkms; has dkms && dkms status 2>/dev/null | grep -i '^nvidia' | head -n 40
s build; b=$(ls -t "$R"/var/lib/dkms/nvidia*/*/build/make.log 2>/dev/null | head -n 1); [ -n "$b" ] && {
  head -n 1 "$b"; if grep -qiE 'error|fatal|no such file|not found' "$b"
    then grep -iE 'error|fatal|no such file|not found' "$b"; else grep -v '^[[:space:]]*$' "$b"; fi | tail -n 15; } | cut -c1-300

s banner; f "$R/proc/driver/nvidia/version"; s loaded; f "$R/sys/module/nvidia/version"
s others; for i in nouveau nova_core; do [ -d "$R/sys/module/$i" ] && echo $i; done
s linked; has ldconfig && ldconfig -p 2>/dev/null | sed -n 's/.*libnvidia-ml\.so\.1 (libc6,.*=> //p' | while read -r l; do readlink -f "$l"; done | head -n 8
s libraries; there "$R"/usr/lib/*/libnvidia-ml.so.*.* "$R"/usr/lib/*/nvidia/current/libnvidia-ml.so.*.* "$R"/usr/lib64/libnvidia-ml.so.*.*
s smi; q() { limited nvidia-smi --query-gpu="$1" --format=csv,noheader; }
  o=$(q pci.bus_id,fabric.state,fabric.status); case $o in *"not a valid field"*) o=$(q pci.bus_id) ;; esac; printf '%s\n' "$o" | head -c 20000
s pci; [ -d "$R/sys/bus/pci/devices" ] && echo bus; for d in "$R"/sys/bus/pci/devices/*; do
  v=; { read -r v <"$d/vendor"; } 2>/dev/null; [ "$v" = 0x10de ] || continue
  r=$(readlink "$d/driver" 2>/dev/null); echo "${d##*/} $v $(f "$d/device") $(f "$d/class") ${r##*/}"; done
s nodes; there "$R"/dev/nvidia* | head -n 40
s holders; if [ -e "$R/dev/nvidiactl" ]; then find "$R"/proc/[0-9]*/fd -lname '/dev/nvidia*' 2>/dev/null |
  sed 's,.*/proc/\([0-9]*\)/fd/.*,\1,' | uniq | head -n 40 | while read -r p; do echo "$p $(f "$R/proc/$p/comm")"; done; fi

s modprobe; seen=; set --; for d in etc run usr/local/lib usr/lib lib; do for c in "$R/$d"/modprobe.d/*.conf; do
  [ -e "$c" ] || continue; b=${c##*/}; case "$seen/" in */"$b"/*) continue ;; esac; seen="$seen/$b"; set -- "$@" "$c"; done; done
  [ $# -gt 0 ] && grep -HE '^[[:space:]]*(blacklist|install|alias)[[:space:]]+(nvidia|nvidia[-_]current|nouveau|nova[-_]core)([[:space:]]|$)' "$@" | head -n 40 |
  while read -r i; do echo "${i#"$R"}"; done
s secureboot; secureboot; s lockdown; f "$R/sys/kernel/security/lockdown"; s sigenforce; f "$R/sys/module/module/parameters/sig_enforce"
s keys; [ -r "$R/proc/keys" ] && sed -n 's/.* asymmetri *//p' "$R/proc/keys" | head -n 80
s mok; for i in "$R/var/lib/dkms/mok.pub" "$R/var/lib/shim-signed/mok/MOK.der" "$R/etc/pki/akmods/certs/public_key.der"; do
  [ -e "$i" ] && { echo "key ${i#"$R"}"; has mokutil && mokutil --test-key "$i" 2>&1 | head -n 2; }; done
s log; p='NVRM|nvidia|Xid|nouveau|nova.core|key was rejected|loading of .* is rejected|unsigned module|lockdown|PKCS#7'
  w() { grep -iE "$p" | grep -viE 'apparmor|audit' | tail -n 60 | cut -c1-400; }
  if dmesg >/dev/null 2>&1; then echo readable; dmesg | w
  elif o=$(journalctl -k -b -q --no-pager -n 5000 2>/dev/null); then echo readable; printf '%s\n' "$o" | w; fi

s packages; if has dpkg-query; then echo dpkg
  dpkg-query -W -f='${db:Status-Abbrev}|${Package}|${Version}\n' '*nvidia*' 'cuda-drivers*' 'linux-image-*' 'linux-headers-*' 'linux-modules-*' dkms 2>/dev/null | grep -v '^[up]n' | head -n 400
elif has dnf || has zypper; then
  o=$(rpm -qa --qf '%{NAME}|%{VERSION}-%{RELEASE}\n' '*nvidia*' 'cuda-drivers*' 2>/dev/null) && { echo rpm; printf '%s\n' "$o" | head -n 400; }
fi
s services; if [ -d "$R/run/systemd/system" ] && has systemctl; then echo systemd
  systemctl show -p Id -p LoadState -p ActiveState -p UnitFileState nvidia-persistenced.service nvidia-fabricmanager.service nvidia-imex.service 2>/dev/null | sed 's/^$/--/'; fi
s reboot; [ -e "$R/run/reboot-required" ] && { echo required; cat "$R/run/reboot-required.pkgs" 2>/dev/null | sort -u | head -n 10; }
s end
"""
)


def script(root: str = "") -> str:
    """Return the script; `root` is a folder that stands for / (tests)."""
    return _SCRIPT.replace("R=''", f"R={shlex.quote(root)}", 1)

# What the kernel of a target without a driver does, as functions for the programs beside this file. The target's root is /,
# in unit tests RIG_ROOT. /rig is what tests drive, /run/rig what this boot made of it: kernel (uname -r), sys (/sys, writable),
# modules (/proc/modules), smi (how nvidia-smi ends: failed without a driver, none where it drives no GPU, or ok).
R=${RIG_ROOT:-}
RIG=$R/rig RUN=$R/run/rig SYS=$R/run/rig/sys REAL=$R/usr/lib/rig
EFIVAR=firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c
MODULES='nvidia nvidia_modeset nvidia_drm nvidia_uvm nvidia_peermem nouveau'

#: The first line of a file, or nothing. No cat: emulated, each process costs tens of milliseconds.
first() { if [ -e "$1" ]; then IFS= read -r line <"$1" || :; printf '%s' "$line"; fi; }
driven() { [ "$(first "$RIG/$1")" = "$2" ]; }
loaded() { [ -d "$SYS/module/$1" ]; }

log() { # a line of the kernel's log
    read -r up _ </proc/uptime
    printf '[%9s0000] %s\n' "$up" "$1" >>"$R/run/rig-dmesg"
}

needs() { # what a module needs
    case $1 in
        nvidia_drm) echo nvidia_modeset ;;
        nvidia_*) echo nvidia ;;
    esac
}

users() { # loaded modules that need one
    for user in $MODULES; do
        if loaded "$user" && [ "$(needs "$user")" = "$1" ]; then echo "$user"; fi
    done
}

list_modules() { # written in place: /proc/modules is a mount of this file
    for one in $MODULES; do
        loaded "$one" || continue
        by=$(users "$one" | tr '\n' ',')
        set -- $(users "$one")
        echo $# >"$SYS/module/$one/refcnt"
        echo "$one 1048576 $# ${by:--} Live 0x0000000000000000 (OE)"
    done >"$RUN/modules"
}

devices() { # PCI addresses of NVIDIA's devices whose class begins with $1
    for device in "$SYS"/bus/pci/devices/*; do
        if [ "$(first "$device/vendor")" = 0x10de ]; then
            case $(first "$device/class") in "$1"*) echo "${device##*/}" ;; esac
        fi
    done
}

take() { # class, driver: the driver takes the devices that none has
    for address in $(devices "$1"); do
        [ ! -L "$SYS/bus/pci/devices/$address/driver" ] || continue
        mkdir -p "$SYS/bus/pci/drivers/$2"
        ln -s "../../drivers/$2" "$SYS/bus/pci/devices/$address/driver"
    done
}

release() { # driver
    for link in "$SYS"/bus/pci/devices/*/driver; do
        if [ -L "$link" ] && [ "$(readlink "$link")" = "../../drivers/$1" ]; then rm "$link"; fi
    done
    rm -rf "$SYS/bus/pci/drivers/$1"
}

add_module() { # name, version: as the kernel lists a module
    mkdir -p "$SYS/module/$1"
    [ -z "$2" ] || echo "$2" >"$SYS/module/$1/version"
    echo live >"$SYS/module/$1/initstate"
    echo 1048576 >"$SYS/module/$1/coresize"
    list_modules
}

remove_module() {
    rm -rf "$SYS/module/$1"
    case $1 in
        nouveau) release nouveau ;;
        nvidia)
            release nvidia
            release nvidia-nvswitch
            rm -rf "$R/proc/driver/nvidia" "$R"/dev/nvidia*
            echo failed >"$RUN/smi" ;;
        nvidia_uvm) rm -f "$R/dev/nvidia-uvm" "$R/dev/nvidia-uvm-tools" ;;
        nvidia_modeset) rm -f "$R/dev/nvidia-modeset" ;;
    esac
    list_modules
}

add_nouveau() {
    add_module nouveau ''
    take 0x03 nouveau
}

flavour() { printf '%s\n' "$1" | sed -E 's/^[0-9.]+-[0-9.]*(el[0-9_]+)?//'; }

next_kernel() { # the newest of /boot that has the same flavour as $1, or $1
    same=$(flavour "$1")
    for image in "$R"/boot/vmlinuz-*; do
        [ -e "$image" ] || continue
        other=${image##*/vmlinuz-}
        if [ "$(flavour "$other")" = "$same" ]; then echo "$other"; fi
    done | sort -V | tail -n 1 | grep . || echo "$1"
}

settings() { cat "$R"/etc/modprobe.d/*.conf "$R"/usr/lib/modprobe.d/*.conf 2>/dev/null || :; }
blacklisted() { grep -Eq '^[[:space:]]*blacklist[[:space:]]+nouveau([[:space:]]|$)'; }

nouveau_boots() { # $1: the kernel. Unless told not to: in the initramfs, where there is one, and on the disk
    driven gpu/nouveau yes || return 1
    for image in "$R/boot/initrd.img-$1" "$R/boot/initramfs-$1.img"; do
        if [ -e "$image" ] && ! blacklisted <"$image"; then return 0; fi
    done
    ! settings | blacklisted
}

initramfs() { # the file to write: a listing of what modprobe would be told
    for file in "$R"/etc/modprobe.d/*.conf "$R"/usr/lib/modprobe.d/*.conf; do
        [ -e "$file" ] || continue
        echo "# ${file#"$R"}"
        cat "$file"
    done >"$1"
}

kernels() { # in /boot, oldest first
    for image in "$R"/boot/vmlinuz-*; do
        if [ -e "$image" ]; then echo "${image##*/vmlinuz-}"; fi
    done | sort -V
}

#!/bin/sh
# mmdebstrap's customize hook: Debian's kernel for ROOT, unpacked and its modules indexed by this machine's own programs.
# Installed inside, under emulation, the same took more than half an hour: its scripts make an initramfs with every driver.
set -eu
root=$1
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
package=$(apt-cache depends linux-image-arm64 | sed -n 's/^ *Depends: *\(linux-image-[0-9].*-arm64\)$/\1/p' | head -n 1)
version=${package#linux-image-}
(cd "$work" && apt-get -qq -o APT::Sandbox::User=root download "$package")
deb=$(echo "$work"/*.deb)
dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$root" --keep-directory-symlink
depmod -b "$root" "$version"
# dpkg knows it as installed: it can be held, asked for and verified. Its maintainer scripts stay outside.
{ dpkg-deb -f "$deb" | sed '/^Package:/a Status: install ok installed'; echo; } >>"$root/var/lib/dpkg/status"
dpkg-deb --fsys-tarfile "$deb" | tar -t | sed 's|^\.||; s|/$||; s|^$|/.|' >"$root/var/lib/dpkg/info/$package.list"
dpkg-deb --ctrl-tarfile "$deb" | tar -x -C "$work" ./md5sums
cp "$work/md5sums" "$root/var/lib/dpkg/info/$package.md5sums"
# MODULES=list (image.py): seconds even under emulation
chroot "$root" mkinitramfs -o "/boot/initrd.img-$version" "$version"
echo "$version" >"$root/boot/rig-version"

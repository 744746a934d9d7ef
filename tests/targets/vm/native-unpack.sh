#!/bin/sh
# mmdebstrap's extract hook: dpkg and packages' scripts in the emulated ROOT use this machine's own dpkg-deb, which decompresses
# many times faster, and its small programs, of which those scripts start thousands. They lie in a folder that only the
# bootstrap's PATH has (/rig-native); `remove` takes them away. On other machines than x86_64 ones all is emulated.
set -eu
verb=$1 root=$2
libraries=/lib/x86_64-linux-gnu
if [ "$verb" = remove ]; then
	rm -rf "$root/rig-native" "$root/usr$libraries"
	sed -i '/rig-native/d' "$root"/etc/apt/apt.conf.d/*
	exit 0
fi
[ "$(uname -m)" = x86_64 ] || exit 0
mkdir -p "$root/rig-native" "$root$libraries"
cp -L /lib64/ld-linux-x86-64.so.2 "$root/rig-native/ld.so"
for program in dpkg-deb dpkg-split tar gzip update-alternatives sed grep find sort cut tr head cat basename dirname readlink \
	rm mv cp ln mkdir rmdir chmod chown mktemp touch stat; do
	path=$(command -v "$program") || continue
	# /lib64, where the loader would be looked for, does not survive in a ROOT that has none: another name of the same length
	LC_ALL=C sed 's|/lib64/ld-linux-x86-64.so.2|/rig-native/ld.so\x0\x0\x0\x0\x0\x0\x0\x0\x0\x0|' "$path" >"$root/rig-native/$program"
	chmod 755 "$root/rig-native/$program"
	ldd "$path" | grep -o "$libraries/[^ ]*" | while read -r library; do cp -L "$library" "$root$libraries/"; done
done

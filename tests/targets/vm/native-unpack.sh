#!/bin/sh
# mmdebstrap's extract hook: dpkg in the emulated ROOT unpacks with this machine's own dpkg-deb and tar, which decompress many
# times faster. They lie in a folder that only the bootstrap's PATH has (/rig-native) and are taken away by `remove`.
set -eu
verb=$1 root=$2
if [ "$verb" = remove ]; then
	rm -rf "$root/rig-native" "$root/lib64" "$root/usr/lib64" "$root/usr/lib/$(uname -m)-linux-gnu"
	exit 0
fi
mkdir -p "$root/rig-native"
for program in dpkg-deb tar rm; do
	path=$(command -v "$program")
	cp "$path" "$root/rig-native/"
	# the loader and the libraries go where the program looks for them: the ROOT's own are in another architecture's folders
	ldd "$path" | grep -o '/[^ ]*' | while read -r library; do
		case $library in
		/lib64/*) mkdir -p "$root/lib64" ;;
		*) mkdir -p "$root${library%/*}" ;;
		esac
		cp -L "$library" "$root$library"
	done
done

#!/bin/sh
# mmdebstrap's extract hook: dpkg and packages' scripts in the emulated ROOT use this machine's own dpkg-deb, which decompresses
# many times faster, and its small programs, of which those scripts start thousands. They lie in a folder that only the
# bootstrap's PATH has (/rig-native) and are taken away by `remove`.
set -eu
verb=$1 root=$2
if [ "$verb" = remove ]; then
	rm -rf "$root/rig-native" "$root/lib64" "$root/usr/lib64" "$root/usr/lib/$(uname -m)-linux-gnu"
	exit 0
fi
mkdir -p "$root/rig-native"
for program in dpkg-deb tar gzip update-alternatives sed grep find sort cut tr head cat basename dirname readlink \
	rm mv cp ln mkdir rmdir chmod chown mktemp touch stat; do
	path=$(command -v "$program") || continue
	cp "$path" "$root/rig-native/"
	# the loader and the libraries go where the program looks for them: the ROOT's own are in another architecture's folders
	ldd "$path" | grep -o '/[^ ]*' | while read -r library; do
		case $library in
		/lib64/*)
			mkdir -p "$root/usr/lib64"
			[ -e "$root/lib64" ] || ln -s usr/lib64 "$root/lib64" # a folder here would not be a merged /usr
			;;
		*) mkdir -p "$root${library%/*}" ;;
		esac
		cp -L "$library" "$root$library"
	done
done

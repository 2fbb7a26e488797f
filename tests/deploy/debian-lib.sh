# A Debian with systemd, for steps that install the package there: two versions of it are in /debs. What looks at it from
# inside is an agent of its own, which the machine has by vsock and the package knows nothing of.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
: "${DEBS:?two versions of the package}"
machine_at=vsock-uds://$WORK/vsock:7000
agent=unix:///run/telexec/agent.sock

boot_debian() {
  mkdir -p "$WORK"/{image,initrd,debs}
  cp "$KERNEL/vmlinuz" "$WORK/image/"
  printf 'listen = ["vsock://any:7000"]\n' >"$WORK/initrd/telexecd.toml"
  "$repo/deploy/vm/build" --config "$WORK/initrd" --telexecd "$STATIC" --kernel "$KERNEL" "$WORK/image"
  # this one becomes the disk's systemd; what is added to an archive later is what counts
  install -m 755 "$repo/tests/deploy/debian-init" "$WORK/initrd/init"
  (cd "$WORK/initrd" && echo init | cpio --create --format=newc --quiet) >>"$WORK/image/initrd"
  # not compressed: an emulated processor takes most of an installation's time to unpack it
  local deb
  for deb in "$DEBS"/*.deb; do
    dpkg-deb --raw-extract "$deb" "$WORK/deb"
    dpkg-deb -Znone --root-owner-group --build "$WORK/deb" "$WORK/debs/${deb##*/}" >/dev/null
    rm -r "$WORK/deb"
  done
  local megabytes
  read -r megabytes _ < <(du -sm "$WORK/debs")
  # with room for what the file system itself takes
  truncate -s "$((megabytes * 5 / 4 + 16))M" "$WORK/debs.disk"
  mkfs.ext4 -q -F -d "$WORK/debs" "$WORK/debs.disk"
  boot debian --vsock "$WORK/vsock" --memory 1024 --disk "$BASE_DISK" --disk "$WORK/debs.disk" --append \
    "systemd.mask=serial-getty@ttyS0.service systemd.mask=getty@tty1.service systemd.mask=systemd-timesyncd.service systemd.mask=systemd-udev-trigger.service" "$WORK/image"
  until_it 300 "$telexec" ping "$machine_at"
  there 0 'running|degraded|starting' 'systemctl is-system-running --wait; true'
  there 0 '' 'mkdir /debs && mount -o ro /dev/vdb /debs'
  passed "Debian with systemd is up"
}
in_it() { timeout "${LIMIT:-120}" "$telexec" exec "$machine_at" -c "$1" </dev/null; }
# how a shell text in the machine ends, and what its output matches
there() { expect "$1" "$2" "$telexec" exec "$machine_at" -c "$3"; }
# with what the machine says of it
die() {
  printf 'FAILED: %s\n' "$*" >&2
  in_it 'journalctl --no-pager --lines=30 -u telexecd.service' >&2 || true
  exit 1
}
power_off() {
  in_it 'systemctl poweroff' >/dev/null 2>&1 || true
  powered_off
}

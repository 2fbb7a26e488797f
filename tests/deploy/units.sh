#!/usr/bin/env bash
# The units, as systemd sees them.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

root=$WORK/root
mkdir -p "$root"/{usr/bin,usr/lib/telexec,bin,etc/systemd/system,usr/lib/systemd/system}
cp "$STATIC" "$root/usr/bin/telexecd"
install -m 755 "$repo/deploy/systemd/stopped" "$root/usr/lib/telexec/"
install -m 755 "$(command -v busybox)" "$root/bin/kill"
cp "$repo"/deploy/systemd/telexecd.{service,socket} "$root/etc/systemd/system/"
# what they refer to, and every machine has
for unit in sysinit basic shutdown network-online multi-user sockets local-fs swap paths timers time-sync; do
  printf '[Unit]\nDescription=%s\nDefaultDependencies=no\n' "$unit" >"$root/usr/lib/systemd/system/$unit.target"
done
verify() {
  expect 0 '' systemd-analyze verify --man=no --recursive-errors=no --root="$root" telexecd.service telexecd.socket
  ! grep -E 'telexecd|sandbox' <<<"$said" || die "systemd-analyze verify says the above"
}
verify
passed "systemd-analyze verify"
mkdir "$root/etc/systemd/system/telexecd.service.d"
cp "$repo/deploy/systemd/sandbox.conf" "$root/etc/systemd/system/telexecd.service.d/"
verify
passed "systemd-analyze verify, with the profile for sandboxes"

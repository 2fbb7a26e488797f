#!/usr/bin/env bash
# The static agent runs on a machine with no libraries at all, and on ones whose nsswitch.conf names other libraries.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Its own agent may fall by what the command asks for: then it answers no more.
answers_in() { # ROOT
  local root=$1
  mkdir -p "$root"/{etc,tmp,proc,dev,bin}
  cp "$STATIC" "$root/bin/telexecd"
  cp "$(command -v busybox)" "$root/bin/busybox"
  ln -sf busybox "$root/bin/sh"
  printf '%s\n' 'root:x:0:0::/:/bin/sh' 'ann:x:1000:1000::/:/bin/sh' >"$root/etc/passwd"
  printf '%s\n' 'root:x:0:' 'ann:x:1000:' 'staff:x:50:ann' >"$root/etc/group"
  printf '%s\n' 'passwd: files systemd sss winbind' 'group: files systemd sss' 'initgroups: sss files' \
    'hosts: mymachines mdns4_minimal [NOTFOUND=return] dns' >"$root/etc/nsswitch.conf"
  # in namespaces of its own, so that whatever is mounted and runs there goes with it
  unshare --mount --pid --fork --kill-child bash -c '
    mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && exec chroot "$1" /bin/telexecd --listen unix:///tmp/agent.sock
  ' bash "$root" 2>"$root.log" &
  agent=$!
  trap 'kill -KILL "$agent" 2>/dev/null || true' EXIT
  local at=unix://$root/tmp/agent.sock
  until_it 30 "$telexec" ping "$at"
  expect 0 'uid=1000\(ann\).*50\(staff\)' "$telexec" exec -u ann "$at" -- /bin/busybox id
  expect 125 'no such user' "$telexec" exec -u nobody-knows "$at" -- /bin/busybox id
  expect 125 'no such user' "$telexec" exec -u 4242 "$at" -- /bin/busybox id
  expect 0 'still here' "$telexec" exec --shell sh "$at" -c 'echo still here'
  kill -KILL "$agent"
  wait "$agent" 2>/dev/null || true
}

answers_in "$WORK/empty"
passed "in a root with nothing but busybox"

# this machine's own libraries, and those of another glibc, which a static glibc cannot share a process with
mkdir -p "$WORK/packages"
(cd "$WORK/packages" && apt-get download -qq libc6 libnss-systemd libcap2 libgcc-s1 >/dev/null 2>&1)
for package in "$WORK"/packages/*.deb; do dpkg -x "$package" "$WORK/systemd"; done
[[ -n $(find "$WORK/systemd" -name 'libnss_systemd.so.2') ]] || die "the package libnss-systemd has no such library"
answers_in "$WORK/systemd"
passed "beside libnss_systemd, which nsswitch.conf names"

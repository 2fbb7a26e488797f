#!/usr/bin/env bash
# The engine's tests of containment, in a machine where all controllers are of version 2 and the agent's. They run in a
# Debian on a disk, as a command of the agent that is the machine's first process.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

suites=$(cargo test --workspace --locked --test suites --no-run --message-format=json 2>/dev/null \
  | sed -n 's/.*"executable":"\([^"]*suites-[^"]*\)".*/\1/p')
[[ -x $suites ]] || die "the test program is not built"
mkdir -p "$WORK"/{config,tests/debug/deps}
strip --strip-all -o "$WORK/tests/debug/deps/suites" "$suites"
for program in telexec telexecd; do strip --strip-all -o "$WORK/tests/debug/$program" "$BIN/$program"; done
truncate -s 512M "$WORK/tests.disk"
mkfs.ext4 -q -F -d "$WORK/tests" "$WORK/tests.disk"
printf 'listen = ["vsock://any:7443"]\nshell = "sh"\nrequire_containment = "cgroup"\n' >"$WORK/config/telexecd.toml"
"$repo/deploy/vm/build" --config "$WORK/config" --telexecd "$STATIC" --kernel "$KERNEL" "$WORK/image"

boot containment --vsock "$WORK/vsock" --memory 2048 --disk "$BASE_DISK" --disk "$WORK/tests.disk" "$WORK/image"
at=vsock-uds://$WORK/vsock:7443
until_it 120 "$telexec" ping "$at"
# The tests and their agents get a cgroup that is theirs to divide: they are in one part of it, and their commands in others.
prepare='set -e
mkdir /debian && mount -t ext4 /dev/vda /debian && mount -t ext4 /dev/vdb /debian/mnt
for each in dev proc sys tmp run; do mount --rbind /$each /debian/$each; done
own=/sys/fs/cgroup/tests
mkdir $own $own/runner
chroot /debian setfattr --name=user.delegate --value=1 $own
cat $own/cgroup.controllers'
expect 0 'cpu.*memory.*pids' "$telexec" exec "$at" -c "$prepare"
# Without those whose proof is a look at all processes in time: the agent trusts the cgroup alone where that takes too
# long, as it does on an emulated processor. These run wherever tests/run does.
run='echo $$ >/sys/fs/cgroup/tests/runner/cgroup.procs && cd /tmp && exec chroot /debian /usr/bin/env HOME=/root \
  PATH=/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/tmp /mnt/debug/deps/suites --test-threads=2 --skip _left \
  conformance::cgroups::cgroup_v2'
code=0
timeout 240 "$telexec" exec "$at" -c "$run" </dev/null >"$WORK/log" 2>&1 || code=$?
[[ $code -eq 0 ]] || { grep -vE '\.\.\. ok$' "$WORK/log" | tail -n 60; die "the tests ended with $code"; }
passed "$(grep '^test result' "$WORK/log")"
grep -E 'skipped' "$WORK/log" | sort | uniq -c | head -n 5 || true
"$telexec" exec "$at" -- poweroff -f >/dev/null 2>&1 </dev/null || true
powered_off
passed "poweroff -f as a command powers the machine off"

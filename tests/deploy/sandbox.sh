#!/usr/bin/env bash
# A machine with the agent as its first process is booted, is given real work by mTLS and by vsock, and powers off.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# a compiler and what it needs, from packages
mkdir -p "$WORK/packages"
(cd "$WORK/packages" && apt-get download -qq tcc libc6 libc6-dev linux-libc-dev >/dev/null 2>&1)
for package in "$WORK"/packages/*.deb; do dpkg -x "$package" "$WORK/tools"; done
rm -rf "$WORK"/tools/usr/share "$WORK"/tools/usr/lib/x86_64-linux-gnu/gconv

certs=$WORK/certs
"$telexec" certs init --dir "$certs" >/dev/null 2>&1
"$telexec" certs issue sandbox --server --dir "$certs" >/dev/null 2>&1
"$telexec" certs issue orchestrator --client --dir "$certs" >/dev/null 2>&1
mkdir -p "$WORK/config"
cp "$certs/sandbox.pem" "$certs/sandbox.key" "$certs/ca.pem" "$WORK/config/"
cat >"$WORK/config/telexecd.toml" <<'END'
listen = ["tcp://0.0.0.0:7443", "vsock://any:7443"]
tls_cert = "/etc/telexec/sandbox.pem"
tls_key = "/etc/telexec/sandbox.key"
client_ca = "/etc/telexec/ca.pem"
state_dir = "/var/lib/telexec"
shell = "sh"
require_containment = "cgroup"
shutdown_grace = "1s"
END
"$repo/deploy/vm/build" --config "$WORK/config" --telexecd "$STATIC" --with "$WORK/tools" --kernel "$KERNEL" "$WORK/image"

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
began=$(date +%s%N)
boot sandbox --port "$port" --vsock "$WORK/vsock" "$WORK/image"
export TELEXEC_CERT=$certs/orchestrator.pem TELEXEC_KEY=$certs/orchestrator.key TELEXEC_CA=$certs/ca.pem
tcp=(--server-name sandbox "127.0.0.1:$port") vsock=("vsock-uds://$WORK/vsock:7443")
until_it 120 "$telexec" exec "${tcp[@]}" -- echo first
passed "first output $((($(date +%s%N) - began) / 1000000)) ms after power-on"

expect 0 'containment: +cgroup-v2' "$telexec" info "${tcp[@]}"
expect 0 'identity: +orchestrator' "$telexec" info "${tcp[@]}"
expect 0 'identity: +vsock:cid=2' "$telexec" info "${vsock[@]}"
expect 0 '^telexec-keeper$' "$telexec" exec "${vsock[@]}" -- cat /proc/1/comm
passed "by mTLS and by vsock; the keeper is the first process"
expect 255 'certificate|TLS' env -u TELEXEC_CERT -u TELEXEC_KEY -u TELEXEC_CA "$telexec" ping "tcp://127.0.0.1:$port"
passed "no access without a certificate"

bytes=$((8 << 20))
sum=$(head -c "$bytes" /dev/zero | tee "$WORK/zeroes" | sha256sum)
said=$("$telexec" exec -i "${vsock[@]}" -- sha256sum <"$WORK/zeroes")
[[ $said == "${sum%% *}"* ]] || die "by vsock came something else than was sent: $said"
said=$("$telexec" exec "${vsock[@]}" -- head -c "$bytes" /dev/zero | sha256sum)
[[ $said == "$sum" ]] || die "by vsock came something else back: $said"
passed "$bytes bytes each way by vsock"

compile='mkdir -p /work && cd /work && cat >hog.c && tcc -o hog hog.c && echo compiled'
said=$("$telexec" exec -i "${tcp[@]}" -c "$compile" <<'END'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int count, char **arguments) {
    size_t size = (size_t)atol(arguments[1]) << 20;
    char *memory = malloc(size);
    memset(memory, 1, size);
    printf("had %s MiB, %d\n", arguments[1], memory[size - 1]);
    return 0;
}
END
)
[[ $said == compiled ]] || die "not compiled: $said"
expect 0 '^had 8 MiB, 1$' "$telexec" exec "${tcp[@]}" -- /work/hog 8
passed "a C program is compiled, and runs"

expect 3 '2 of 3 tests failed' "$telexec" exec "${tcp[@]}" -c 'echo "2 of 3 tests failed" >&2; exit 3'
passed "a failing test suite"
expect 137 '"cause":"out_of_memory"' "$telexec" exec --json --memory 32M "${tcp[@]}" -- /work/hog 64
expect 0 '^had 64 MiB' "$telexec" exec --memory 128M "${tcp[@]}" -- /work/hog 64
passed "a memory hog ends as OUT_OF_MEMORY, and only beyond its limit"

bomb='bomb() { bomb | bomb & }; bomb; wait; sleep 1; exit 0'
"$telexec" exec --timeout 20s --max-processes 20 "${tcp[@]}" -c "$bomb" >"$WORK/bomb" 2>&1 </dev/null &
expect 0 '^others run$' "$telexec" exec "${vsock[@]}" -- echo 'others run'
wait $! || true
grep -q "can't fork" "$WORK/bomb" || die "the fork bomb met no limit: $(head -n 3 "$WORK/bomb")"
expect 0 '^others run$' "$telexec" exec "${vsock[@]}" -- echo 'others run'
passed "a fork bomb stops at its limit, and others run"

"$telexec" exec -d --id server "${tcp[@]}" -c 'mkdir -p /srv && echo served >/srv/index.html && exec httpd -f -p 8080 -h /srv' >/dev/null
until_it 20 "$telexec" exec "${tcp[@]}" -- wget -qO- http://127.0.0.1:8080/
expect 0 '^served$' "$telexec" exec "${vsock[@]}" -- wget -qO- http://127.0.0.1:8080/
expect 0 'server.*running' "$telexec" ps "${tcp[@]}"
"$telexec" kill "${tcp[@]}" server
passed "a server in the background, to which later commands talk"

# an orphan is adopted by the first process, and reaped
"$telexec" exec "${tcp[@]}" -c '(setsid sh -c "sleep 1" &) ; (true &)' >/dev/null
until_it 20 "$telexec" exec "${tcp[@]}" -c '! grep -l "^State:.Z" /proc/[0-9]*/status'
passed "no zombies"

expect 255 'shut down' "$telexec" exec "${tcp[@]}" -c 'kill 1; sleep 60'
powered_off
passed "SIGTERM to the first process ends what runs and powers the machine off"

# an agent that is not root, and commands that have a user each
rm "$WORK/config/"*
cat >"$WORK/config/telexecd.toml" <<'END'
listen = ["vsock://any:7443"]
state_dir = "/var/lib/telexec"
shell = "sh"
agent_user = "telexec"
users = "dynamic"
command_users = ["root"]
END
"$repo/deploy/vm/build" --config "$WORK/config" --telexecd "$STATIC" --kernel "$KERNEL" "$WORK/image"
boot users --vsock "$WORK/vsock" --isolated "$WORK/image"
until_it 120 "$telexec" ping "${vsock[@]}"
expect 0 '^telexec-keeper 0 998$' "$telexec" exec -u root "${vsock[@]}" -c \
  'uid() { awk "/^Uid/ { print \$2 }" "/proc/$1/status"; }; echo "$(cat /proc/1/comm) $(uid 1) $(uid "$(pidof telexecd)")"'
passed "the first process is root, the agent is not"

"$telexec" exec -d --id first "${vsock[@]}" -c \
  'echo secret >/tmp/file; n=0; until [ -e /tmp/end ]; do n=$((n + 1)); echo $n; sleep 0.1; done; id -u' >/dev/null
expect 0 '^none$' "$telexec" exec "${vsock[@]}" -c \
  'cat /tmp/file /proc/[0-9]*/root/tmp/file 2>/dev/null; grep -ls EXECUTION_ID=first /proc/[0-9]*/environ; echo none'
[[ $said == none ]] || die "a command reaches another one: $said"
before=$("$telexec" exec -u root "${vsock[@]}" -- pidof telexecd)
# once its start was reported
"$telexec" exec -d -u root "${vsock[@]}" -c 'sleep 1; kill -9 "$(pidof telexecd)"' >/dev/null
until_it 60 "$telexec" exec -u root "${vsock[@]}" -c "[ \"\$(pidof telexecd)\" != '$before' ]"
until_it 60 "$telexec" exec -u root "${vsock[@]}" -c 'touch "$(ls -d /proc/[0-9]*/root/tmp/file | head -n 1 | xargs dirname)/end"'
expect 0 '^2[0-9]{9}$' "$telexec" attach "${vsock[@]}" first
[[ $(head -n -1 <<<"$said") == "$(seq "$(($(wc -l <<<"$said") - 1))")" ]] || die "output is missing: $said"
passed "commands do not reach each other, and run on when the agent is killed"

"$telexec" exec -d -u root "${vsock[@]}" -c 'kill 1' >/dev/null
powered_off

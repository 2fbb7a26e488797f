#!/usr/bin/env bash
# Callers of one machine, one of whom wants all of it: the others get their shares. In a machine where all controllers are of cgroup
# version 2, with its agent as the first process.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

certs=$WORK/certs
"$telexec" certs init --dir "$certs" >/dev/null 2>&1
"$telexec" certs issue machine --server --dir "$certs" >/dev/null 2>&1
for name in alice bob carol; do "$telexec" certs issue "$name" --client --dir "$certs" >/dev/null 2>&1; done
mkdir -p "$WORK/config"
cp "$certs/machine.pem" "$certs/machine.key" "$certs/ca.pem" "$WORK/config/"
cat >"$WORK/config/telexecd.toml" <<'END'
listen = ["tcp://0.0.0.0:7443"]
tls_cert = "/etc/telexec/machine.pem"
tls_key = "/etc/telexec/machine.key"
client_ca = "/etc/telexec/ca.pem"
policy = "/etc/telexec/policy.cedar"
shell = "sh"
require_containment = "cgroup"
shutdown_grace = "1s"
max_memory_bytes_per_identity = 100663296
max_processes_per_identity = 40
END
cat >"$WORK/config/policy.cedar" <<'END'
@id("all") permit(principal, action, resource);
@id("carol") @share("3") permit(principal == Identity::"carol", action in Action::"start", resource);
END
"$repo/deploy/vm/build" --config "$WORK/config" --telexecd "$STATIC" --kernel "$KERNEL" "$WORK/image"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
boot shares --cpus 1 --port "$port" "$WORK/image"
at=(--server-name machine "127.0.0.1:$port")
export TELEXEC_CA=$certs/ca.pem
for name in alice bob carol; do
  printf '#!/bin/sh\nexport TELEXEC_CERT=%s.pem TELEXEC_KEY=%s.key\nexec timeout 60 %s "$@" </dev/null\n' \
    "$certs/$name" "$certs/$name" "$telexec" >"$WORK/$name"
  chmod +x "$WORK/$name"
done
until_it 120 "$WORK/alice" ping "${at[@]}"

# How much of the processor time the last of some commands gets that run at the same time and want all of it, in percent: so many of
# one caller, and one of another. An earlier start makes a few percent.
percent() { # COUNT NAME OTHER LEAST MOST
  local number name pids=() seconds
  for ((number = 0; number <= $1; number++)); do
    [[ $number -lt $1 ]] && name=$2 || name=$3
    "$WORK/$name" exec --json --timeout 12s "${at[@]}" -c 'while :; do :; done' >"$WORK/end.$number" 2>/dev/null &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || true; done
  seconds=$(for ((number = 0; number <= $1; number++)); do
    jq --slurp '.[] | select(.event == "exited").usage | .user_time + .system_time' "$WORK/end.$number"
  done | jq --slurp --compact-output .)
  said=$(jq '100 * last / add | round' <<<"$seconds")
  [[ $said -ge $4 && $said -le $5 ]] || die "$3 got $said % beside $1 commands of $2: $seconds"
}
percent 6 alice bob 43 57
passed "one busy command beside six of another caller gets $said % of the processor"
percent 6 alice carol 68 82
passed "with @share(\"3\") it gets $said %"
percent 6 alice alice 9 20
passed "one beside six of the same caller gets $said %"

# 96 MiB for each caller, whatever its commands are: one needs some 76 for a moment, and then 38 until it is released
hold='x=$(head -c 37748736 /dev/zero | tr "\0" x); echo holds; until [ -e /released ]; do sleep 1; done; echo released'
pids=()
hold() { # CALLER FILE
  "$WORK/$1" exec --json "${at[@]}" -c "$hold" >"$WORK/$2" 2>/dev/null &
  pids+=($!)
  until_it 60 grep -qE 'holds|exited' "$WORK/$2"
}
hold alice hold.1
hold alice hold.2
hold bob hold.3
expect 0 '' "$WORK/carol" exec "${at[@]}" -- touch /released
for pid in "${pids[@]}"; do wait "$pid" || true; done
grep -q 'released' "$WORK/hold.1" || die "the first was ended: $(<"$WORK/hold.1")"
grep -q '"out_of_memory"' "$WORK/hold.2" || die "the second was not ended: $(<"$WORK/hold.2")"
grep -q 'released' "$WORK/hold.3" || die "the other caller's was ended: $(<"$WORK/hold.3")"
passed "two commands of one caller share its memory; another one has its own"

bomb='while :; do sleep 300 & done'
for number in 1 2; do
  expect 2 "can't fork" "$WORK/alice" exec "${at[@]}" -c "$bomb"
done
"$WORK/alice" exec -d "${at[@]}" -- sleep 300 >/dev/null 2>&1 || true
expect 125 'alice already has 40 processes and threads, the limit per caller \(max_processes_per_identity\)' \
  "$WORK/alice" exec "${at[@]}" -- true
expect 0 '^others run$' "$WORK/bob" exec "${at[@]}" -- echo 'others run'
passed "a fork bomb takes the processes of one caller, not those of another"

# what is kept for callers that start nothing is bounded
for number in {1..20}; do
  "$telexec" certs issue "caller$number" --client --dir "$certs" >/dev/null 2>&1
  expect 0 '' env TELEXEC_CERT="$certs/caller$number.pem" TELEXEC_KEY="$certs/caller$number.key" "$telexec" exec "${at[@]}" -- true
done
said=$("$WORK/carol" exec "${at[@]}" -c 'ls -d /sys/fs/cgroup/telexec.*/identity.* | wc -l')
[[ $said -le 17 ]] || die "$said cgroups of callers are kept"
"$WORK/carol" exec "${at[@]}" -- poweroff -f >/dev/null 2>&1 || true
powered_off
passed "$said cgroups of callers are kept, of 23"

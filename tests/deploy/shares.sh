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
as() { # NAME COMMAND...
  TELEXEC_CERT=$certs/$1.pem TELEXEC_KEY=$certs/$1.key "${@:2}" </dev/null
}
until_it 120 as alice "$telexec" ping "${at[@]}"

# How much of the processor time the last of some commands gets that run at the same time and want all of it, in percent: so many of
# one caller, and one of another. An earlier start makes a few percent.
percent() { # COUNT NAME OTHER LEAST MOST
  local number name pids=() seconds
  for ((number = 0; number <= $1; number++)); do
    [[ $number -lt $1 ]] && name=$2 || name=$3
    as "$name" timeout 60 "$telexec" exec --json --timeout 8s "${at[@]}" -c 'while :; do :; done' >"$WORK/end.$number" 2>/dev/null &
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

# 100 MiB for each caller, whatever its commands are
hold='x=$(head -c 24M /dev/zero | tr "\0" x); echo holds; sleep 30'
for number in 1 2; do
  as alice "$telexec" exec --json "${at[@]}" -c "$hold" >"$WORK/hold.$number" 2>&1 &
done
until_it 60 grep -q holds "$WORK/hold.1"
tail -n 3 "$WORK"/hold.*
as bob "$telexec" exec --json "${at[@]}" -c "x=$(head -c 24M /dev/zero | tr "\0" x); echo holds; cat /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/memory.peak" | tail -n 3

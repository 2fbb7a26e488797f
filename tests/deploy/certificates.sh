#!/usr/bin/env bash
# Replaces certificates of `telexec certs`, and then their CA, while a command runs: what deploy/certificates says.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
work=$(mktemp -d)
agent=
cleanup() {
  [[ -z $agent ]] || kill -TERM "$agent" 2>/dev/null || true
  wait
  rm -rf "$work"
}
trap cleanup EXIT
cd "$work"

certs() { "$telexec" certs "$@" >/dev/null; }

# Puts files in their place under the agent, each at once.
place() { # FROM TO...
  while [[ $# -gt 0 ]]; do
    install -m 600 "$1" "$2.new" && mv "$2.new" "$2"
    shift 2
  done
}

# A call with the certificate of this directory, where it trusts what this file has.
as() { # DIRECTORY CA COMMAND...
  local name=${caller:-alice}
  "$telexec" exec --cert "$1/$name.pem" --key "$1/$name.key" --ca "$2" --server-name web1 "127.0.0.1:$port" -- "${@:3}"
}

# How often the agent has taken up new files.
loaded() { grep -c 'certificates loaded' log || true; }
taken_up() { # COUNT
  until_it 30 eval "[[ \$(loaded) -ge $1 ]]"
}

certs init --dir old --name 'the old CA'
certs issue web1 --server --days 30 --dir old
certs issue alice --client --days 30 --dir old
certs init --dir new --name 'the new CA'
place old/web1.pem agent.pem old/web1.key agent.key old/ca.pem client-ca.pem
cat >telexecd.toml <<EOF_TOML
[identities]
"$work/old/ca.pem" = ["alice"]
"$work/new/ca.pem" = ["alice", "carol"]
EOF_TOML
"$STATIC" --config telexecd.toml --listen tcp://127.0.0.1:0 --tls-cert agent.pem --tls-key agent.key --client-ca client-ca.pem --state-dir state 2>log &
agent=$!
until_it 30 grep -q '^listening on ' log
port=$(sed -n 's/^listening on .*://p' log)

# A command that runs all the time, its call with the certificate of this directory.
ticking() { # DIRECTORY CA
  "$telexec" exec --cert "$1/alice.pem" --key "$1/alice.key" --ca "$2" --server-name web1 "127.0.0.1:$port" \
    -c 'while sleep 0.1; do echo tick; done' >"ticks-$1" 2>"said-$1" &
}

# It continues until its certificate is no longer trusted.
ticking old old/ca.pem
stream=$!
until_it 30 test -s ticks-old
first=$(loaded)
expires() {
  "$telexec" info --cert old/alice.pem --key old/alice.key --ca old/ca.pem --server-name web1 "127.0.0.1:$port" |
    grep -i certificate
}
before=$(expires)

certs issue web1 --server --days 60 --force --dir old
place old/web1.key agent.key old/web1.pem agent.pem
taken_up $((first + 1))
[[ $(as old old/ca.pem echo hi) == hi ]] || die "no call after the agent's certificate was replaced"
[[ $(expires) != "$before" ]] || die "the agent reports the expiry of the previous certificate"
passed "a new certificate of the agent is taken up"

certs issue web1 --server --days 30 --dir new
certs issue alice --client --days 30 --dir new
certs issue carol --client --days 30 --dir new
certs issue carol --client --days 30 --dir old
cat old/ca.pem new/ca.pem >both.pem
place both.pem client-ca.pem
taken_up $((first + 2))
[[ $(as old both.pem echo hi) == hi && $(as new both.pem echo hi) == hi ]] || die "not both CAs are trusted"
[[ $(caller=carol as new both.pem echo hi) == hi ]] || die "a name of the new CA is refused"
! caller=carol as old both.pem true 2>said || die "the old CA issued a name that it may not issue"
# the log has a thread of its own
until_it 10 grep -q 'may not issue certificates for the name "carol"' log
place new/web1.key agent.key new/web1.pem agent.pem
taken_up $((first + 3))
[[ $(as old both.pem echo hi) == hi && $(as new both.pem echo hi) == hi ]] || die "the agent's new certificate is not trusted"
lines=$(wc -l <ticks-old)
until_it 30 eval "[[ \$(wc -l <ticks-old) -gt $lines ]]"
ticking new both.pem
successor=$!
until_it 30 test -s ticks-new
passed "both CAs are trusted while callers change over, and a command runs on"

place new/ca.pem client-ca.pem
taken_up $((first + 4))
code=0
as old new/ca.pem true 2>said || code=$?
[[ $code -eq 255 ]] && grep -q 'the agent rejected --cert' said || die "the old CA is still trusted: $code, $(cat said)"
[[ $(as new new/ca.pem echo hi) == hi ]] || die "no call with the new CA alone"
passed "the old CA is no longer trusted"

code=0
wait "$stream" || code=$?
[[ $code -eq 255 ]] && grep -q 'not accepted any more' said-old || die "the old stream: $code, $(cat said-old)"
lines=$(wc -l <ticks-new)
until_it 30 eval "[[ \$(wc -l <ticks-new) -gt $lines ]]"
kill -TERM "$successor" || die "the new stream has ended: $(cat said-new)"
wait "$successor" || true
passed "the call with the old certificate is ended, and the one with the new one continues"

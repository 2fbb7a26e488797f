#!/usr/bin/env bash
# Replaces certificates of `telexec certs`, and then their authority, while a command runs: what deploy/certificates says.
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
  "$telexec" exec --cert "$1/alice.pem" --key "$1/alice.key" --ca "$2" --server-name web1 "127.0.0.1:$port" -- "${@:3}"
}

# How often the agent has taken up new files.
loaded() { grep -c 'certificates loaded' log || true; }
taken_up() { # COUNT
  until_it 30 eval "[[ \$(loaded) -ge $1 ]]"
}

certs init --dir old --name 'the old authority'
certs issue web1 --server --days 30 --dir old
certs issue alice --client --days 30 --dir old
place old/web1.pem agent.pem old/web1.key agent.key old/ca.pem client-ca.pem
"$STATIC" --listen tcp://127.0.0.1:0 --tls-cert agent.pem --tls-key agent.key --client-ca client-ca.pem --state-dir state 2>log &
agent=$!
until_it 30 grep -q '^listening on ' log
port=$(sed -n 's/^listening on .*://p' log)

# It goes on through all that follows.
"$telexec" exec --cert old/alice.pem --key old/alice.key --ca old/ca.pem --server-name web1 "127.0.0.1:$port" \
  -c 'while sleep 0.1; do echo tick; done' >ticks &
stream=$!
until_it 30 test -s ticks
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
[[ $(expires) != "$before" ]] || die "the agent tells the end of the certificate before"
passed "a new certificate of the agent is taken up"

certs init --dir new --name 'the new authority'
certs issue web1 --server --days 30 --dir new
certs issue alice --client --days 30 --dir new
cat old/ca.pem new/ca.pem >both.pem
place both.pem client-ca.pem
taken_up $((first + 2))
[[ $(as old both.pem echo hi) == hi && $(as new both.pem echo hi) == hi ]] || die "not both authorities are trusted"
place new/web1.key agent.key new/web1.pem agent.pem
taken_up $((first + 3))
[[ $(as old both.pem echo hi) == hi && $(as new both.pem echo hi) == hi ]] || die "the agent's new certificate is not trusted"
passed "both authorities are trusted while callers change over"

place new/ca.pem client-ca.pem
taken_up $((first + 4))
code=0
as old new/ca.pem true 2>said || code=$?
[[ $code -eq 255 ]] && grep -q 'the agent refused --cert' said || die "the old authority is still trusted: $code, $(cat said)"
[[ $(as new new/ca.pem echo hi) == hi ]] || die "no call with the new authority alone"
passed "the old authority is trusted no more"

lines=$(wc -l <ticks)
until_it 30 eval "[[ \$(wc -l <ticks) -gt $lines ]]"
kill -TERM "$stream" || die "the stream has ended"
wait "$stream" || true
passed "a command that ran all the time was left alone"

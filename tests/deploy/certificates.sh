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
    grep "^agent's cert:"
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
[[ $code -eq 255 ]] && grep -q 'the agent refused your certificate' said || die "the old CA is still trusted: $code, $(cat said)"
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

# The files of other CAs: chains with an intermediate, and the formats of keys in which they write them.
kill -TERM "$agent" && wait "$agent" || true
agent=
mkdir -p "$work/formats" && cd "$work/formats"
sign() { # NAME CA USAGE DAYS: a certificate for NAME.key
  openssl req -new -key "$1.key" -subj "/CN=$1" |
    openssl x509 -req -CA "$2.pem" -CAkey "$2.key" -CAcreateserial -days "$4" -out "$1.leaf" \
      -extfile <(printf 'subjectAltName=DNS:%s\n%s\n' "$1" "$3")
}
{
  openssl req -x509 -newkey rsa:2048 -nodes -keyout root.key -out root.pem -subj /CN=root -days 9
  openssl ecparam -name prime256v1 -genkey -noout -out middle.key
  sign middle root $'basicConstraints=critical,CA:TRUE,pathlen:0\nkeyUsage=keyCertSign,cRLSign' 9
  mv middle.leaf middle.pem
  openssl genrsa -out caller.key 2048
  sign caller middle extendedKeyUsage=clientAuth 9
  cat caller.leaf middle.pem >caller.pem
} 2>openssl.log || die "openssl: $(cat openssl.log)"
chmod 600 ./*.key
format() { # NAME COMMAND...: an agent with the key that the command writes to standard output
  "${@:2}" >web1.key 2>openssl.log || die "openssl: $(cat openssl.log)"
  sign web1 middle extendedKeyUsage=serverAuth 9 2>openssl.log || die "openssl: $(cat openssl.log)"
  cat web1.leaf middle.pem >web1.pem
  rm -f log
  "$STATIC" --listen tcp://127.0.0.1:0 --tls-cert web1.pem --tls-key web1.key --client-ca root.pem 2>log &
  agent=$!
  until_it 30 grep -q '^listening on ' log
  port=$(sed -n 's/^listening on .*://p' log)
  expect 0 '^hi$' "$telexec" exec --cert caller.pem --key caller.key --ca root.pem --server-name web1 "127.0.0.1:$port" -- echo hi
  kill -TERM "$agent" && wait "$agent" || true
  agent=
  passed "an agent with $1 and a chain with an intermediate"
}
umask 077
format "an EC key (SEC1, as step writes it)" openssl ecparam -name prime256v1 -genkey -noout
grep -q 'BEGIN EC PRIVATE KEY' web1.key || die "not SEC1"
format "an RSA key (PKCS #1, as Vault writes it)" openssl genrsa -traditional 2048
grep -q 'BEGIN RSA PRIVATE KEY' web1.key || die "not PKCS #1"
format "an RSA key (PKCS #8)" openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048
format "an EC key on P-384 (PKCS #8)" openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-384
"$BIN/telexecd" enroll --csr --name web1 --dns web1 --dir csr >/dev/null
openssl x509 -req -in csr/web1.csr -CA middle.pem -CAkey middle.key -CAcreateserial -days 9 -copy_extensions copy -out csr/leaf.pem \
  2>openssl.log || die "openssl: $(cat openssl.log)"
cat csr/leaf.pem middle.pem >csr/web1.pem
"$STATIC" --listen tcp://127.0.0.1:0 --tls-cert csr/web1.pem --tls-key csr/web1.key --client-ca root.pem --check-config 2>log ||
  die "$(cat log)"
passed "a certificate for a signing request of telexecd enroll"

# docs/CERTIFICATES.md: its commands, with the names of its machines mapped to this one.
mkdir "$work/page" && cd "$work/page"
page=$repo/docs/CERTIFICATES.md
machines=$PWD/machines ca1= service=
block() { # HEADING: the first shell commands below it
  awk -v heading="$1" '$0 ~ "^## " { here = index($0, heading) } here && /^```sh/ { on = 1; next } on && /^```/ { exit } on' "$page"
}
mapped() { # ARG...: in the array `words`
  local arg
  words=()
  for arg; do
    arg=${arg//\/etc\/telexec/$machines/web01}
    case "$1 $arg" in
      *" ca1") arg=$ca1 ;;
      "info web01.example.org" | "fleet web01.example.org" | "fleet web[01-50].example.org") arg=127.0.0.1:$port ;;
    esac
    words+=("$arg")
  done
}
telexec() {
  mapped "$@"
  case "$1 $2" in
    "certs serve")
      [[ -z $service ]] || { kill "$service"; wait "$service" || true; }
      rm -f service.log
      command "$BIN/telexec" "${words[@]}" --listen tcp://127.0.0.1:0 2>service.log &
      service=$!
      until_it 30 grep -q 'listening on' service.log
      ca1=$(sed -n 's/.*listening on tcp:..//p' service.log)
      ;;
    "certs enroll") command "$BIN/telexec" "${words[@]}" --dir laptop ;;
    "info "* | "fleet "*)
      command "$BIN/telexec" "${words[0]}" --cert laptop/"$me".pem --key laptop/"$me".key --ca laptop/ca.pem \
        --server-name web01.example.org "${words[@]:1}"
      ;;
    *) command "$BIN/telexec" "${words[@]}" ;;
  esac
}
telexecd() { mapped "$@"; command "$BIN/telexecd" "${words[@]}" --dir "$machines/$host"; }
ssh() { local host=$1; shift; "$@"; }
run_block() { # HEADING
  local commands
  commands=$(block "$1")
  [[ -n $commands ]] || die "no commands below $1"
  eval "$commands" >said 2>&1 || die "$1: $(cat said)"
}
cleanup() {
  [[ -z $service ]] || kill "$service" 2>/dev/null || true
  [[ -z $agent ]] || kill -TERM "$agent" 2>/dev/null || true
  wait
  rm -rf "$work"
}
me=alice port=
run_block "1. The CA"
run_block "2. The machines"
[[ $(ls "$machines"/web*/web*.pem | wc -l) -eq 50 ]] || die "not 50 certificates: $(cat said)"
[[ $(stat -c %a "$machines"/web*/web*.key | sort -u) == 600 ]] || die "others may read a key"
passed "50 machines have enrolled"

at=$machines/web01
rm -f log
"$STATIC" --listen tcp://127.0.0.1:0 --tls-cert "$at/web01.pem" --tls-key "$at/web01.key" --client-ca "$at/ca.pem" \
  --client-crl "$at/crl.pem" --state-dir state 2>log &
agent=$!
until_it 30 grep -q '^listening on ' log
port=$(sed -n 's/^listening on .*://p' log)
run_block "3. The callers"
grep -q '^agent.s cert: *expires' said && grep -q '^your cert: *expires' said || die "$(cat said)"
passed "a caller has enrolled, and reaches an agent"

renew() { telexecd enroll --renew --server ca1; } # of the unit
for host in web01 web02; do renew >said || die "$(cat said)"; done
telexec certs token bob --client --dir ca --out bob.token
telexec certs enroll --server ca1 --token-file bob.token >/dev/null
cp laptop/alice.* .
# the lost laptop is alice's; whoever distributes the list is bob
me=bob
run_block "5. A lost laptop"
until_it 30 grep -q 'revoked=1' log
code=0
"$telexec" ping --cert alice.pem --key alice.key --ca laptop/ca.pem --server-name web01.example.org "127.0.0.1:$port" 2>said || code=$?
[[ $code -eq 255 ]] && grep -q 'has been revoked' said || die "alice: $code, $(cat said)"
telexec fleet -w web01.example.org true 2>said || die "bob: $(cat said)"
passed "a lost laptop is refused"

mapfile -t steps < <(block "6. Another CA")
[[ ${#steps[@]} -eq 4 ]] || die "4 steps were expected: ${steps[*]}"
eval "${steps[0]}; ${steps[1]}" >said 2>&1 || die "$(cat said)"
host=web01
renew >said && telexec certs enroll --renew --server ca1 --name bob >said || die "$(cat said)"
eval "${steps[2]}" || die "the second step"
renew >said && telexec certs enroll --renew --server ca1 --name bob >said || die "$(cat said)"
"$telexec" certs show "$at/web01.pem" laptop/bob.pem >said
[[ $(grep -c '^issuer: *CN=our machines, 2027' said) -eq 2 ]] || die "$(cat said)"
eval "${steps[3]}" || die "the third step"
renew >said && telexec certs enroll --renew --server ca1 --name bob >said || die "$(cat said)"
[[ $(grep -c BEGIN "$at/ca.pem") -eq 1 ]] || die "the old CA is still trusted"
until_it 30 eval 'telexec fleet -w web01.example.org true'
passed "a new CA has taken over, and the agent with it"

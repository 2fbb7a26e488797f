#!/usr/bin/env bash
# Validates deploy/kubernetes, and tries its configuration, probes and DNS with agents on this machine.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
python=$(venv kubernetes-validate==1.37.0)/bin/python3
models=$PWD/target/tools/cert-manager-models-6.0.0
[[ -d $models/node_modules ]] || npm install --prefix "$models" --ignore-scripts --no-audit --no-fund --loglevel=error \
  @kubernetes-models/cert-manager@6.0.0 >/dev/null || die "npm could not install the models of cert-manager"
cp tests/deploy/cert-manager.mjs "$models/validate.mjs"
manifests=(deploy/kubernetes/*.yaml)

# All objects, a JSON text a line.
objects() {
  "$python" -c 'import json, sys, yaml
for file in sys.argv[1:]:
    for one in yaml.safe_load_all(open(file)): print(json.dumps(one))' "${manifests[@]}"
}

# A value of an object that is not cert-manager's.
of() { # KIND FILTER
  objects | jq -r --arg kind "$1" "select(.kind == \$kind) | $2"
}

# The rest runs where ports and the resolver are its own.
if [[ -z ${INSIDE:-} ]]; then
  INSIDE=1 exec unshare --mount --net --pid --fork --kill-child --mount-proc "$repo/tests/deploy/kubernetes.sh"
fi
ip link set lo up
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

objects | jq -c 'select(.apiVersion | startswith("cert-manager.io") | not)' | split --lines=1 --additional-suffix=.json - "$work/object-"
"$python" -m kubernetes_validate --strict --quiet "$work"/object-*.json || die "not as the schema of Kubernetes has it"
passed "the objects of Kubernetes are valid, strictly"
objects | jq -c 'select(.apiVersion | startswith("cert-manager.io"))' | node "$models/validate.mjs" \
  || die "not as the models of cert-manager have it"
passed "the objects of cert-manager are valid"

# What refers to each other by name, which no schema knows.
[[ $(of DaemonSet '.spec.selector.matchLabels') == $(of DaemonSet '.spec.template.metadata.labels') ]] || die "the selector"
[[ $(of Service '.spec.selector') == $(of DaemonSet '.spec.template.metadata.labels') ]] || die "the service's selector"
[[ $(of NetworkPolicy '.spec.podSelector.matchLabels') == $(of DaemonSet '.spec.template.metadata.labels') ]] \
  || die "the network policy's selector"
secret=$(of DaemonSet '.spec.template.spec.volumes[].projected.sources[]?.secret.name // empty')
certificate=$(objects | jq -c --arg secret "$secret" 'select(.spec.secretName? == $secret)')
operator=$(objects | jq -c 'select(.metadata.name == "telexec-operator")')
service=$(of Service '"\(.metadata.name).\(.metadata.namespace).svc"')
jq -e --arg name "$service" '.spec.dnsNames | index($name)' <<<"$certificate" >/dev/null || die "the certificate lacks $service"
passed "labels, secrets and names fit together"

# The certificates that cert-manager would make.
certs() { "$telexec" certs "$@" --dir "$work/ca" >/dev/null; }
certs init
mapfile -t names < <(jq -r '.spec.dnsNames[] | "--dns", .' <<<"$certificate")
certs issue agent --server "${names[@]}"
certs issue operator --client --uri "$(jq -r '.spec.uris[0]' <<<"$operator")"
certs issue stranger --client

# An agent with the configuration of the DaemonSet, in its place on this machine.
agent() { # NUMBER
  local etc=$work/$1/etc config
  mkdir -p "$etc/tls" "$work/$1/run" "$work/$1/state"
  install -m 640 "$work/ca/agent.pem" "$etc/tls/tls.crt"
  install -m 640 "$work/ca/agent.key" "$etc/tls/tls.key"
  install -m 640 "$work/ca/ca.pem" "$etc/tls/ca.crt"
  of ConfigMap '.data["policy.cedar"]' >"$etc/policy.cedar"
  config=$(of ConfigMap '.data["telexecd.toml"]')
  config=${config//\/etc\/telexec/$etc}
  config=${config//\/run\/telexec/$work/$1/run}
  config=${config//\/var\/lib\/telexec/$work/$1/state}
  printf '%s\n[environment]\nAGENT = "%s"\n' "${config//0.0.0.0/127.0.0.1$1}" "$1" >"$etc/telexecd.toml"
  TELEXECD_CONFIG=$etc/telexecd.toml "$STATIC" --check-config 2>/dev/null || die "the configuration is not valid"
  TELEXECD_CONFIG=$etc/telexecd.toml "$STATIC" 2>"$work/$1/log" &
  agents[$1]=$!
}
agents=()
for number in 1 2 3; do agent "$number"; done
passed "the configuration and the policy are valid"

[[ $(of DaemonSet '.spec.template.spec.containers[0] | .startupProbe, .livenessProbe, .readinessProbe | .exec.command | join(" ")' |
  sort -u) == "/telexecd health" ]] || die "other probes"
for number in 1 2 3; do
  until_it 30 env TELEXECD_CONFIG="$work/$number/etc/telexecd.toml" "$STATIC" health
done
if TELEXECD_CONFIG=$work/1/etc/telexecd.toml "$STATIC" health --timeout 1s unix:///nothing 2>/dev/null; then die "it always succeeds"; fi
passed "the probes' command succeeds where the agent serves, and only there"

# The resolver of a pod.
printf '127.0.0.1%s\n' 1 2 3 >"$work/addresses"
python3 tests/deploy/dns-server.py "$service.cluster.local" "$work/addresses" >"$work/dns" &
until_it 30 grep -q ready "$work/dns"
printf 'nameserver 127.0.0.1\nsearch telexec.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n' >"$work/resolv.conf"
mount --bind "$work/resolv.conf" /etc/resolv.conf

fleet() { # IDENTITY COMMAND...
  local who=$1
  shift
  "$telexec" fleet --cert "$work/ca/$who.pem" --key "$work/ca/$who.key" --ca "$work/ca/ca.pem" -w "dns:$service:7443" "$@"
}
[[ $(fleet operator -c 'echo "$AGENT"' 2>/dev/null | sort) == $'127.0.0.11:7443: 1\n127.0.0.12:7443: 2\n127.0.0.13:7443: 3' ]] \
  || die "not all agents answered: $(fleet operator -c 'echo "$AGENT"' 2>&1)"
[[ $(fleet operator --list-hosts | wc -l) -ge 1 && $(fleet operator -N --pick 2 -c 'echo x' 2>/dev/null | wc -l) -eq 2 ]] || die "--pick"
passed "fleet -w dns:$service:7443 reaches every address, each with the certificate of the service"
code=0
fleet stranger -c true 2>"$work/said" || code=$?
[[ $code -ne 0 ]] && grep -q '3 refused' "$work/said" || die "a stranger: $code, $(cat "$work/said")"
passed "who is not in the policy is refused"

kill -TERM "${agents[3]}"
wait "${agents[3]}" || die "the third agent failed: $(cat "$work/3/log")"
code=0
fleet operator -c true 2>"$work/said" || code=$?
[[ $code -ne 0 ]] && grep -q '1 unreachable' "$work/said" || die "an address without an agent: $code, $(cat "$work/said")"
printf '127.0.0.1%s\n' 1 2 >"$work/addresses"
[[ $(fleet operator -N -c 'echo "$AGENT"' 2>/dev/null | sort) == $'1\n2' ]] || die "an agent that is gone is still asked"
passed "an agent that is gone is unreachable, and not asked once its address is gone"

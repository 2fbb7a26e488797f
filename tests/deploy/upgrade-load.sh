#!/usr/bin/env bash
# The package is upgraded, and back again, while commands run and clients are attached: with a keeper nobody notices.
source "$(dirname "${BASH_SOURCE[0]}")/debian-lib.sh"
boot_debian
# where telexecd.socket listens
agent=unix:///run/telexec.sock

LIMIT=300
first=/debs/telexec_*-1_*.deb second=/debs/telexec_*-2_*.deb
dpkg='env DEBIAN_FRONTEND=noninteractive dpkg --force-confold --force-unsafe-io -i'
commands=200 clients=20

# an agent that is not root, at a socket that systemd has
there 0 '' "$dpkg $first && systemctl disable --now telexecd.service && sed -i \
  -e 's/^listen = .*/listen = [\"systemd:\"]\ncommand_users = [\"nobody\"]/' \
  -e 's/^# shutdown_grace.*/shutdown_grace = \"1s\"/' /etc/telexec/telexecd.toml && systemctl enable --now telexecd.socket telexecd.service"
until_it 30 in_it "telexec ping $agent"
there 0 '^telexec ' 'ps -o user= -o args= -C telexecd'

# who opens the pipe to write lets all of them go on
there 0 '' "mkfifo -m 644 /run/go && mkdir /run/load && for n in \$(seq $commands); do
  telexec exec -d --id load-\$n $agent -c \"echo begin \$n; cat /run/go; echo end \$n\" >/dev/null || exit 1; done"
there 0 '' "for n in \$(seq $clients); do (telexec attach $agent load-\$n >/run/load/\$n 2>&1; echo \"code \$?\" >>/run/load/\$n) & done; :"
until_it 60 in_it "[ \$(cat /run/load/* | grep -c begin) = $clients ]"
there 0 '' "(while [ ! -e /run/load/end ]; do began=\$(date +%s%N); telexec exec $agent true || echo failed
  echo \$(((\$(date +%s%N) - began) / 1000000)); done >/run/calls 2>&1; touch /run/ended) & :"
there 0 "^$commands$" "pgrep -c -x cat -u nobody"
passed "$commands commands run, $clients clients are attached, and calls are made without a break"

keeper() { in_it 'systemctl show --property=MainPID --value telexecd.service'; }
for package in "$second" "$first" "$second"; do
  keeper_before=$(keeper) agent_before=$(in_it 'pgrep -x -u telexec telexecd')
  there 0 'Setting up telexec' "$dpkg $package"
  until_it 60 in_it "telexec ping $agent"
  until_it 60 in_it "[ \$(pgrep -x -u telexec telexecd) != $agent_before ]"
  [[ $(keeper) == "$keeper_before" ]] || die "not an upgrade in place: the keeper is another one"
  there 0 "^$commands$" "pgrep -c -x cat -u nobody"
done
there 0 '' 'touch /run/load/end'
until_it 60 in_it '[ -e /run/ended ]'
there 1 '^$' 'grep -v "^[0-9]*$" /run/calls'
there 0 '^[0-9]+ [0-9]+ [0-9]+$' 'rm /run/load/end; sort -n /run/calls | awk "{ all[NR] = \$1 } END { print NR, all[int(NR / 2) + 1], all[NR] }"'
read -r calls median longest <<<"$said"
[[ $calls -ge 20 ]] || die "only $calls calls"
passed "upgraded, back, and again: no command ended, and none of $calls calls was refused (median $median ms on this emulated machine, longest $longest ms)"

there 0 '' 'exec 3>/run/go'
until_it 60 in_it "[ \$(cat /run/load/* | grep -c code) = $clients ]"
there 0 '^$' "for n in \$(seq $clients); do [ \"\$(cat /run/load/\$n)\" = \"begin \$n
end \$n
code 0\" ] || echo \"client \$n: \$(cat /run/load/\$n)\"; done"
there 0 '' "telexec wait $agent \$(seq -s ' ' -f load-%.0f $commands)"
there 0 '^$' "for n in \$(seq $((clients + 1)) $((clients * 2))); do [ \"\$(telexec logs $agent load-\$n)\" = \"begin \$n
end \$n\" ] || echo \"command \$n\"; done"
passed "all $commands ended with 0; clients got the output once, and so did those who asked for that of others later"
power_off

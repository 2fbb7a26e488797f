#!/usr/bin/env bash
# The agent changes its own package: dpkg and apt run as its commands, so their maintainer scripts restart or stop what runs
# them.
source "$(dirname "${BASH_SOURCE[0]}")/debian-lib.sh"
boot_debian

LIMIT=300
first=/debs/telexec_*-1_*.deb second=/debs/telexec_*-2_*.deb
dpkg='env DEBIAN_FRONTEND=noninteractive dpkg --force-confold --force-unsafe-io -i'
apt='env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --allow-downgrades -o Dpkg::Options::=--force-confold -o Dpkg::Options::=--force-unsafe-io'
agents() { in_it 'journalctl --no-pager -o cat -u telexecd.service | grep -c "ready containment"'; }
# That the package is this one, whole, and that its agent runs: not an older one, whose program has been replaced.
now_runs() { # REVISION [HOW-MANY-AGENTS]
  until_it $LIMIT in_it "[ \"\$(readlink /proc/\$(systemctl show --property=MainPID --value telexecd.service)/exe)\" = /usr/lib/telexec/telexec-keeper ] \
    && telexec info $agent && ! systemctl --quiet is-active telexecd-invoke.service"
  there 0 "^install ok installed .*-$1\$" 'dpkg-query --show --showformat "\${Status} \${Version}" telexec'
  there 0 '^$' 'dpkg --audit'
  [[ $# -lt 2 || $(agents) == "$2" ]] || die "$(agents) agents were started, not $2"
}

# so that a restart which does not wait ends it
there 0 '' "$dpkg $first && sed -i 's/^# shutdown_grace.*/shutdown_grace = \"0s\"/' /etc/telexec/telexecd.toml && systemctl restart telexecd.service"
now_runs 1 2
there 0 'Setting up telexec .*-2' "telexec exec $agent -- $dpkg $second"
grep -q 'telexecd.service: restart when this command has ended' <<<"$said" || die "it was not said when it restarts: $said"
now_runs 2 3
passed "an upgrade by its own agent ends with its exit code and output; then the new agent runs"

there 0 'Setting up telexec .*-1' "telexec exec $agent -- env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin setsid --wait $apt install $first"
now_runs 1 4
passed "so does one by apt in a session of its own, with nothing in its environment"
there 3 '^after the upgrade$' "telexec exec $agent -c 'mkdir /sys/fs/cgroup/session; echo 0 >/sys/fs/cgroup/session/cgroup.procs; $dpkg $second; sleep 5; echo after the upgrade; exit 3'"
now_runs 2 5
passed "so does one in a cgroup of its own; the command may do more than upgrade"
there 0 'Setting up telexec .*-2' "telexec exec $agent -c '$dpkg $first && $dpkg $second'"
now_runs 2 6
passed "two upgrades in one command restart the agent once"
for upgrade in "$first" "$second"; do
  # while it restarts it cannot be reached
  until_it $LIMIT in_it "telexec exec $agent -- $dpkg $upgrade"
done
now_runs 2
passed "upgrades that follow each other leave no package half way"

count=$(agents)
there 0 '' "telexec exec -d --id upgrade $agent -- $apt install $first"
until_it $LIMIT in_it "[ \$(journalctl --no-pager -o cat -u telexecd.service | grep -c 'ready containment') -gt $count ]"
there 0 'Setting up telexec .*-1' "telexec attach $agent upgrade"
now_runs 1 $((count + 1))
passed "an upgrade in the background; the next agent knows how it ended"
there 0 '' "telexec exec $agent -c 'setsid sh -c \"sleep 2; $dpkg $second\" >/tmp/orphan 2>&1 </dev/null &'"
until_it $LIMIT in_it 'grep "restart when this command has ended" /tmp/orphan'
now_runs 2 $((count + 2))
passed "so does one by what a command left running"

# a machine without systemd, as far as the package sees
there 0 '' "systemd-run --quiet --unit=other unshare --mount sh -c 'mount -t tmpfs tmpfs /run/systemd && exec telexecd --listen unix:///run/other.sock'"
until_it 20 in_it 'telexec ping unix:///run/other.sock'
there 0 'Setting up telexec .*-1' "telexec exec unix:///run/other.sock -- $dpkg $first"
there 0 '^install ok installed .*-1$' 'dpkg-query --show --showformat "\${Status} \${Version}" telexec'
there 0 'containment' 'telexec info unix:///run/other.sock'
there 0 '' 'systemctl stop other.service'
passed "without systemd the agent runs on"

there 0 'Removing telexec' "telexec exec $agent -- $apt remove telexec"
until_it $LIMIT in_it '! systemctl is-active telexecd.service telexecd-invoke.service'
there 0 '' 'dpkg --audit; ! test -e /run/telexec && test -e /etc/telexec/telexecd.toml'
there 0 '^(not-found|masked)' 'systemctl show --property=LoadState --value telexecd.service; systemctl list-units --failed'
! grep telexec <<<"$said" || die "something failed"
there 0 '' "$dpkg $second"
now_runs 2 $((count + 3))
passed "the package is removed by its own agent, which ends then; installed again, it runs"
there 0 'Setting up telexec .*-1' "telexec exec $agent -c '$apt remove telexec && $dpkg $first'"
now_runs 1 $((count + 4))
passed "removed and installed again by one command"
there 0 'Purging' "telexec exec $agent -- env DEBIAN_FRONTEND=noninteractive dpkg --purge telexec"
until_it $LIMIT in_it '! systemctl is-active telexecd.service telexecd-invoke.service'
there 1 '^$' 'ls -d /etc/telexec /var/lib/telexec /var/log/telexec /run/telexec /usr/lib/telexec /usr/bin/telexec* 2>/dev/null || exit 1'
passed "purged by its own agent: nothing is left"

power_off

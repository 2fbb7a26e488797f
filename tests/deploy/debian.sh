#!/usr/bin/env bash
# The package's life on a Debian with systemd: installed, configured, restarted, upgraded, stopped, purged.
source "$(dirname "${BASH_SOURCE[0]}")/debian-lib.sh"
boot_debian

unit=/sys/fs/cgroup/system.slice/telexecd.service
there 0 '' 'DEBIAN_FRONTEND=noninteractive dpkg -i /debs/telexec_*-1_*.deb'
there 0 '^active$' 'systemctl is-active telexecd.service'
there 0 '^enabled$' 'systemctl is-enabled telexecd.service'
there 1 '^disabled$' 'systemctl is-enabled telexecd.socket'
there 0 '^telexec:' 'getent passwd telexec'
there 0 '^700 telexec$' 'stat -c "%a %U" /var/lib/telexec'
there 0 'containment: +cgroup-v2' "telexec info $agent"
there 0 'limits.memory_bytes,limits.max_processes,limits.cpus' 'journalctl --no-pager -u telexecd.service'
passed "installed: it runs, is enabled, and the journal has its log"

there 0 '^[0-9]+$' "cat $unit/telexec-agent.*/agent/cgroup.procs"
there 0 '^telexec$' "ps -o user= -p \$(cat $unit/telexec-agent.*/agent/cgroup.procs)"
there 0 '^root$' 'ps -o user= -p $(systemctl show --property=MainPID --value telexecd.service)'
there 0 '/telexecd.service/telexec-agent\.[0-9]+/executions/telexec\.[0-9.]+/identity\.[0-9]+/[0-9]+$' "telexec exec $agent -- cat /proc/self/cgroup"
there 0 '^67108864$' "telexec exec --memory 64M $agent -c 'cat /sys/fs/cgroup\$(cut -d: -f3 /proc/self/cgroup)/memory.max'"
there 137 'out_of_memory' "telexec exec --json --memory 32M $agent -c 'head -c 100M /dev/zero | tail'"
there 0 'fork: retry|Resource temporarily unavailable' "telexec exec --max-processes 5 $agent -c 'for i in 1 2 3 4 5 6 7 8; do sleep 1 & done; wait' 2>&1; true"
there 0 '^infinity$' 'systemctl show --property=TasksMax --value telexecd.service'
there 0 '^active$' 'systemctl is-active telexecd.service'
passed "the agent is not root, the unit's cgroup is delegated, and limits hold"

there 0 '' 'sed -i "1i # an edit of its owner" /etc/telexec/telexecd.toml && echo "kill_grace = \"1s\"" >/tmp/edit \
  && sed -i "s/^# shutdown_grace.*/shutdown_grace = \"1s\"/" /etc/telexec/telexecd.toml && systemctl restart telexecd.service'
there 0 '^[1-9]' "telexec exec $agent -c 'setsid sleep 1001 >/dev/null 2>&1 & echo \$!'"
there 0 '' "systemd-run --quiet --unit attached --property=RemainAfterExit=yes sh -c 'telexec exec $agent -- sleep 1002; echo attached: \$?'"
there 0 '' "telexec exec -d --id background $agent -c 'echo printed before; exec sleep 1003'"
until_it 20 in_it 'pgrep -f "^sleep 1002"'
there 0 '' 'systemctl restart telexecd.service'
there 0 'attached: 255' 'journalctl --no-pager -u attached.service'
there 0 'the agent shut down and ended the command' 'journalctl --no-pager -u attached.service'
there 0 '^sleep 1001$' 'ps -eo args | grep "^sleep 100"'
[[ $said == 'sleep 1001' ]] || die "a restart left: $said"
there 255 'printed before' "telexec attach $agent background"
there 0 '^67108864$' "telexec exec --memory 64M $agent -c 'cat /sys/fs/cgroup\$(cut -d: -f3 /proc/self/cgroup)/memory.max'"
passed "a restart ends what belongs to callers or an agent, leaves what was left on purpose; ends and output are found, limits hold"

there 0 '' "systemd-run --quiet sh -c 'telexec exec --reconnect 0 $agent -- sleep 1004'"
until_it 20 in_it 'pgrep -f "^sleep 1004"'
there 0 '' "telexec exec -d --memory 64M $agent -c 'exec sleep 1006'"
serving="cat $unit/telexec-agent.*/agent/cgroup.procs"
before=$(in_it "$serving")
there 0 '' "kill -KILL $before"
until_it 30 in_it "[ \"\$($serving)\" != $before ] && telexec ping $agent"
there 0 '^sleep 1006$' 'ps -eo args | grep "^sleep 100"'
# the first was left behind on purpose, before the restart
[[ $said == $'sleep 1001\nsleep 1006' ]] || die "a killed agent left: $said"
there 0 '^67108864$' "telexec exec --memory 64M $agent -c 'cat /sys/fs/cgroup\$(cut -d: -f3 /proc/self/cgroup)/memory.max'"
there 0 '' 'pkill -f "^sleep 100[16]"'
passed "a killed agent comes back; what was bound is ended, what was in the background runs on, limits hold"

there 0 '' "telexec exec -d $agent -c 'trap \"\" TERM; sleep 1007; sleep 1007'"
before=$(in_it 'systemctl show --property=MainPID --value telexecd.service')
there 0 '' 'systemctl kill --signal=KILL --kill-whom=main telexecd.service'
until_it 60 in_it "[ \$(systemctl show --property=MainPID --value telexecd.service) != $before ] && telexec ping $agent"
there 1 '^$' 'ps -eo args | grep "^sleep 100"'
there 0 '^67108864$' "telexec exec --memory 64M $agent -c 'cat /sys/fs/cgroup\$(cut -d: -f3 /proc/self/cgroup)/memory.max'"
passed "a killed keeper comes back with another agent; nothing is left of what ran, limits hold"

before=$(in_it "$serving")
# DPkg keeps what was edited without asking, as where no one can be asked
there 0 'Keeping old config|Setting up' 'DEBIAN_FRONTEND=noninteractive dpkg --force-confold -i /debs/telexec_*-2_*.deb'
there 0 '^# an edit of its owner' 'head -n 1 /etc/telexec/telexecd.toml'
there 0 '^active$' 'systemctl is-active telexecd.service'
there 0 'telexec.*-2$' 'dpkg-query --show telexec'
until_it 30 in_it "telexec ping $agent"
[[ $(in_it "$serving") != "$before" ]] || die "the upgrade did not replace the agent"
passed "upgraded: the configuration's edits are kept, and the new agent runs"

there 0 '' 'cp /etc/telexec/telexecd.toml /tmp/before.toml && sed -i "s/^# command_users = .*/command_users = [\"daemon\", \"root\"]/" /etc/telexec/telexecd.toml'
there 0 '^command_users' 'grep command_users /etc/telexec/telexecd.toml'
for _ in 1 2; do
  there 0 '' 'systemctl restart telexecd.service'
  there 0 '^daemon$' "telexec exec $agent -- id -un"
  there 0 '^67108864$' "telexec exec -u root --memory 64M $agent -c 'cat /sys/fs/cgroup\$(cut -d: -f3 /proc/self/cgroup)/memory.max'"
  there 137 'out_of_memory' "telexec exec --json --memory 32M $agent -c 'head -c 100M /dev/zero | tail'"
  there 124 '' "telexec exec --timeout 1s $agent -c 'trap \"\" TERM; setsid sleep 1008 & sleep 1008'"
  there 1 '^$' 'ps -eo args | grep "^sleep 100"'
done
there 0 '^[1-9]' "telexec exec $agent -c 'setsid sleep 1009 >/dev/null 2>&1 & echo \$!'"
there 0 '' "telexec exec -d --id across $agent -c 'echo before; sleep 1010; echo after'"
there 0 '' 'cp /usr/lib/telexec/telexec-keeper /tmp/new && mv /tmp/new /usr/lib/telexec/telexec-keeper'
before=$(in_it "$serving")
there 0 '' 'systemctl reload telexecd.service'
[[ $(in_it "$serving") != "$before" ]] || die "a reload did not take the new program"
there 0 '' 'echo "# another edit" >>/etc/telexec/telexecd.toml'
before=$(in_it "$serving")
there 0 '' 'systemctl reload telexecd.service'
[[ $(in_it "$serving") != "$before" ]] || die "a reload did not take the new configuration"
before=$(in_it "$serving")
there 0 '' 'systemctl reload telexecd.service'
[[ $(in_it "$serving") == "$before" ]] || die "a reload replaced the agent though nothing had changed"
# of it and all in it
there 0 '^0$' 'find /run/telexec /var/lib/telexec -user root | wc -l'
there 0 '^kept$' "telexec exec -d --id kept $agent -- echo kept && telexec attach $agent kept"
there 0 '^/usr/lib/telexec/telexec-keeper$' 'readlink /proc/$(systemctl show --property=MainPID --value telexecd.service)/exe'
there 0 '' 'pkill -f "^sleep 1010"'
there 0 '^after$' "telexec attach $agent across"
there 0 '' 'systemctl restart telexecd.service'
there 0 '^sleep 1009$' 'ps -eo args | grep "^sleep 100"'
there 0 '' 'pkill -f "^sleep 1009" && systemctl stop telexecd.service'
there 0 '' "mv /tmp/before.toml /etc/telexec/telexecd.toml && systemctl start telexecd.service"
there 0 '^root$' "telexec exec $agent -- id -un"
passed "with command_users commands run as others, limits and restarts are as before"

there 0 '' 'install -D -m 644 /usr/share/telexec/sandbox.conf /etc/systemd/system/telexecd.service.d/sandbox.conf'
there 0 '' 'systemctl daemon-reload && systemctl restart telexecd.service'
there 0 'uid=[0-9]+\(telexec\)' "telexec exec $agent -- id"
there 0 'NoNewPrivs:.1' "telexec exec $agent -- cat /proc/self/status"
there 0 'CapBnd:.0000000000000000' "telexec exec $agent -- cat /proc/self/status"
there 1 'Read-only file system' "telexec exec $agent -c 'echo x >/usr/x' 2>&1"
there 137 'out_of_memory' "telexec exec --json --memory 32M $agent -c 'head -c 100M /dev/zero | tail'"
there 0 '' 'systemctl reload telexecd.service'
there 0 '' 'systemd-analyze --no-pager security telexecd.service | tail -n 1'
passed "with the profile for sandboxes commands are confined and limited"
printf '   %s\n' "with it: ${said##*→ }"
there 0 '' "telexec exec $agent -c 'setsid sleep 1005 >/dev/null 2>&1 &'"
there 0 '' 'systemctl stop telexecd.service'
there 1 '^$' 'ps -eo args | grep "^sleep 100"'
passed "with it nothing outlives a stop"
there 0 '' 'rm -r /etc/systemd/system/telexecd.service.d && systemctl daemon-reload'
there 0 'Overall' 'systemd-analyze --no-pager security telexecd.service | tail -n 1'
printf '   %s\n' "without: ${said##*→ }"

there 0 '' 'sed -i "s/^listen = .*/listen = [\"systemd:\"]/" /etc/telexec/telexecd.toml && systemctl start telexecd.socket'
there 3 '^inactive$' 'systemctl is-active telexecd.service'
there 0 '^by a socket$' 'telexec exec --connect-timeout 60s unix:///run/telexec.sock -- echo by a socket'
there 0 '^active$' 'systemctl is-active telexecd.service'
passed "the first caller of the socket starts it"

there 0 '' 'DEBIAN_FRONTEND=noninteractive dpkg --remove telexec'
there 0 '^# an edit' 'head -n 1 /etc/telexec/telexecd.toml'
there 1 'inactive' 'systemctl is-active telexecd.service telexecd.socket >/tmp/state; cat /tmp/state; pgrep -x telexecd | grep -v "^$(systemctl show --property=MainPID --value driver.service)$"'
there 0 '' 'DEBIAN_FRONTEND=noninteractive dpkg --purge telexec'
there 1 '' 'ls -d /etc/telexec /var/lib/telexec /var/log/telexec /usr/lib/telexec /usr/bin/telexec* 2>/dev/null || exit 1'
there 1 '' 'find /etc/systemd /lib/systemd /var/lib/systemd -name "telexec*" | grep -v "/timers/"'
passed "removed, then purged: nothing is left"

power_off

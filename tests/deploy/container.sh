#!/usr/bin/env bash
# Builds the image of deploy/container, and runs the agent in it as the first process of a pid namespace.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

work=$(mktemp -d)
# storage of its own, by plain copies: that works on every machine, and leaves nothing
buildah=(buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs)
agent=
cleanup() {
  [[ -z $agent ]] || kill -KILL "$agent" 2>/dev/null || true
  "${buildah[@]}" rm --all >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap cleanup EXIT

printf ">> %s\n" "building the image"
deploy/container/build "$STATIC" telexecd "${buildah[@]:1}" >"$work/build.log" 2>&1 || { cat "$work/build.log"; die "no image"; }
config=$("${buildah[@]}" inspect --type image telexecd | jq .Docker.config)
[[ $(jq -r .User <<<"$config") == 65532:65532 ]] || die "it runs as root: $config"
[[ $(jq -c .Healthcheck.Test <<<"$config") == '["CMD","/telexecd","health"]' ]] || die "no healthcheck: $config"
passed "the image is not root's, and has a healthcheck ($(stat -c %s "$STATIC") bytes of telexecd)"

# An image with a shell on top, as users make theirs.
cat >"$work/Containerfile" <<'EOF'
FROM localhost/telexecd
COPY busybox /bin/busybox
COPY busybox /bin/sh
EOF
cp "$(type -P busybox)" "$work/busybox"
"${buildah[@]}" build --isolation chroot --format docker --file "$work/Containerfile" --tag shell "$work" \
  >"$work/build.log" 2>&1 || { cat "$work/build.log"; die "no image on top of it"; }

mapfile -t environment < <(jq -r '.Env[]' <<<"$config")
mapfile -t entrypoint < <(jq -r '.Entrypoint[]' <<<"$config")
mapfile -t healthcheck < <(jq -r '.Healthcheck.Test[1:][]' <<<"$config")

# Starts the agent of an image as a runtime does: its entrypoint, environment and user, first in a pid namespace.
start() { # IMAGE
  root=$("${buildah[@]}" mount "$("${buildah[@]}" from "localhost/$1")")
  mkdir -p "$root/proc" "$root/dev"
  env -i "${environment[@]}" /usr/bin/unshare --mount /bin/sh -c '
    root=$1; shift
    /bin/mount --bind /dev "$root/dev"
    exec /usr/bin/unshare --pid --fork --kill-child --root="$root" --mount-proc --setuid 65532 --setgid 65532 "$@"' \
    sh "$root" "${entrypoint[@]}" 2>"$work/log" &
  outside=$!
  until_it 30 grep -q '^listening on ' "$work/log"
  agent=$(pgrep --parent "$outside")
  # the path in the storage is too long for a socket
  target=unix:///proc/$agent/root/run/telexec/agent.sock
}

inside() { # COMMAND...
  env -i "${environment[@]}" /usr/bin/nsenter --target "$agent" --mount --pid --root --setuid 65532 --setgid 65532 -- "$@"
}

# The agent ends, with this exit code of it and of what held it.
ends() {
  local code=0
  wait "$outside" || code=$?
  agent=
  [[ $code -eq 0 ]] || { cat "$work/log"; die "the agent ended with $code"; }
}

zombies() { ps --no-headers -o stat --ppid "$agent" | grep -c '^Z' || true; }

printf ">> %s\n" "the agent alone"
start telexecd
[[ $(ps --no-headers -o uid "$agent" | tr -d ' ') == 65532 ]] || die "it runs as another user"
[[ $(inside "${healthcheck[@]}") == serving ]] || die "the healthcheck fails"
passed "the healthcheck of a running agent succeeds"
said=$("$telexec" exec "$target" -- /telexecd --version)
[[ $said == "$("$STATIC" --version)" ]] || die "it runs no command: $said"
code=0
"$telexec" exec "$target" -c 'true' 2>"$work/said" || code=$?
[[ $code -eq 127 ]] || die "a shell in an image without one: $code, $(cat "$work/said")"
passed "it runs what is in its image, and says what is not"
kill -TERM "$agent"
ends
grep -q 'shutting down' "$work/log" || die "it did not shut down"
passed "SIGTERM ends it"

printf ">> %s\n" "the agent with a shell beside it"
start shell
[[ $("$telexec" exec --shell sh "$target" -c 'echo $PPID') == 1 ]] || die "it is not the first process"
"$telexec" exec --shell sh "$target" -c \
  'for i in 1 2 3 4 5 6 7 8; do (busybox setsid busybox true &); done'
until_it 30 eval '[[ $(zombies) -eq 0 ]]'
"$telexec" exec --shell sh "$target" -c '(busybox setsid busybox sleep 1000 >/dev/null 2>&1 &)'
until_it 30 pgrep --parent "$agent" --full 'sleep 1000'
passed "as the first process it adopts and reaps orphans"
code=0
"$telexec" exec --shell sh "$target" -c 'echo runs; busybox sleep 1000' >"$work/output" 2>"$work/said" &
running=$!
until_it 30 grep -q runs "$work/output"
kill -TERM "$agent"
ends
wait "$running" || code=$?
grep -q 'the agent shut down and ended the command' "$work/said" || die "$code: $(cat "$work/said")"
if inside /telexecd --version >/dev/null 2>&1; then die "something is left"; fi
passed "SIGTERM ends what runs, informs its caller, and leaves nothing"

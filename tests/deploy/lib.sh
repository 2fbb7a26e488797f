# What the steps of the suite have in common. Each is run by `run`, with what that made:
#   WORK        a directory of its own
#   BIN         telexec and telexecd as they are usually built
#   STATIC      telexecd as deploy/static/build makes it
#   KERNEL      a kernel, as deploy/vm/kernel gets it
#   BASE_DISK   a disk with a small Debian
set -euo pipefail
repo=$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../..
telexec=${BIN:?}/telexec

die() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }
passed() { printf 'ok: %s\n' "$*"; }

# How a command ends, and a pattern that its output must match; the output is in $said afterwards. It may take LIMIT seconds.
expect() { # CODE PATTERN COMMAND...
  local code=0 wanted=$1 pattern=$2
  shift 2
  said=$(timeout "${LIMIT:-120}" "$@" 2>&1 </dev/null) || code=$?
  [[ $code -eq $wanted ]] || die "exit code $code, not $wanted, of: $*"$'\n'"$said"
  grep -qE -- "$pattern" <<<"$said" || die "no /$pattern/ in the output of: $*"$'\n'"$said"
}

# Waits until a command succeeds.
until_it() { # SECONDS COMMAND...
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1 </dev/null; do
    [[ $SECONDS -lt $end ]] || die "this did not come true: $*"
    sleep 0.1
  done
}

# Boots a machine in the background, whose console is in $WORK/NAME.console; it ends with this shell.
boot() { # NAME ARG...
  console=$WORK/$1.console
  shift
  timeout --kill-after=5 900 "$repo/deploy/vm/boot" "$@" >"$console" 2>&1 </dev/null &
  machine=$!
  trap 'code=$?; kill "$machine" 2>/dev/null || true; wait "$machine" || true; [[ $code -eq 0 ]] || tail -n 40 "$console"' EXIT
}

# Waits until the machine has powered itself off, and not otherwise ended.
powered_off() {
  wait "$machine" || die "the machine's end: $?"
  grep -q 'reboot: Power down' "$console" || die "the machine did not power off"
}

# A venv in target/tools with these packages, pinned: prints its directory.
venv() { # NAME==VERSION...
  local directory sum
  read -r sum _ < <(printf '%s\n' "$@" | sha256sum)
  directory=$PWD/target/tools/deploy-python-${sum:0:12}
  if [[ ! -e $directory/ready ]]; then
    rm -rf "$directory"
    python3 -m venv "$directory" || die "python3 cannot make a venv: install it (on Debian: python3-venv)"
    "$directory/bin/pip" install --quiet --disable-pip-version-check "$@" >&2 || die "pip could not install $*"
    touch "$directory/ready"
  fi
  printf '%s\n' "$directory"
}

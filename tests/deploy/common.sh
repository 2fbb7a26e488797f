# shellcheck shell=bash
# What the scripts in this folder share; they source it. Each is complete: it installs what it needs, on Debian as root,
# and takes the programs to test from TELEXECD (static) and TELEXEC, or else builds them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
name=$(basename "$0")
passed=0

say() { printf '>> %s\n' "$*"; }
die() { printf 'tests/deploy/%s: %s\n' "$name" "$*" >&2; exit 1; }
pass() { printf 'ok: %s\n' "$*"; passed=$((passed + 1)); }
done_here() { printf '%s passed, 0 failed\n' "$passed"; }

# Waits until the command succeeds, 30 s at the most.
until_true() { # WHAT COMMAND...
  local what=$1 tries=0
  shift
  until "$@" >/dev/null 2>&1; do
    ((++tries < 300)) || die "waited in vain until $what"
    sleep 0.1
  done
}

need_root() { [[ $EUID -eq 0 ]] || die "only root can do this"; }

# Installs the Debian packages whose programs are missing.
need() { # PROGRAM=PACKAGE...
  local missing=() pair
  for pair in "$@"; do
    type -P "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  need_root
  say "installing ${missing[*]}"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } \
    >/dev/null || die "apt-get could not install ${missing[*]}"
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

export CARGO_BUILD_JOBS=${CARGO_BUILD_JOBS:-2}

# Sets TELEXECD to a static one.
need_telexecd() {
  if [[ -z ${TELEXECD:-} ]]; then
    say "building a static telexecd"
    cargo rustc --locked --quiet -p telexec-server --bin telexecd -- -C target-feature=+crt-static
    mkdir -p target/deploy
    TELEXECD=$PWD/target/deploy/telexecd
    strip -o "$TELEXECD" target/debug/telexecd
  fi
  [[ -x $TELEXECD ]] || die "TELEXECD=$TELEXECD is no program"
  TELEXECD=$(realpath "$TELEXECD")
}

need_telexec() {
  if [[ -z ${TELEXEC:-} ]]; then
    say "building telexec"
    cargo build --locked --quiet -p telexec-cli --bin telexec
    TELEXEC=$PWD/target/debug/telexec
  fi
  [[ -x $TELEXEC ]] || die "TELEXEC=$TELEXEC is no program"
  TELEXEC=$(realpath "$TELEXEC")
  export TELEXEC_CONFIG=/dev/null
}

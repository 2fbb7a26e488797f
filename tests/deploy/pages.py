#!/usr/bin/env python3
"""Runs the commands of a page, as a reader would type them: tests/deploy/pages.sh calls this.

pages.py around ROOT     puts into a root what the pages take for granted: names of machines, other programs
pages.py run PAGE        runs PAGE (README.md or docs/NAME.md), below such a root
pages.py type COMMAND    runs a command on a terminal, and types what KEYS has for it
"""

import os
import pathlib
import pty
import re
import shutil
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parents[2]

# What is not run of a page, by how its line begins, and why. Each has to be found.
SKIPPED = {
    "README.md": {
        "cargo build --release": "takes many minutes: the step `release` does it",
        "install target/release/": "of the same",
        "ln -s telexec /usr/local/bin/": "of the same",
        "telexecd --listen vsock://": "this is no virtual machine: the step `sandbox` has one",
        "telexec exec vsock": "of the same",
        "ssh -o ProxyCommand=": "no machine here has sshd: the suite `forward` has one",
    },
    "docs/OPERATING.md": {
        "install -D -t /usr/local/bin/.new": "this machine has the package",
        "mv /usr/local/bin/.new": "of the same",
    },
}
# How commands end that do not succeed, by what they are on the page.
EXIT_CODES = {
    "telexec exec local -c 'echo hello; echo oops >&2; exit 3'": 3,
    "$G -max-time 1": 68,
    "as olga exec web1 id": 125,
    "as anna check --reason": 125,
    "as anna exec --reason 'INC-7: disk full' web1 journalctl --vacuum-size=1G # denied": 125,
}
# What is typed on a terminal, once the command has written this.
KEYS = {
    "vim notes.txt": ("~", ":q\r"),
    "attach -i": ("", "\x10\x11"),
}

PRELUDE = r"""
at=start agents=$(mktemp -d)
failed() { # CODE LINE-OF-THIS
  [ "$1" != 99 ] || exit 99
  local command
  command=$(sed -n "$2p" "$0")
  "$PAGES" expected "$1" "$command" && return
  echo "$at: exit code $1 of: $command" >&2
  tail -n 20 "$agents"/* >&2
  exit 99
}
watched() { trap 'failed $? $LINENO' ERR; }
watched
# A reader gives an agent a terminal of its own, and goes on when it listens.
serve() { # PROGRAM ARG...
  case " $* " in
    *" policy "* | *" audit "* | *" health "* | *" --check-config "* | *" --help "* | *" upgrade "*) command "$@"; return ;;
  esac
  local log
  case "$*" in
    "./telexecd --listen "*) printf '%s\n' "$PWD" "$*" >"$agents/without-policy" ;;
    "./telexecd --config "*) stop './telexecd --listen' ;;
  esac
  log=$(mktemp "$agents/XXXX")
  setsid "$@" >"$log" 2>&1 </dev/null &
  local agent=$!
  disown "$agent"
  until grep -q '^listening on' "$log"; do
    kill -0 "$agent" 2>/dev/null || { echo "$at: the agent ended: $*" >&2; cat "$log" >&2; exit 1; }
    sleep 0.1
  done
}
stop() { # BEGINNING-OF-THE-COMMAND
  pkill -f "^$1" || return 0
  while pgrep -f "^$1" >/dev/null; do sleep 0.1; done
}
# A reader is slower than an agent that restarts once the command that upgrades it has ended.
settled() { while pgrep -f telexecd-invoke >/dev/null; do sleep 0.1; done; }
# What comes after the rules of an example is not about them.
section() {
  pgrep -f '^./telexecd --config' >/dev/null || return 0
  stop './telexecd --config'
  local lines
  mapfile -t lines <"$agents/without-policy"
  (cd "${lines[0]}" && serve ${lines[1]})
}
# A reader gives forwards a terminal of their own too, and ends them before the next.
forward() {
  local log forwards
  log=$(mktemp)
  command telexec "$@" >"$log" &
  forwards=$!
  until [ -s "$log" ]; do
    kill -0 "$forwards" || { wait "$forwards"; return; }
    sleep 0.1
  done
  cat "$log"
  kill "$forwards"
  wait "$forwards" || true
}
telexecd() { serve telexecd "$@"; }
./telexecd() { serve ./telexecd "$@"; }
telexec() {
  case " $* " in
    *" -it "* | *" attach -i "*) "$PAGES" type telexec "$@" ;;
    " forward "*) forward "$@" ;;
    *) command telexec "$@" ;;
  esac
}
"""

HOSTS = ["web1", "web1.example.org", "web2", "web40", *(f"web{n:02}" for n in range(1, 33)), "db1", "db2", "build-7"]

PROGRAMS = {
    # a relative path is below the home of the other machine; the others are the same here
    "scp": r"""for to; do :; done
case ${to#*:} in /*) to=${to#*:} ;; *) to=/machines/${to%%:*}/${to#*:} ;; esac
options=${1%%[!-]*}
[ "$options" = - ] && shift
cp -p "${@:1:$#-1}" "$to" """,
    # the oldest is the keeper
    "systemctl": r"""agent() { pgrep -o -f '^([^ ]*/telexec-keeper .*|)(/usr/bin/)?telexecd --config'; }
case "$*" in
  *is-enabled*) echo enabled ;;
  *is-active*) agent >/dev/null || exit 3 ;;
  *--property=*) agent || echo 0 ;;
  *start*telexecd*)
    if agent >/dev/null; then kill "$(agent)"; while agent >/dev/null; do sleep 0.1; done; fi
    mkdir -p /run/telexec
    rm -f /run/telexecd.log # what the agent before it has said
    setsid telexecd --config /etc/telexec/telexecd.toml >/run/telexecd.log 2>&1 </dev/null &
    until grep -qs '^listening on' /run/telexecd.log; do sleep 0.1; done ;;
esac""",
    "systemd-run": """while [ "$1" != sh ]; do shift; done
setsid "$@" >/dev/null 2>&1 </dev/null &""",
    "journalctl": "echo 'app: started'",
}

CONFIG = """[defaults]
server_name = "web1"
[groups]
web = ["web[01-02]"]
db = ["db1", "db2"]
build = ["build-7"]
[targets.web1]
address = "web1:7443"
"""


def around(root):
    """Names of machines, all of which are the one agent of web1, and programs that would change more than this root."""
    (root / "etc/hosts").write_text("127.0.0.1 localhost laptop\n" + "".join(f"127.0.0.1 {host}\n" for host in HOSTS))
    for name, text in PROGRAMS.items():
        program = root / "usr/bin" / name
        program.unlink(missing_ok=True)
        program.write_text(f"#!/bin/bash\nset -e\n{text}\n")
        program.chmod(0o755)
    here = root / REPO.relative_to("/")
    (here / "hosts.ini").write_text("[app]\nweb1\nweb2\n")
    (here / "app.tar.gz").write_bytes(bytes(4096))
    (here / "index.html").write_text("hello\n")
    (here / "nginx.conf").write_text("events {}\n")
    (root / "etc/nginx").mkdir(exist_ok=True)
    for directory in ("var/log/nginx", "var/www"):
        (root / directory).mkdir(exist_ok=True)
    shutil.chown(root / "var/www", "www-data")
    (root / "var/log/nginx/access.log").write_text("127.0.0.1\n")
    (root / "root/Makefile").write_text("world:; sleep 3\n")
    (root / "root/health").write_text("ok\n")
    (root / "root/addresses").write_text("127.0.0.1\n127.0.0.2\n127.0.0.3\n")
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    (root / "etc/resolv.conf").write_text("nameserver 127.0.0.1\n")
    for machine in (root / "machines/web1", root / "machines/build-7"):
        machine.mkdir(parents=True)
    for kind, name in (("toml", "telexecd.toml"), ("cedar", "policy.cedar")):
        text = re.search(rf"```{kind}\n(.*?)```", (REPO / "README.md").read_text(), re.DOTALL)[1]
        (root / "machines/web1" / name).write_text(text)
    # the reader has not used telexec before, whoever runs this
    for used in ("root/.config/telexec", "root/.local/state/telexec", "etc/telexec"):
        shutil.rmtree(root / used, ignore_errors=True)
    config = root / "root/.config/telexec/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(CONFIG)


def blocks(page):
    """The blocks of a page for the shell: line number, section, the machine that the text before it names, lines."""
    number, start, lines, before, section = 0, None, [], "", ""
    for number, line in enumerate((REPO / page).read_text().splitlines(), 1):
        if start is None and line.startswith("```sh"):
            start, lines = number, []
        elif start is not None and line.startswith("```"):
            where = re.search(r"\bon web1:$", before, re.IGNORECASE)
            yield start, section, where and "web1", lines
            start = None
        elif start is not None:
            lines.append(line)
        elif line.strip():
            before = line
            if line.startswith("## "):
                section = line


def script(page):
    """The commands of a page as one program for bash."""
    parts, skipped, last = [], SKIPPED.get(page, {}), ""
    unused = set(skipped)
    for line, section, where, lines in blocks(page):
        kept = []
        if section != last:
            parts.append("section\n")
        last = section
        for text in lines:
            start = next((start for start in skipped if text.startswith(start)), None)
            unused.discard(start)
            kept.append(text if start is None else f"# {text}")
        place = f"/machines/{where}" if where else str(REPO)
        text = "\n".join(kept)
        # a variable or a directory of one machine is none of another
        text = f"(watched; cd {place}\n{text}\n)" if where else text
        parts.append(f"at='{page}:{line}'; echo \"== $at\"\n{text}\nwait\nsettled\n")
    if unused:
        sys.exit(f"{page}: nothing begins with: {', '.join(unused)}")
    return "".join(parts)


def services():
    """The application of the pages, and the names of its cluster."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.Popen(["python3", "-m", "http.server", "80", "--directory", "/root"], **quiet)
    names = [REPO / "tests/deploy/dns-server.py", "agents.default.svc", "/root/addresses"]
    resolver = subprocess.Popen(["python3", *names], stdout=subprocess.PIPE, text=True)
    resolver.stdout.readline()


def run(page):
    services()
    text = PRELUDE + f"cd {REPO}\n" + script(page)
    environment = {**os.environ, "PAGES": __file__}
    file = pathlib.Path("/run/page.sh")
    file.write_text(text)
    return subprocess.run(["timeout", "600", "bash", file], stdin=subprocess.DEVNULL, env=environment).returncode


def expected(code, command):
    """Whether a command may end with this code."""
    return any(command.startswith(start) and int(code) == of for start, of in EXIT_CODES.items())


def on_terminal(words):
    awaited, keys = next(value for start, value in KEYS.items() if start in " ".join(words))
    typed = False

    def read(descriptor):
        nonlocal typed
        data = os.read(descriptor, 4096)
        if not typed and awaited.encode() in data:
            os.write(descriptor, keys.encode())
            typed = True
        return data

    return os.waitstatus_to_exitcode(pty.spawn(words, read))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["around", root]:
            around(pathlib.Path(root))
        case ["run", page]:
            sys.exit(run(page))
        case ["expected", code, command]:
            sys.exit(not expected(code, command))
        case ["type", *words]:
            sys.exit(on_terminal(words))
        case _:
            sys.exit(__doc__)

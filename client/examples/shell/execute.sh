#!/usr/bin/env bash
# Runs a command on an agent as if it ran here: execute.sh TARGET TEXT [SECONDS]
#
# TARGET is unix:///PATH, or HOST:PORT with the files in TELEXEC_CERT, TELEXEC_KEY and TELEXEC_CA. Ctrl-C, or SECONDS
# later, ends the command and all that it started. Needs grpcurl (or GRPCURL, its path), jq and base64; no proto file,
# since the agent has reflection.
set -uo pipefail
[[ $# -eq 2 || $# -eq 3 ]] || { echo "usage: execute.sh TARGET TEXT [SECONDS]" >&2; exit 125; }
target=$1

if [[ $target == unix://* ]]; then
  # a path is not a valid :authority
  options=(-plaintext -unix -authority localhost) target=${target#unix://}
else
  options=(-cert "$TELEXEC_CERT" -key "$TELEXEC_KEY" -cacert "$TELEXEC_CA")
  [[ -z ${TELEXEC_SERVER_NAME:-} ]] || options+=(-servername "$TELEXEC_SERVER_NAME")
fi
# the agent keeps the deadline too: the command ends also if this program is gone by then
[[ $# -eq 2 ]] || options+=(-max-time "$3")

# Each message is a line here: what it is, and its bytes in base64, or how it ended.
events() {
  "${GRPCURL:-grpcurl}" "${options[@]}" -d "$(jq -n --arg text "$2" '{command: $text}')" \
    "$target" telexec.v1.ExecutionService/Execute |
    jq --unbuffered -r 'if .stdout then "stdout \(.stdout)"
      elif .stderr then "stderr \(.stderr)"
      elif .exited then "\(.exited.cause) \(.exited.exitCode // 0) \(.exited.signal // 0)"
      else empty end'
  echo "end ${PIPESTATUS[0]}"
}

# grpcurl gets the signal too, and its end is the cancel
trap 'exit 130' INT
code=255
while read -r kind what signal; do
  case $kind in
    stdout) base64 -d <<<"$what" ;;
    stderr) base64 -d <<<"$what" >&2 ;;
    EXIT_CAUSE_EXITED) code=$what ;;
    EXIT_CAUSE_TIMED_OUT | EXIT_CAUSE_DEADLINE_EXCEEDED) code=124 ;;
    EXIT_CAUSE_SIGNALED | EXIT_CAUSE_OUT_OF_MEMORY) ((signal == 0)) || code=$((128 + signal)) ;;
    # grpcurl's own: 64 and the code of the status, of which 4 is DEADLINE_EXCEEDED and 14 UNAVAILABLE
    end) case $what in 0 | 78 | 1) ;; 68) code=124 ;; *) code=125 ;; esac ;;
  esac
done < <(events "$@")
exit "$code"

# What the scripts of this folder share. Each is run as `bash SCRIPT CASE` with the programs TERRACE, CHECK_JSON, READ_PAGE,
# SAMPLE_PAGE and CHECK_TRACE in the environment; exit status 77 means skipped, after a line "...: Skipped" and one with the reason.
set -euo pipefail
export LC_ALL=C

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$(mktemp -d "${TMPDIR:-/tmp}/terrace-tools.XXXXXX")
on_exit() {
  local status=$?
  if [ -n "${mounted:-}" ]; then umount "$mounted" || true; fi
  rm -rf "$folder"
  exit "$status"
}
trap on_exit EXIT
cd "$folder"

export XDG_CACHE_HOME=$folder/cache     # what was measured of other folders is not taken up
export XDG_RUNTIME_DIR=$folder/runtime  # tests that run beside each other take no turns
mkdir nvme runtime
# Words in an order that a tiny model learns something of; always the same.
make_text() {
  awk 'BEGIN { srand(7); split("the water of a river runs down to the sea and comes back as rain", w, " ");
    for (i = 0; i < 4000; i++) printf "%s%s", w[1 + int(rand() * 14)], (i % 11 == 10 ? ".\n" : " ") }' >"$1"
}
make_text text.txt

model=(train --layers 2 --width 32 --heads 2 --context 32)
tiny=("${model[@]}" --data text.txt)
on_nvme=(--offload-param nvme --offload-optimizer nvme --nvme-path nvme)

fail() {
  echo "FAILED: $1" >&2
  for file in out err; do
    if [ -f "$file" ]; then echo "--- std$file" >&2; head -n -40 "$file" | grep -F "warning: " >&2 || true; tail -n 40 "$file" >&2; fi
  done
  exit 1
}
skip() {
  echo "$0: Skipped"
  echo "$1"
  exit 77
}

# run STATUS arguments...: runs the program, its output in the files out and err; it must end with STATUS.
run() {
  local expected=$1 status=0
  shift
  "$TERRACE" "$@" >out 2>err </dev/null || status=$?
  if [ "$status" -ne "$expected" ]; then fail "exit status $status, not $expected: terrace $*"; fi
}
says() { grep -qF -- "$1" err || fail "stderr lacks: $1"; }
says_not() { if grep -qF -- "$1" err; then fail "stderr has: $1"; fi; }
prints() { grep -qF -- "$1" out || fail "stdout lacks: $1"; }
nothing_on_stdout() { if [ -s out ]; then fail "stdout is not empty"; fi; }
nothing_left_in() { if [ -n "$(ls -A "$1")" ]; then fail "left in $1: $(ls -A "$1")"; fi; }
# The values of KEY in a log of JSON lines.
values() { "$CHECK_JSON" "$1" <"$2" || fail "$2 is not JSON lines"; }

case_name=${1:?which case?}

# Seconds that a case waits for what another process does. How fast a machine is and what else it does decides nothing:
# this is there so that what never happens is told by the case that waits for it.
patience=900

# wait_until WHAT COMMAND...: until it succeeds, as long as the process $job lives.
wait_until() {
  local what=$1 begun=$SECONDS
  shift
  until "$@"; do
    if [ $((SECONDS - begun)) -gt "$patience" ] || ! kill -0 "$job" 2>/dev/null; then fail "never: $what"; fi
    sleep 0.1
  done
}
# has_unlinked NAME: the process $job has a file of that name open, which is in no folder any more.
has_unlinked() { ls -l "/proc/$job/fd" 2>/dev/null | grep -q "$1.*deleted"; }
# signal_until_it_ends SIGNAL: sends it at least twice; what is stopped or busy may take two in a row for one.
signal_until_it_ends() {
  local begun=$SECONDS
  kill -"$1" "$job"
  sleep 0.2
  while kill -"$1" "$job" 2>/dev/null; do
    if [ $((SECONDS - begun)) -gt "$patience" ]; then fail "SIG$1 does not end it"; fi
    sleep 1
  done
}

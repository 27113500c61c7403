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
    if [ -f "$file" ]; then echo "--- std$file" >&2; tail -n 40 "$file" >&2; fi
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
prints() { grep -qF -- "$1" out || fail "stdout lacks: $1"; }
nothing_on_stdout() { if [ -s out ]; then fail "stdout is not empty"; fi; }
nothing_left_in() { if [ -n "$(ls -A "$1")" ]; then fail "left in $1: $(ls -A "$1")"; fi; }
# The values of KEY in a log of JSON lines.
values() { "$CHECK_JSON" "$1" <"$2" || fail "$2 is not JSON lines"; }

case_name=${1:?which case?}

# wait_until WHAT COMMAND...: until it succeeds, as long as the process $job lives.
wait_until() {
  local what=$1 tries=0
  shift
  until "$@"; do
    tries=$((tries + 1))
    if [ "$tries" -gt 600 ] || ! kill -0 "$job" 2>/dev/null; then fail "never: $what"; fi
    sleep 0.1
  done
}

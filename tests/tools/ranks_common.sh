# What the scripts of several ranks share; see common.sh.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# ranks STATUS N FLAGS...: as run, on N ranks.
ranks() {
  local wanted=$1 count=$2
  shift 2
  mpirun --version >version 2>/dev/null && grep -q "Open MPI" version || skip "there is no mpirun of Open MPI"
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout "$patience" \
    mpirun --oversubscribe -n "$count" "$TERRACE" "$@" >out 2>err && status=0 || status=$?
  if [ "$status" -ne "$wanted" ]; then fail "mpirun -n $count: status $status instead of $wanted"; fi
}

cat >stage2.json <<'JSON'
{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true},
 "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
JSON
cat >stage3.json <<'JSON'
{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true},
 "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "nvme"},
                       "offload_param": {"device": "nvme", "nvme_path": "nvme"}}}
JSON

# launch STATUS N FLAGS...: as ranks, by `terrace launch`, which leaves nothing in TMPDIR.
launch() {
  local wanted=$1 count=$2
  shift 2
  mkdir -p tmp
  TMPDIR=$folder/tmp run "$wanted" launch -n "$count" -- "$@"
  nothing_left_in tmp
}

# process_of RANK: the number of that rank's process, below $job.
process_of() {
  local process
  for process in $(below "$job"); do
    if grep -zqE "^(TERRACE_RANK|OMPI_COMM_WORLD_RANK|RANK)=$1\$" "/proc/$process/environ" 2>/dev/null; then
      echo "$process"
      return
    fi
  done
}
below() {
  local process
  for process in $(cat /proc/"$1"/task/*/children 2>/dev/null); do
    echo "$process"
    below "$process"
  done
}
# dies RANK SIGNAL: the rank of the run $job does, and then nothing of the run is left: the others, which would train or
# wait for ever, end as well.
dies() {
  local process ranks began
  ranks=$(below "$job")
  process=$(process_of "$1")
  [ -n "$process" ] || fail "there is no rank $1"
  began=$SECONDS
  kill -"$2" "$process"
  status=0
  wait "$job" || status=$?
  # What a launcher does not wait for may take a moment longer than itself.
  for process in $ranks; do
    while [ -e "/proc/$process" ]; do
      if [ $((SECONDS - began)) -gt "$patience" ]; then fail "process $process is left"; fi
      sleep 0.05
    done
  done
}
# one_says TEXT: of all ranks, one has told of a death, in these words.
one_says() {
  if [ "$(grep -cw died err)" -ne 1 ]; then fail "the death is not told once"; fi
  says "$1"
}

has_two_steps() { [ -e live.jsonl ] && [ "$(grep -cF '"event": "step"' live.jsonl)" -ge 2 ]; }
ends_with() {
  local status=0
  wait "$job" || status=$?
  if [ "$status" -ne "$1" ]; then fail "exit status $status, not $1"; fi
  nothing_left_in tmp
}

# needs_hosts: where a host can be a network namespace with a name of its own (bench/on_hosts).
needs_hosts() {
  [ -n "$(type -P ip)" ] || skip "there is no ip(8)"
  unshare --net --uts --mount true 2>reason || skip "namespaces are not allowed: $(cat reason)"
}
# on_hosts HOSTS RANKS COMMAND...
on_hosts() {
  local hosts=$1 ranks=$2
  shift 2
  timeout "$patience" "$tree/bench/on_hosts" "$folder" "$hosts" "$ranks" -- "$@" </dev/null
}

# What the scripts of several ranks share; see common.sh.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# ranks STATUS N FLAGS...: as run, on N ranks.
ranks() {
  local wanted=$1 count=$2
  shift 2
  mpirun --version >version 2>/dev/null && grep -q "Open MPI" version || skip "there is no mpirun of Open MPI"
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 60 \
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

# --- The cluster: a scheduler on this first node, workers on all of them -----------------------------------------------
set -u
(umask 077 && mkdir -p "$FOLDER") || exit 1
scheduler_file=$FOLDER/scheduler.json
rm -f "$scheduler_file" # of a run before a requeue

export DASK_DISTRIBUTED__SCHEDULER__WORK_STEALING=False # a chunk stays where it was read
export DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL=${DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL:-120s} # then a silent node is given up
export DASK_DISTRIBUTED__WORKER__MEMORY__TARGET=False DASK_DISTRIBUTED__WORKER__MEMORY__SPILL=False
# A chunk's buffers are the next one's (cluster/local.py says more).
export MALLOC_TRIM_THRESHOLD_=1073741824 MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_ARENA_MAX=1 MIMALLOC_PURGE_DELAY=10000
export DASK_DISTRIBUTED__DASHBOARD__LINK='http://127.0.0.1:{port}/status' # as a tunnel makes it
export UCX_WARN_UNUSED_ENV_VARS=n

settings=$(python -P -m cluster.slurm.prepare "$PROTOCOL" "$SLURM_JOB_NUM_NODES" "$TLS" "$FOLDER/tls") || exit 2
eval "$settings"
where=(--protocol "$protocol")
if [ -n "$INTERFACE" ]; then where+=(--interface "$INTERFACE"); fi

# The dashboard has no login, so it listens on loopback only; so does what workers have of it.
dask scheduler "${where[@]}" --port 0 --scheduler-file "$scheduler_file" --dashboard-address 127.0.0.1:8787 \
  --preload cluster.dashboard &
scheduler=$!

if [ "$GPUS_PER_NODE" -gt 0 ]; then
  worker=(dask cuda worker --nthreads 4) # one worker process for each GPU
else
  worker=(dask worker --nworkers 1 --nthreads 4)
fi
# A node that fails takes its own worker only. --no-kill: nor does it take the step.
srun --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --no-kill --wait=0 --kill-on-bad-exit=0 \
  "${worker[@]}" "${where[@]}" --scheduler-file "$scheduler_file" --death-timeout 120 \
  --no-dashboard --dashboard-address 127.0.0.1:0 \
  --local-directory "${TMPDIR:-/tmp}" &
workers=$!

end_cluster() {
  kill "$workers" "$scheduler" 2> /dev/null
  rm -rf "$FOLDER"
  wait "$workers" "$scheduler"
}

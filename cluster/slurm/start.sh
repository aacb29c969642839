# --- The cluster: a scheduler on this first node, workers on all of them -----------------------------------------------
set -u
export PYTHONSAFEPATH=1 # no process of the job imports modules from the folder where sbatch was called
# Get Dask's settings (cluster/settings.py) and the protocol, and make the job's folder, which only this user can read.
settings=$(python -P -m broadsheet.cluster.slurm.prepare "$PROTOCOL" "$SLURM_JOB_NUM_NODES" "$TLS" "$FOLDER") || exit 2
eval "$settings"
scheduler_file=$FOLDER/scheduler.json
rm -f "$scheduler_file" # that of an earlier run, after a requeue
where=(--protocol "$protocol")
if [ -n "$INTERFACE" ]; then where+=(--interface "$INTERFACE"); fi

# The dashboard listens on loopback only, and its link has a token. The scheduler finds the token in its environment,
# because other users of the node can see command lines.
dask scheduler "${where[@]}" --port 0 --scheduler-file "$scheduler_file" --dashboard-address 127.0.0.1:8787 \
  --preload broadsheet.cluster.dashboard &
scheduler=$!

starts=1 # how many times each node starts the command for its workers
if [ "$GPUS_PER_NODE" -gt 0 ]; then
  # One worker process for each GPU. dask-cuda ignores Dask's setting of preloads, so they are arguments.
  worker=(dask cuda worker ${preloads[@]+"${preloads[@]}"})
  if [ "$WORKERS_PER_GPU" -gt 1 ]; then
    # By default, each start of the command divides the whole node's memory among its own workers.
    starts=$WORKERS_PER_GPU
    worker+=(--memory-limit "$(python -c "print(1 / ($WORKERS_PER_GPU * $GPUS_PER_NODE))")")
  fi
else
  worker=(dask worker --nworkers 1)
fi
# On each node, a shell makes a folder for the workers' temporary files on the node's disk, and starts the workers. srun
# may signal only the shell, so the shell passes a signal on. The signal ends its `wait`, so it waits in a loop.
in_scratch='
scratch=$(mktemp -d "${TMPDIR:-/tmp}/broadsheet-XXXXXXXX") || exit 1
starts=$1
shift
for _ in $(seq "$starts"); do
  "$@" --local-directory "$scratch" & # each worker makes a folder of its own in it
done
workers=$(jobs -p)
trap "kill $(echo $workers) 2> /dev/null" TERM INT
code=0
for worker in $workers; do
  while kill -0 "$worker" 2> /dev/null; do wait "$worker"; done
  wait "$worker" || code=$?
done
rm -rf "$scratch"
exit $code'
# A node that fails ends only its own workers (--kill-on-bad-exit=0), and the others go on without it (--no-kill).
srun --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --no-kill --wait=0 --kill-on-bad-exit=0 \
  bash -c "$in_scratch" worker "$starts" "${worker[@]}" "${where[@]}" --scheduler-file "$scheduler_file" \
  "${worker_options[@]}" &
workers=$!

graceful=1 # empty if Slurm itself ends the job, and so kills all processes soon
end_cluster() {
  # Ask the workers to end by themselves, so that Slurm reports no failed step. Kill those that have not ended after ten
  # seconds.
  if [ -n "$graceful" ] && [ -s "$scheduler_file" ] && kill -0 "$scheduler" 2> /dev/null; then
    timeout 15 python -P -m broadsheet.cluster.slurm.finish "$scheduler_file" 2> /dev/null
    for _ in $(seq 40); do
      kill -0 "$workers" 2> /dev/null || break
      sleep 0.25
    done
  fi
  kill "$workers" 2> /dev/null
  rm -rf "$FOLDER"
  # The scheduler ends last: a worker that loses it while closing may hang, until Dask kills it after 8 s.
  wait "$workers"
  kill "$scheduler" 2> /dev/null && wait "$scheduler"
}

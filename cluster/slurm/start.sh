# --- The cluster: a scheduler on this first node, workers on all of them -----------------------------------------------
set -u
export PYTHONSAFEPATH=1 # no process of the job looks for modules in the folder that it was submitted from
# Dask's settings (cluster/settings.py), the protocol, and the job's folder, which is this user's alone.
settings=$(python -P -m broadsheet.cluster.slurm.prepare "$PROTOCOL" "$SLURM_JOB_NUM_NODES" "$TLS" "$FOLDER") || exit 2
eval "$settings"
scheduler_file=$FOLDER/scheduler.json
rm -f "$scheduler_file" # of a run before a requeue
where=(--protocol "$protocol")
if [ -n "$INTERFACE" ]; then where+=(--interface "$INTERFACE"); fi

# The dashboard listens on loopback only, and has a token in its link, in the environment: others see command lines.
dask scheduler "${where[@]}" --port 0 --scheduler-file "$scheduler_file" --dashboard-address 127.0.0.1:8787 \
  --preload broadsheet.cluster.dashboard &
scheduler=$!

starts=1 # how many times each node starts the command for its workers
if [ "$GPUS_PER_NODE" -gt 0 ]; then
  # One worker process for each GPU, to which Dask's own setting of preloads does not come.
  worker=(dask cuda worker ${preloads[@]+"${preloads[@]}"})
  if [ "$WORKERS_PER_GPU" -gt 1 ]; then
    # Started twice, it would have each of the workers take the memory of both.
    starts=$WORKERS_PER_GPU
    worker+=(--memory-limit "$(python -c "print(1 / ($WORKERS_PER_GPU * $GPUS_PER_NODE))")")
  fi
else
  worker=(dask worker --nworkers 1)
fi
# A folder of its own on each node's disk, for the temporary files of the workers. srun signals the shell alone or both,
# so the shell passes on what it gets, and waits again: the signal ends the first wait.
in_scratch='
scratch=$(mktemp -d "${TMPDIR:-/tmp}/broadsheet-XXXXXXXX") || exit 1
starts=$1
shift
for _ in $(seq "$starts"); do
  "$@" --local-directory "$scratch" & # in which each worker makes a folder of its own
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
# A node that fails takes its own worker only. --no-kill: nor does it take the step.
srun --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --no-kill --wait=0 --kill-on-bad-exit=0 \
  bash -c "$in_scratch" worker "$starts" "${worker[@]}" "${where[@]}" --scheduler-file "$scheduler_file" \
  "${worker_options[@]}" &
workers=$!

graceful=1 # empty where Slurm itself ends the job: it soon kills what is left
end_cluster() {
  # Asked to, workers end by themselves, and Slurm has nothing to report; those that have not within ten seconds are ended.
  if [ -n "$graceful" ] && [ -s "$scheduler_file" ] && kill -0 "$scheduler" 2> /dev/null; then
    timeout 15 python -P -m broadsheet.cluster.slurm.finish "$scheduler_file" 2> /dev/null
    for _ in $(seq 40); do
      kill -0 "$workers" 2> /dev/null || break
      sleep 0.25
    done
  fi
  kill "$workers" 2> /dev/null
  rm -rf "$FOLDER"
  wait "$workers" # one that loses its scheduler while it closes may hang, and Dask waits 8 s before it is killed
  kill "$scheduler" 2> /dev/null && wait "$scheduler"
}

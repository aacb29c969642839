# --- The cluster: a scheduler on this first node, workers on all of them -----------------------------------------------
set -u
(umask 077 && mkdir -p "$FOLDER") || exit 1
scheduler_file=$FOLDER/scheduler.json
rm -f "$scheduler_file" # of a run before a requeue

# Dask's settings (cluster/settings.py) and the protocol.
settings=$(python -P -m cluster.slurm.prepare "$PROTOCOL" "$SLURM_JOB_NUM_NODES" "$TLS" "$FOLDER/tls") || exit 2
eval "$settings"
where=(--protocol "$protocol")
if [ -n "$INTERFACE" ]; then where+=(--interface "$INTERFACE"); fi

# The dashboard has no login, so it listens on loopback only.
dask scheduler "${where[@]}" --port 0 --scheduler-file "$scheduler_file" --dashboard-address 127.0.0.1:8787 \
  --preload cluster.dashboard &
scheduler=$!

if [ "$GPUS_PER_NODE" -gt 0 ]; then
  worker=(dask cuda worker) # one worker process for each GPU
else
  worker=(dask worker --nworkers 1)
fi
# A node that fails takes its own worker only. --no-kill: nor does it take the step.
srun --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --no-kill --wait=0 --kill-on-bad-exit=0 \
  "${worker[@]}" "${where[@]}" --scheduler-file "$scheduler_file" "${worker_options[@]}" \
  --local-directory "${TMPDIR:-/tmp}" &
workers=$!

end_cluster() {
  kill "$workers" 2> /dev/null
  rm -rf "$FOLDER"
  wait "$workers" # one that loses its scheduler while it closes may hang, and Dask waits 8 s before it is killed
  kill "$scheduler" 2> /dev/null && wait "$scheduler"
}

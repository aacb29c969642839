#!/usr/bin/env bash
# A share of the files for each task of a Slurm array, without a cluster of Dask: tasks start as nodes become free.
#
#   export INPUT='/shared/news/*.parquet' OUTPUT=/shared/you/labels
#   array=$(sbatch --parsable examples/shards/slurm_array.sh --max-unread 1%)
#   sbatch --dependency="afterok:$array" --kill-on-invalid-dep=yes \
#     --wrap 'broadsheet merge /shared/you/labels/share-* -o /shared/you/merged'
#
# A share with more unread files than --max-unread allows fails, and Slurm then cancels the merge.
# There are as many shares as the highest number of the array, or SHARES. To run some of 64 again, say how many they are:
#
#   SHARES=64 INPUT='/shared/news/*.parquet' OUTPUT=/shared/you/labels sbatch --array=1,2 examples/shards/slurm_array.sh
#
#SBATCH --job-name=broadsheet-shares
#SBATCH --array=1-64
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@60
# A minute before the time limit the task drops the chunks that it has not committed, and queues again. It does so on
# preemption too, if the site has PreemptParameters=send_user_signal. A task that is killed without notice loses no more.
set -uo pipefail
number=$SLURM_ARRAY_TASK_ID stopped=

trap 'stopped=1; kill -TERM "$job"' TERM
broadsheet classify "${INPUT:?the input}" -o "${OUTPUT:?a folder for all shares}/share-$number" \
  --shard "$number/${SHARES:-$SLURM_ARRAY_TASK_MAX}" --resume --quiet "$@" &
job=$!
wait "$job"
code=$?
if [ -n "$stopped" ]; then
  wait "$job"
  scontrol requeue "${SLURM_ARRAY_JOB_ID}_$number"
fi
exit "$code"

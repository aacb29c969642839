# --- The job: `broadsheet classify`. If the time limit is too short, a later run continues it ---
trap end_cluster EXIT
echo "to reach the dashboard: ssh -N -L 8787:127.0.0.1:8787 -J LOGIN_NODE $(hostname)" \
  "(if its link names another port, put that for 8787)"
broadsheet classify "${ARGUMENTS[@]}" --scheduler-file "$scheduler_file" &
client=$!

# USR1 comes before the time limit, and on preemption where the site sends it: take no more chunks, finish those in
# flight, requeue. TERM: Slurm itself ends the job, and may requeue it.
requeue=0
stop() {
  kill -USR1 "$client" 2> /dev/null
  # If chunks in flight take too long, end the client while there is time left to requeue the job.
  (sleep "$((STOP_BEFORE * 3 / 4))" && kill -TERM "$client") 2> /dev/null &
}
trap 'requeue=1; stop' USR1
trap 'graceful=; stop' TERM

wait "$client"
while kill -0 "$client" 2> /dev/null; do wait "$client"; done # a signal ends a wait early
wait "$client"
code=$?

case $code in
  0 | 2 | 3) ;; # done, wrong usage, more unread than --max-unread and the like allow: another run would not change it
  *)
    if [ "$requeue" = 1 ]; then
      echo "broadsheet: requeued; the next run continues where this one stopped" >&2
      end_cluster
      scontrol requeue "$SLURM_JOB_ID" && sleep 60 # Slurm ends this run meanwhile
    fi
    ;;
esac
exit $code

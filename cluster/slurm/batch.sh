# --- The job: classify, which a later run continues where the time limit is too short ---
trap end_cluster EXIT
echo "to reach the dashboard: ssh -N -L 8787:127.0.0.1:8787 -J LOGIN_NODE $(hostname) (8787: or the port it names)"
broadsheet classify "${ARGUMENTS[@]}" --scheduler-file "$scheduler_file" &
client=$!

# USR1 comes before the time limit, and on preemption where the site sends it: take no more chunks, finish those in
# flight, requeue. TERM: Slurm itself ends the job, and may requeue it.
requeue=0
stop() {
  kill -USR1 "$client" 2> /dev/null
  (sleep "$((STOP_BEFORE * 3 / 4))" && kill -TERM "$client") 2> /dev/null & # not waiting for the limit itself
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

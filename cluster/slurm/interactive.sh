# --- For notebooks: print how to connect, and keep the workers until the job is cancelled or its time limit ------------
trap end_cluster EXIT
trap 'graceful=; exit' TERM USR1
until [ -s "$scheduler_file" ]; do
  kill -0 "$scheduler" || exit 1
  sleep 0.5
done
port=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["services"]["dashboard"])' "$scheduler_file")
cat << END
In a notebook on this cluster:   connect(scheduler_file="$scheduler_file")
From a script:                   broadsheet classify … --scheduler-file $scheduler_file
Dashboard, from your own machine: ssh -N -L 8787:127.0.0.1:$port -J LOGIN_NODE $(hostname)
                                  then http://127.0.0.1:8787/$dashboard_token/broadsheet
To end it:                       scancel $SLURM_JOB_ID
END
wait "$workers"

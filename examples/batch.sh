#!/usr/bin/env bash
# A nightly job: label the files that are new, in a way that a scheduler (cron, systemd, Airflow) can act on.
#
#   examples/batch.sh 'news/*.parquet' labels
#
# The summary goes to stdout as one line of JSON, progress and errors to stderr. Exit codes are the command's:
#   0 done; the summary counts quarantined rows                  3 a part of the input has no labels; the rest is done
#   1 interrupted, or the disk, network or cluster failed        4 stopped early by SIGUSR1
#   2 wrong usage: another run will not help
set -uo pipefail
input=${1:?give the input: a file, folder, glob or URL}
output=${2:?give the output folder}

for attempt in 1 2 3; do
  broadsheet classify "$input" -o "$output" --text-column title --text-column text --update --json
  code=$?
  case $code in
    1 | 4) echo "attempt $attempt ended with $code: continuing where it stopped" >&2 ;;
    *) break ;;
  esac
done
[ "$code" -ne 0 ] || broadsheet verify "$output" >&2 || code=$?
exit "$code"

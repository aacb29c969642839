#!/usr/bin/env bash
# A server as a Slurm job, or in a terminal: it makes its tokens, starts, and is asked once.
#
#   examples/serve.sh                                     # here, until Ctrl-C
#   sbatch --gpus=1 --signal=TERM@60 examples/serve.sh    # 60 s before its time limit, the job drains
#   examples/serve.sh --host 0.0.0.0 --tls-certificate host.pem --model mine=mine.safetensors
#
# The tokens are in $HOME/.config/broadsheet: `token` for clients, `admin` for reloads. Exit code 0: every request was
# answered.
set -euo pipefail
port=${PORT:-8000}
folder=${XDG_CONFIG_HOME:-$HOME/.config}/broadsheet
mkdir -p -m 700 "$folder"
for name in token admin; do
  [ -s "$folder/$name" ] || (umask 077 && openssl rand -hex 32 > "$folder/$name")
done

broadsheet serve --port "$port" --token-file "$folder/token" --admin-token-file "$folder/admin" \
  --log-format json --drain-s 50 "$@" &
server=$!
trap 'kill -TERM $server' TERM INT
trap 'kill -HUP $server' HUP  # loads the models' files again

scheme=http
[[ " $* " != *" --tls-certificate "* ]] || scheme=https
until curl -fsk "$scheme://localhost:$port/readyz" > /dev/null; do
  kill -0 $server 2> /dev/null || wait $server
  sleep 0.2
done
curl -fsk "$scheme://localhost:$port/v1/classify" -H "Authorization: Bearer $(cat "$folder/token")" \
  -H 'content-type: application/json' -d '{"texts": ["Oil prices fell below $40 as OPEC raised output."]}'
echo

while kill -0 $server 2> /dev/null; do
  wait $server && code=0 || code=$?  # a signal that a trap takes ends this too
done
exit "$code"

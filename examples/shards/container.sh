#!/usr/bin/env bash
# A share of the files in a container of Apptainer or Enroot, made of the image of the Containerfile:
#
#   apptainer build broadsheet.sif docker-daemon://broadsheet:latest    # or: enroot import dockerd://broadsheet:latest
#   RUNTIME=apptainer IMAGE=broadsheet.sif examples/shards/container.sh 3/64 /shared/news /shared/you/labels \
#     --max-unread 1%
#
# SIGTERM reaches the command: both run it in place of themselves. Its kernels are kept in the user's cache.
set -euo pipefail
shard=${1:?the share: I/N} input=${2:?the input} output=${3:?a folder for all shares}
command=(broadsheet classify "$input" -o "$output/share-${shard%/*}" --shard "$shard" --resume --quiet "${@:4}")
folder=$(cd "$(dirname "$input")" && pwd)

case ${RUNTIME:-apptainer} in
  apptainer)
    exec apptainer exec --nv --bind "$folder:$folder:ro" --bind "$output" "${IMAGE:?the image}" "${command[@]}"
    ;;
  enroot)
    [ -d "$HOME/.local/share/enroot/broadsheet" ] || enroot create --name broadsheet "${IMAGE:?the image}"
    exec enroot start --mount "$folder:$folder" --mount "$output:$output" broadsheet "${command[@]:1}"
    ;;
  *)
    echo "RUNTIME is $RUNTIME: give apptainer or enroot" >&2
    exit 2
    ;;
esac

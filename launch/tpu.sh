#!/usr/bin/env bash
# Trains on all hosts of a TPU VM or pod slice, from any machine with gcloud.
#
#   TPU_NAME=my-v5e TPU_ZONE=us-west4-a launch/tpu.sh --config wmt14:en_de_big \
#     --workdir /mnt/runs/big
#
# The package must be installed on every host, and --workdir must be a folder that all
# hosts share (Filestore, a mounted bucket) or an address such as gs://bucket/run. The hosts
# find each other through the TPU's metadata. With DRY_RUN=1 the command is printed, not
# run. On the single host of a TPU VM, `python -m transformer_jax.train …` is enough.
set -euo pipefail

: "${TPU_NAME:?set TPU_NAME to the name of the TPU}"
: "${TPU_ZONE:?set TPU_ZONE to its zone}"

arguments="$(printf '%q ' "$@")--config.mesh.platform=tpu"
# The training continues after the connection closes; its output is in train.log on each host.
train="nohup python -m transformer_jax.train $arguments > train.log 2>&1 < /dev/null &"
command=(gcloud compute tpus tpu-vm ssh "$TPU_NAME" "--zone=$TPU_ZONE" --worker=all
  "--command=$train")

if [[ ${DRY_RUN:-0} == 1 ]]; then
  printf '%q ' "${command[@]}"
  echo
else
  exec "${command[@]}"
fi

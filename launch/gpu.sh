#!/usr/bin/env bash
# Trains on all GPUs of this machine, or on those of CUDA_VISIBLE_DEVICES.
#
#   launch/gpu.sh --config wmt14 --workdir runs/base
#
# One process uses all GPUs. The script refuses a machine whose GPUs JAX cannot use,
# because a run that silently falls back to the CPU would only be noticed in the morning.
set -euo pipefail

export JAX_PLATFORMS=cuda
# By default JAX reserves three quarters of each GPU's memory; a larger share wastes less.
export XLA_PYTHON_CLIENT_MEM_FRACTION="${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.92}"

exec python -m transformer_jax.train "$@" --config.mesh.platform=gpu

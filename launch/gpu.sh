#!/usr/bin/env bash
# Trains on all GPUs of this machine, or on those of CUDA_VISIBLE_DEVICES.
#
#   launch/gpu.sh --config wmt14 --workdir runs/base
#
# One process uses them all. A machine whose GPUs JAX cannot use is refused: a run that
# falls back to the CPU by itself would only be noticed in the morning.
set -euo pipefail

export JAX_PLATFORMS=cuda
# JAX takes three quarters of the memory of each GPU at once; more leaves less unused.
export XLA_PYTHON_CLIENT_MEM_FRACTION="${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.92}"

exec python -m transformer_jax.train "$@" --config.mesh.platform=gpu

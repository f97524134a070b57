#!/usr/bin/env bash
# Trains on this machine's CPU as if it were eight devices, to try a mesh, not for speed.
#
#   launch/laptop.sh --config quickstart --workdir runs/mesh \
#     --config.mesh.data=2 --config.mesh.fsdp=2 --config.mesh.tensor=2
set -euo pipefail

export JAX_PLATFORMS=cpu
export JAX_NUM_CPU_DEVICES=8
# With fewer threads than devices, collectives can deadlock ...
export PJRT_NPROC=16
# ... and if one hangs after all, this ends the run, where jaxlib knows the flag.
limit=--xla_cpu_collective_call_terminate_timeout_seconds=120
if XLA_FLAGS=$limit python -c 'import jax; jax.devices()' 2>/dev/null; then
  export XLA_FLAGS="${XLA_FLAGS:-} $limit"
fi

exec python -m transformer_jax.train "$@"

#!/usr/bin/env bash
# Trains with two processes on this machine's CPU: a miniature cluster for tests.
#
#   launch/two_processes.sh --config quickstart --workdir runs/two
#
# LOCAL_DEVICES (2) is the number of devices per process. SIGTERM or Ctrl-C lets both
# processes save and exit with 75; a second one kills them. The exit code is that of the
# process that failed first, otherwise 75 if they were preempted, otherwise 0.
set -euo pipefail

export JAX_PLATFORMS=cpu
export JAX_NUM_CPU_DEVICES="${LOCAL_DEVICES:-2}"
# See laptop.sh.
export PJRT_NPROC=16
limit=--xla_cpu_collective_call_terminate_timeout_seconds=120
if XLA_FLAGS=$limit python -c 'import jax; jax.devices()' 2>/dev/null; then
  export XLA_FLAGS="${XLA_FLAGS:-} $limit"
fi
export NUM_PROCESSES=2
find_port='import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'
COORDINATOR_ADDRESS="localhost:$(python -c "$find_port")"
export COORDINATOR_ADDRESS

PROCESS_ID=0 python -m transformer_jax.train "$@" &
pids=($!)
PROCESS_ID=1 python -m transformer_jax.train "$@" \
  > >(while IFS= read -r line; do printf '[process 1] %s\n' "$line"; done) 2>&1 &
pids+=($!)

signals=0
forward() {
  signals=$((signals + 1))
  if ((signals == 1)); then send TERM; else send KILL; fi
}
send() { kill -s "$1" "${pids[@]}" 2>/dev/null || true; }
trap forward TERM INT
trap 'send KILL' EXIT # nothing outlives this script

# Poll, because the bash of macOS has no `wait -n`.
code=0
patience=50 # tenths of a second for the other process to end by itself after a failure
running=(0 1)
while ((${#running[@]})); do
  sleep 0.1 || true
  left=()
  for i in "${running[@]}"; do
    if kill -0 "${pids[$i]}" 2>/dev/null; then
      left+=("$i")
      continue
    fi
    status=0
    wait "${pids[$i]}" || status=$?
    # The second process fails because the first did: only the first exit code tells why.
    if ((status != 0 && (code == 0 || code == 75))); then code=$status; fi
  done
  running=(${left[@]+"${left[@]}"})
  if ((code != 0 && code != 75)) && ((patience-- == 0)); then
    # Not TERM: a process of a cluster takes that for a preemption, and would wait for
    # the one that is gone.
    send KILL
  fi
done
exit "$code"

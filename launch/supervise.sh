#!/usr/bin/env bash
# Trains, and starts the same command again if it ends too early.
#
#   launch/supervise.sh --config quickstart --workdir runs/quickstart
#
# It stops after exit code 0 (done) or 2 (a mistake). After 75 (preempted and saved, or
# another process lost) it restarts at once; after a crash or a hang (124) it waits 5, 10,
# 20, … 300 seconds. After MAX_RESTARTS (5) starts in a row without a new step it gives up
# with the last exit code. On several hosts, run it on each of them.
set -euo pipefail

max_restarts="${MAX_RESTARTS:-5}"
delay_unit="${RESTART_DELAY:-5}" # seconds before the first restart after a crash
workdir=""
for ((i = 1; i <= $#; i++)); do
  case "${!i}" in
    --workdir=* | -workdir=*) workdir="${!i#*=}" ;;
    --workdir | -workdir) next=$((i + 1)) && workdir="${!next:-}" ;;
  esac
done

# Print the newest step in the run directory, saved or logged.
newest_step() {
  {
    for folder in "$workdir"/checkpoints/[0-9]* "$workdir"/preempted/[0-9]*; do
      basename "$folder"
    done
    tail -n 1 "$workdir/metrics.jsonl" 2>/dev/null | sed 's/.*"step": *\([0-9]*\).*/\1/'
    echo 0
  } | grep -E '^[0-9]+$' | sort -n | tail -n 1
}

child=0
stopping=0
forward() { # the training saves, exits with 75, and is not restarted
  stopping=1
  if ((child)); then kill -s TERM "$child" 2>/dev/null || true; fi
}
trap forward TERM INT

failures=0
crashes=0
before="$(newest_step)"
while true; do
  python -m transformer_jax.train "$@" &
  child=$!
  code=0
  wait "$child" || code=$?
  while kill -0 "$child" 2>/dev/null; do # a signal ended `wait`, not the training
    code=0
    wait "$child" || code=$?
  done
  child=0
  if ((code == 0 || code == 2 || stopping)); then exit "$code"; fi

  after="$(newest_step)"
  failures=$((after > before ? 0 : failures + 1))
  crashes=$((code == 75 ? 0 : after > before ? 1 : crashes + 1))
  before="$after"
  if ((failures >= max_restarts)); then
    echo "supervise: $failures starts brought no step beyond $after; gave up" >&2
    exit "$code"
  fi
  delay=$((crashes ? delay_unit << (crashes > 6 ? 6 : crashes - 1) : 0))
  delay=$((delay > 300 ? 300 : delay))
  echo "supervise: exit code $code at step $after; starts again in $delay s" >&2
  sleep "$delay" &
  wait $! || true # signals are handled during the sleep
  if ((stopping)); then exit "$code"; fi
done

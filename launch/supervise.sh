#!/usr/bin/env bash
# Trains, and starts the same command again when it ends before its time.
#
#   launch/supervise.sh --config quickstart --workdir runs/quickstart
#
# Exit code 0 (done) and 2 (a mistake) end it. 75 (preempted and saved, or another process
# lost) starts again at once; a crash or a hang (124) after 5, 10, 20, … 300 seconds. After
# MAX_RESTARTS (5) starts in a row that brought no new step it gives up, with the last code.
# On several hosts run it on each of them.
set -euo pipefail

max_restarts="${MAX_RESTARTS:-5}"
delay_unit="${RESTART_DELAY:-5}" # seconds before the first start after a crash
workdir=""
for ((i = 1; i <= $#; i++)); do
  case "${!i}" in
    --workdir=* | -workdir=*) workdir="${!i#*=}" ;;
    --workdir | -workdir) next=$((i + 1)) && workdir="${!next:-}" ;;
  esac
done

# The newest step that the run directory knows of: saved, or logged.
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
forward() { # the training saves, ends with 75, and is not started again
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
  while kill -0 "$child" 2>/dev/null; do # a signal has ended `wait`, not the training
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
  wait $! || true # a signal is heeded while it sleeps
  if ((stopping)); then exit "$code"; fi
done

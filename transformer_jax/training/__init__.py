"""The parts of a training run: data, feed, compilation, evaluation, log, stopping."""

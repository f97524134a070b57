"""Train: prepare the data, feed, compile, evaluate, log, and stop when asked to."""

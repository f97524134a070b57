"""Compare runs, and groups of runs."""

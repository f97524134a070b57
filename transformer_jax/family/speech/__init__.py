"""Speech: see README.md."""

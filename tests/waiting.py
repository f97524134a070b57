"""Wait for what another thread or process does."""

import time


def wait_for(condition, seconds=120):
    """Wait until a condition holds, or fail after so many seconds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"nothing happened within {seconds} seconds"
        time.sleep(0.02)

"""The cache on disk: an entry is built once, whoever asks for it."""

import fcntl
import logging
import threading

from transformer_jax.data import cache


def test_who_waits_for_another_process_says_so_and_builds_nothing(tmp_path, caplog):
    place = tmp_path / "entry"
    waits = threading.Event()

    class Tell(logging.Handler):
        def emit(self, record):
            waits.set()

    cache.logger.addHandler(tell := Tell())
    try:
        with (tmp_path / ".entry.lock").open("a") as lock, caplog.at_level("INFO"):
            fcntl.flock(lock, fcntl.LOCK_EX)  # as another process does
            built = []
            waiter = threading.Thread(
                target=cache.build_once, args=(place, built.append)
            )
            waiter.start()
            assert waits.wait(60)
            place.mkdir()
            fcntl.flock(lock, fcntl.LOCK_UN)
            waiter.join(60)
    finally:
        cache.logger.removeHandler(tell)
    assert "waiting    another process builds the same data" in caplog.messages
    assert place.is_dir() and not built and not waiter.is_alive()

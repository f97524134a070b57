"""The watchdog ends what hangs, and nothing else."""

import queue
import signal
import subprocess
import sys
import time

import pytest

from transformer_jax.training.watchdog import Watchdog


@pytest.fixture
def ended():
    return queue.Queue()


@pytest.fixture
def watchdog(ended):
    found = Watchdog(end=ended.put)
    yield found
    found.close()


def test_a_phase_that_does_not_end_is_named(watchdog, ended):
    with watchdog.phase("saving step 7", 0.2):
        line = ended.get(timeout=30)
    assert "saving step 7 did not end within 0 s" in line


def test_a_phase_of_any_time_is_not_ended(watchdog, ended):
    with watchdog.phase("waiting", 0), pytest.raises(queue.Empty):
        ended.get(timeout=0.5)


def test_the_time_of_a_phase_stands_still_in_another(watchdog, ended):
    with watchdog.phase("outer", 1.5):
        with watchdog.phase("inner", 60), pytest.raises(queue.Empty):
            ended.get(timeout=2.0)
        assert ended.empty()
        assert "outer" in ended.get(timeout=30)


def test_a_beat_begins_the_time_anew(watchdog, ended):
    with watchdog.phase("an evaluation", 1.0):
        for _ in range(10):
            time.sleep(0.15)
            watchdog.beat()
        assert ended.empty()
        assert "an evaluation" in ended.get(timeout=30)


def test_a_step_may_be_as_slow_as_those_before_it(watchdog, ended):
    def batches():
        yield 1, "a"
        yield 2, "b"

    for step, _ in watchdog.steps(batches(), 2.0):
        if step == 1:
            time.sleep(0.5)
        else:  # longer than is allowed to the first, and less than 20 times its time
            with pytest.raises(queue.Empty):
                ended.get(timeout=3.0)


def test_a_step_that_hangs_is_named(watchdog, ended):
    for _ in watchdog.steps([(1, "a")], 0.2):
        assert "step 1 did not end" in ended.get(timeout=30)


STOPPED = """
import time
from transformer_jax.training import watchdog

watchdog.TICK, watchdog.LATE = 0.1, 1.0
found = watchdog.Watchdog()
with found.phase("a step", 2.5):
    print("began", flush=True)
    for _ in range(4):  # sleep ends late if the process is stopped
        time.sleep(0.4)
print("ended", flush=True)
with found.phase("another", 1.0):
    time.sleep(60)
"""


@pytest.mark.system
def test_time_during_which_the_process_was_stopped_does_not_count():
    command = [sys.executable, "-c", STOPPED]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "began\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(4)
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == "ended\n"
        assert process.wait(timeout=30) == 124
        assert "another did not end within 1 s" in process.stderr.read()


@pytest.mark.system
def test_by_default_the_process_shows_its_stacks_and_exits_with_124():
    program = (
        "import time\n"
        "from transformer_jax.training.watchdog import Watchdog\n"
        "with Watchdog().phase('sleeping', 0.1):\n"
        "    time.sleep(1000)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 124
    assert 'File "<string>", line 4' in done.stderr
    assert "error: sleeping did not end" in done.stderr.strip().split("\n")[-1]

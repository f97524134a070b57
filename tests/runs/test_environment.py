"""What a run compiles is kept, and it can be seen whether that was of use."""

import logging

import jax

from transformer_jax.runs import environment


def test_a_program_from_the_cache_is_noted_once(caplog):
    for _ in range(2):
        environment.use_compile_cache()
    with caplog.at_level(logging.DEBUG, "transformer_jax"):
        jax.monitoring.record_event("/jax/compilation_cache/cache_hits")
        jax.monitoring.record_event("/jax/compilation_cache/tasks_using_cache")
    assert caplog.text.count("program    found in the cache") == 1

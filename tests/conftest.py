"""Eight fake devices for the sharding tests, and a cache that dies with the session."""

import os
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] += " --xla_cpu_collective_call_terminate_timeout_seconds=120"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
# With fewer cores than devices, collectives can deadlock for want of threads.
os.environ.setdefault("PJRT_NPROC", "16")
_CACHE = tempfile.TemporaryDirectory(prefix="transformer_jax_tests_")
os.environ["TRANSFORMER_JAX_CACHE"] = _CACHE.name

"""Hardware by name: its peak, memory and power, and devices to compile for.

A target is `h200x8` (GPUs), `v5e-8` (TPU chips), `cpu`, `cpu-8` or `here`. JAX's plugin
for that hardware compiles the programs, without any device being present.
Pitfall: devices whose names differ by a word, such as "H100 PCIe" and "H100 NVL", have
other memory and other peaks, so that a device found here is known by its whole name.
"""

import contextlib
import dataclasses
import os
import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from transformer_jax.base.errors import UserError, nearest

try:
    from jax.experimental import topologies
except ImportError:  # it is not public, and may be gone
    topologies: Any = None

GIB = 2**30
ON_A_HOST = 8  # GPUs


@dataclasses.dataclass(frozen=True)
class Hardware:
    """One device, by its maker's data sheet; 0 and "" mean unknown."""

    platform: str
    kinds: tuple[str, ...] = ()  # JAX's `device_kind`, exactly
    memory: int = 0  # bytes
    # FLOP/s of dense matrix products, by computation dtype. float32 is computed as JAX
    # does by default: in TF32 on GPUs, in one bfloat16 pass on TPUs.
    peak: dict[str, float] = dataclasses.field(default_factory=dict)
    watts: int = 0  # rated maximum
    description: str = ""  # of a GPU, for its compiler
    topologies: dict[int, str] = dataclasses.field(default_factory=dict)  # of a TPU


def _peak(bfloat16: float, float32: float) -> dict[str, float]:
    return {"bfloat16": bfloat16 * 1e12, "float32": float32 * 1e12}


def _describe_gpu(name: str, **changes: Any) -> str:
    """Describe a GPU to XLA, which would otherwise ask the driver."""
    numbers = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 49152,
        "shared_memory_per_core": 233472,
        "threads_per_core_limit": 2048,
        "core_count": 132,
        "fpus_per_core": 128,
        "block_dim_limit_x": 2147483647,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "memory_bandwidth": 4_800_000_000_000,
        "l2_cache_size": 62914560,
        "clock_rate_ghz": 1.98,
        "device_memory_size": 150_000_000_000,
        "shared_memory_per_block_optin": 232448,
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
    } | changes
    major = numbers.pop("major", 9)
    lines = " ".join(f"{key}: {value}" for key, value in numbers.items())
    return (
        f"gpu_device_info {{ {lines} cuda_compute_capability {{ major: {major} "
        'minor: 0 } } platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 } '
        f'device_description_str: "{name}"'
    )


_FLAT = {
    1: "1x1",
    4: "2x2",
    8: "2x4",
    16: "4x4",
    32: "4x8",
    64: "8x8",
    128: "8x16",
    256: "16x16",
}
_A100 = {
    "major": 8,
    "core_count": 108,
    "shared_memory_per_core": 167936,
    "fpus_per_core": 64,
    "memory_bandwidth": 2_039_000_000_000,
    "l2_cache_size": 41943040,
    "clock_rate_ghz": 1.41,
    "device_memory_size": 85_000_000_000,
    "shared_memory_per_block_optin": 166912,
}

HARDWARE = {
    "cpu": Hardware("cpu", ("cpu",)),
    "a100": Hardware(
        "gpu",
        ("NVIDIA A100-SXM4-80GB",),
        80 * GIB,
        _peak(312, 156),
        400,
        _describe_gpu("NVIDIA A100-SXM4-80GB", **_A100),
    ),
    "h100": Hardware(
        "gpu",
        ("NVIDIA H100 80GB HBM3",),
        80 * GIB,
        _peak(989, 495),
        700,
        _describe_gpu(
            "NVIDIA H100 80GB HBM3",
            memory_bandwidth=3_350_000_000_000,
            l2_cache_size=52428800,
            device_memory_size=85_000_000_000,
        ),
    ),
    "h200": Hardware(
        "gpu",
        ("NVIDIA H200",),
        141_000_000_000,
        _peak(989, 495),
        700,
        _describe_gpu("NVIDIA H200"),
    ),
    # Programs get 15.75 of the 16 GiB of a TPU v5e. Google publishes no power figures.
    "v5e": Hardware(
        "tpu",
        ("TPU v5 lite", "TPU v5e"),
        int(15.75 * GIB),
        _peak(197, 197),
        topologies={n: f"v5e:{shape}" for n, shape in _FLAT.items()},
    ),
    "v6e": Hardware(
        "tpu",
        ("TPU v6 lite", "TPU v6e"),
        int(31.25 * GIB),
        _peak(918, 918),
        topologies={n: f"v6e:{shape}" for n, shape in _FLAT.items()},
    ),
    "v4": Hardware("tpu", ("TPU v4",), 32 * GIB, _peak(275, 275)),
    "v5p": Hardware("tpu", ("TPU v5p", "TPU v5"), 95 * GIB, _peak(459, 459)),
}

# Devices that may be found here, and that are no targets to compile for elsewhere.
OTHERS = (
    Hardware("gpu", ("NVIDIA A100-SXM4-40GB",), 40 * GIB, _peak(312, 156), 400),
    Hardware("gpu", ("NVIDIA A100-PCIE-40GB",), 40 * GIB, _peak(312, 156), 250),
    Hardware("gpu", ("NVIDIA A100 80GB PCIe",), 80 * GIB, _peak(312, 156), 300),
    Hardware("gpu", ("NVIDIA H100 PCIe",), 80 * GIB, _peak(756, 378), 350),
    Hardware("gpu", ("NVIDIA H100 NVL",), 94_000_000_000, _peak(835, 418), 400),
    Hardware("gpu", ("NVIDIA GH200 480GB",), 96_000_000_000, _peak(989, 495), 0),
    Hardware("gpu", ("NVIDIA H200 NVL",), 141_000_000_000, _peak(835, 418), 600),
)

# XLA chooses between Triton and cuBLAS products by timing them. Without a GPU to time
# them on it always takes Triton, and some products do not compile.
OPTIONS = {"gpu": {"xla_gpu_enable_triton_gemm": False}}

# JAX must find no device here. So libtpu must not ask a cloud for one, and without the
# other two it warns that it knows no device. They do not change what it compiles, and
# an environment that sets them, such as a TPU's, keeps its own values.
QUIET = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


@dataclasses.dataclass(frozen=True)
class Target:
    """A number of devices of one kind of hardware."""

    name: str
    hardware: Hardware
    count: int

    def peak(self, dtype: str) -> float:
        """Return the FLOP/s of all devices together; 0 means unknown."""
        return self.count * self.hardware.peak.get(dtype, 0.0)

    @property
    def options(self) -> dict[str, Any]:
        """The compiler options for hardware that is not present."""
        return {} if self.name == "here" else OPTIONS.get(self.hardware.platform, {})


def find_problem(name: str) -> str | None:
    """Return why a name is not a valid target, or None if it is."""
    if name == "here":
        return None
    found = re.fullmatch(r"([a-z]+\d*[a-z]?)(?:(-|x)([1-9]\d*))?", name)
    kind, joint, number = found.groups() if found else (name, "", "")
    hardware, count = HARDWARE.get(kind), int(number or 0)
    if kind == "cpu" or (hardware and hardware.description and joint == "x"):
        return None
    if hardware and joint == "-" and count in hardware.topologies:
        return None
    if hardware and hardware.topologies:
        known = [f"{kind}-{n}" for n in hardware.topologies]
    elif hardware and hardware.description:
        known = [f"{kind}x1", f"{kind}x8"]
    else:
        known = ["cpu", "cpu-8", "a100x8", "h100x8", "h200x8", "v5e-8", "v6e-8"]
    return f"{name!r} is not a target: choose {', '.join(known)}.{nearest(name, known)}"


def find(name: str) -> Target:
    """Return a target by its name; "here" means the devices that JAX finds."""
    if problem := find_problem(name):
        raise UserError(problem)
    if name == "here":
        device = jax.devices()[0]
        known = recognise(device.device_kind) or Hardware(device.platform)
        return Target(name, known, jax.device_count())
    kind, _, count = name.replace("-", "x").partition("x")
    return Target(name, HARDWARE[kind], int(count or 1))


def recognise(device_kind: str) -> Hardware | None:
    """Return the hardware of a device found by JAX, or None if it is unknown."""
    found = (h for h in (*HARDWARE.values(), *OTHERS) if device_kind in h.kinds)
    return next(found, None)


def peak_of(mesh: Mesh, dtype: str) -> float:
    """Return the peak FLOP/s of the devices of a mesh; 0 means unknown."""
    known = recognise(mesh.devices.flat[0].device_kind)
    return mesh.size * known.peak.get(dtype, 0.0) if known else 0.0


def prepare(name: str) -> None:
    """Let JAX compile for a target; call this before JAX looks for devices."""
    if name == "here":
        return
    for variable, value in QUIET.items():
        os.environ.setdefault(variable, value)
    jax.config.update("jax_platforms", "cpu")
    if name.startswith("cpu"):
        with contextlib.suppress(RuntimeError):  # too late: `devices` checks the count
            jax.config.update("jax_num_cpu_devices", find(name).count)


def devices(target: Target) -> Sequence[Any]:
    """Return devices to compile for, which need not be present."""
    hardware, count = target.hardware, target.count
    if target.name == "here" or hardware.platform == "cpu":
        found = jax.devices()
        if len(found) < count:
            raise UserError(
                f"{target.name} needs {count} devices of this CPU, and JAX has made "
                f"{len(found)}: set JAX_NUM_CPU_DEVICES={count}"
            )
        return found[:count]
    if hardware.platform == "tpu":
        asked = {"platform": "tpu", "topology_name": hardware.topologies[count]}
        return _topology(target, "tpu", asked)
    hosts = max(count // ON_A_HOST, 1)
    asked = {
        "platform": "cuda",
        "topology_name": target.name,
        "target_config": hardware.description,
        "topology": f"1x{hosts}x{count // hosts}",
    }
    return _topology(target, "cuda", asked)[:count]


def _topology(target: Target, extra: str, asked: dict[str, str]) -> Sequence[Any]:
    if topologies is None:
        raise UserError(
            f"jax {jax.__version__} has no jax.experimental.topologies, which compiles "
            f"for {target.name} without it: use an older jax, or --target=here"
        )
    try:
        return topologies.get_topology_desc(**asked).devices
    except (RuntimeError, ValueError, NotImplementedError) as error:
        reason = str(error).split("\n")[0]
        raise UserError(
            f"JAX cannot compile for {target.name} here ({reason}): "
            f"pip install 'transformer_jax[{extra}]' brings its plugin, and no device "
            "is needed"
        ) from None

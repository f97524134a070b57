"""Read the memory, kernels and operations of a compiled program."""

import collections
import dataclasses
import re
from typing import Any

# Custom calls that compute nothing.
_MARKS = ("Sharding", "AllocateBuffer", "AssumeGatherIndicesInBound", "annotate_")
_CALL = re.compile(r'custom_call_target="([^"]+)"')
_PALLAS = re.compile(r'op_name="[^"]*?(splash_\w+?)(?:_(?:no_)?residuals)?[/"]')


@dataclasses.dataclass(frozen=True)
class Memory:
    """The bytes that a program takes on a device while it runs, by the compiler."""

    arguments: int
    temporary: int
    results: int  # without those that reuse the memory of arguments

    @property
    def total(self) -> int:
        """All bytes that must fit at the same time."""
        return self.arguments + self.temporary + self.results


def read_memory(program: Any) -> Memory | None:
    """Return the memory of a compiled program; None if its compiler does not say."""
    found = program.memory_analysis()
    if found is None:
        return None
    results = found.output_size_in_bytes - found.alias_size_in_bytes
    return Memory(found.argument_size_in_bytes, found.temp_size_in_bytes, results)


def read_flops(program: Any) -> float:
    """Return XLA's own count for one device, which includes every operation."""
    found = program.cost_analysis() or {}
    found = found[0] if isinstance(found, list) else found
    return float(found.get("flops", 0.0))


def read_kernels(text: str) -> dict[str, int]:
    """Count the calls of kernels that XLA did not generate itself, by name."""
    found: collections.Counter = collections.Counter()
    for line in text.split("\n"):
        if call := _CALL.search(line):
            if call[1].startswith(_MARKS):
                continue
            pallas = _PALLAS.search(line)
            found[pallas[1] if pallas else call[1]] += 1
    return dict(found.most_common())

"""Read off a compiled program what it needs: memory, kernels, operations."""

import collections
import dataclasses
import re
from typing import Any

# What the compiler calls to compute nothing.
_MARKS = ("Sharding", "AllocateBuffer", "AssumeGatherIndicesInBound", "annotate_")
_CALL = re.compile(r'custom_call_target="([^"]+)"')
_PALLAS = re.compile(r'op_name="[^"]*?(splash_\w+?)(?:_(?:no_)?residuals)?[/"]')


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of a device while a program runs, by the compiler's account."""

    arguments: int
    temporary: int
    results: int  # beyond those that take the place of arguments

    @property
    def total(self) -> int:
        """All that must fit at once."""
        return self.arguments + self.temporary + self.results


def read_memory(program: Any) -> Memory | None:
    """Return what a compiled program needs; None if its compiler does not say."""
    found = program.memory_analysis()
    if found is None:
        return None
    results = found.output_size_in_bytes - found.alias_size_in_bytes
    return Memory(found.argument_size_in_bytes, found.temp_size_in_bytes, results)


def read_flops(program: Any) -> float:
    """Return XLA's own count for a device, in which every operation counts."""
    found = program.cost_analysis() or {}
    found = found[0] if isinstance(found, list) else found
    return float(found.get("flops", 0.0))


def read_kernels(text: str) -> dict[str, int]:
    """Count the calls of kernels that XLA did not write itself, by name."""
    found: collections.Counter = collections.Counter()
    for line in text.split("\n"):
        if call := _CALL.search(line):
            if call[1].startswith(_MARKS):
                continue
            pallas = _PALLAS.search(line)
            found[pallas[1] if pallas else call[1]] += 1
    return dict(found.most_common())

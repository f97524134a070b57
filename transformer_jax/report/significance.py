"""Test whether two groups of seeds differ by more than their seeds vary: Student's t.

    d ± t(0.975, ν) · s      s² = v₁/n₁ + v₂/n₂      ν = s⁴ / Σ (vᵢ/nᵢ)² / (nᵢ - 1)

for a difference d of the means of n₁ and n₂ values with the sample variances v₁ and v₂,
which need not be equal (Welch). Groups of the same seeds can be compared in pairs: then
s is the standard error of the n differences, and ν = n - 1. Pitfall: with 3 seeds per
side, t is 2.8 to 4.3, not 1.96.
"""

import bisect
import dataclasses
import functools
import math
import os
import statistics
from collections.abc import Mapping, Sequence

from scipy.special import stdtr, stdtrit

LEVEL = 0.975  # the quantile for a 95 % interval
POWER = 0.8  # the probability with which enough seeds show an existing difference
ROUNDING = 1e-9  # of a value, by which equal differences of floats may vary
MOST = 1000  # seeds; more are never trained


@dataclasses.dataclass(frozen=True)
class Difference:
    """The values of two groups by one metric, one per seed and at least two each."""

    metric: str
    baseline: str
    system: str
    baseline_values: tuple[float, ...]
    values: tuple[float, ...]
    same_seeds: bool = False  # both lists are in the order of the same seeds

    @property
    def means(self) -> tuple[float, float]:
        """The means of the baseline and of the system."""
        return statistics.fmean(self.baseline_values), statistics.fmean(self.values)

    @property
    def deviations(self) -> tuple[float, float]:
        """The sample standard deviations (n - 1) of the seeds."""
        return statistics.stdev(self.baseline_values), statistics.stdev(self.values)

    @property
    def measured(self) -> float:
        """Subtract the mean of the baseline from that of the system."""
        return self.means[1] - self.means[0]

    @functools.cached_property
    def _deviation_of_pairs(self) -> float:
        """The deviation of the differences of pairs; 0 if it is but rounding."""
        if not self.same_seeds:
            return 0.0
        pairs = zip(self.values, self.baseline_values, strict=True)
        found = statistics.stdev(ours - theirs for ours, theirs in pairs)
        return found if found > ROUNDING * max(map(abs, self.means)) else 0.0

    @property
    def paired(self) -> bool:
        """Return whether the test is that of pairs, whose differences must vary."""
        return self._deviation_of_pairs > 0

    @functools.cached_property
    def error(self) -> tuple[float, float]:
        """The standard error of the difference and its degrees of freedom.

        Pairs of one seed leave out what a seed does to both, but halve the freedom.
        """
        sizes = len(self.baseline_values), len(self.values)
        if not self.paired:
            return welch(self.deviations, sizes)
        return self._deviation_of_pairs / math.sqrt(sizes[0]), sizes[0] - 1.0

    @functools.cached_property
    def interval(self) -> float | None:
        """The half-width of the 95 % interval; None if no seed varies."""
        error, freedom = self.error
        return stdtrit(freedom, LEVEL) * error if error else None

    @functools.cached_property
    def p(self) -> float:
        """Return how often equal methods differ so much; 1 if no seed varies."""
        error, freedom = self.error
        return 2 * stdtr(freedom, -abs(self.measured) / error) if error else 1.0

    @property
    def is_seen(self) -> bool:
        """Return whether the interval excludes 0."""
        return self.interval is not None and abs(self.measured) > self.interval

    @functools.cached_property
    def seeds_needed(self) -> int | None:
        """Count the seeds that would show such a difference; None means too many.

        They show it with a probability of POWER if the means and deviations are as
        measured.
        """
        fewest = min(len(self.baseline_values), len(self.values)) + 1

        def is_enough(size: int) -> bool:
            error, freedom = welch(self.deviations, (size, size))
            factor = stdtrit(freedom, LEVEL) + stdtrit(freedom, POWER)
            return abs(self.measured) >= factor * error

        if not any(self.deviations) or not is_enough(MOST):
            return None
        return bisect.bisect_left(range(MOST), True, fewest, key=is_enough)


def digits_for(values: Sequence[float]) -> int:
    """Return how many decimals the values of a metric are shown with."""
    return 2 if max(map(abs, values)) >= 10 else 4


def describe_spread(values: Sequence[float]) -> str:
    """Give the mean, the standard deviation and the range of one group of seeds."""
    digits = digits_for(values)
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    return (
        f"{mean:.{digits}f} ± {deviation:.{digits}f} (standard deviation of "
        f"{len(values)} seeds; {min(values):.{digits}f} to {max(values):.{digits}f})"
    )


def describe(found: Difference) -> str:
    """Describe both groups, their difference and a verdict, in five lines."""
    digits = digits_for(found.means)
    lines = [f"{found.metric}: mean ± standard deviation over seeds"]
    for name, values, mean, deviation in zip(
        (found.baseline, found.system),
        (found.baseline_values, found.values),
        found.means,
        found.deviations,
        strict=True,
    ):
        seeds = f"{len(values)} seeds"
        lines.append(
            f"  {seeds:>10}  {mean:.{digits}f} ± {deviation:.{digits}f}  {name}"
        )
    lines.append(f"  difference  {found.measured:+.{digits}f}")
    if found.interval is not None:
        ends = (found.measured + side * found.interval for side in (-1, 1))
        low, high = (f"{end:+.{digits}f}" for end in ends)
        lines[-1] += f"  (95 % interval over seeds: {low} to {high}, Welch's t)"
    return "\n".join([*lines, f"  {verdict(found)}"])


def verdict(found: Difference) -> str:
    """State whether the groups differ, or how many more seeds would show it."""
    system, baseline = found.system, found.baseline
    if found.measured == 0:
        return "no difference can be told: the means are equal"
    if found.interval is None:
        return (
            "no difference can be told: the seeds of each group score exactly alike, "
            "which says nothing about how much others vary"
        )
    if found.is_seen:
        side = "higher" if found.measured > 0 else "lower"
        return (
            f"the difference is beyond what the seeds vary by: {system} is {side} than "
            f"{baseline}"
        )
    said = "no difference can be told: the seeds vary by more"
    if found.seeds_needed is None:
        return f"{said}, and even {MOST:,} seeds of each would hardly show so little"
    sides = ((system, found.values), (baseline, found.baseline_values))
    missing = {name: found.seeds_needed - len(values) for name, values in sides}
    more = " and ".join(f"{n} more of {name}" for name, n in missing.items() if n > 0)
    return (
        f"{said}. If it is as large as measured, about {found.seeds_needed} seeds of "
        f"each would show it four times in five: {more}"
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number (Holm 1979): p₍ᵢ₎ · (m - i), never falling."""
    found, least = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(p_values[i] * (len(p_values) - rank), 1.0))
        found[i] = least
    return found


def describe_corrected(p_values: Mapping[str, float]) -> str:
    """Say what several tests show together, or nothing if there is one."""
    if len(p_values) < 2:
        return ""
    corrected = zip(p_values, holm([*p_values.values()]), strict=True)
    each = ", ".join(f"{name} p = {p:.2g}" for name, p in corrected)
    return (
        f"{len(p_values)} metrics were tested, each at 5 % by itself. Corrected for "
        f"their number (Holm): {each}"
    )


def welch(
    deviations: tuple[float, float], sizes: tuple[int, int]
) -> tuple[float, float]:
    """Return the standard error of a difference of means, and its degrees of freedom.

    Both are 0 if nothing varies.
    """
    largest = max(deviations)
    if not largest:
        return 0.0, 0.0
    # Divide by the largest, because fourth powers of small numbers would underflow.
    parts = [(d / largest) ** 2 / n for d, n in zip(deviations, sizes, strict=True)]
    within = sum(part**2 / (n - 1) for part, n in zip(parts, sizes, strict=True))
    return largest * math.sqrt(sum(parts)), sum(parts) ** 2 / within


def name_groups(one: Sequence[str], other: Sequence[str]) -> tuple[str, str]:
    """Name groups by their common prefix: runs/a_1 and runs/a_2 are runs/a_*."""
    first, second = os.path.commonprefix(one), os.path.commonprefix(other)
    if first and second and first != second:
        return f"{first}*", f"{second}*"
    return ", ".join(one), ", ".join(other)

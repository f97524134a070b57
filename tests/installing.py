"""Install a package without pip, as its metadata beside its code."""

import pathlib
from collections.abc import Mapping


def write_metadata(
    place: pathlib.Path,
    name: str,
    groups: Mapping[str, Mapping[str, str]],
    version: str = "0.1",
) -> None:
    """Write what pip would write of a package's entry points into its folder."""
    about = place / f"{name}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Name: {name}\n")
    lines = []
    for group, names in groups.items():
        lines += [f"[{group}]", *(f"{name} = {at}" for name, at in names.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")

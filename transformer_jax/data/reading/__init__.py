"""Read examples: forms of storage, sources, streams."""

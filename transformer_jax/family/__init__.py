"""The systems around the core, one folder each."""

"""Data that the package generates itself; each module has a version and splits."""

"""Parsing: see README.md."""

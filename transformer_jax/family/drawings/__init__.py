"""Drawings: see README.md."""

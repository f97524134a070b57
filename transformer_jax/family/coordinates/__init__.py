"""Coordinates: see README.md."""

"""Tagging: see README.md."""

"""Similarity: see README.md."""

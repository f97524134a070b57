"""The system tagging."""

"""The system parsing."""

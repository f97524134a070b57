"""The system similarity."""

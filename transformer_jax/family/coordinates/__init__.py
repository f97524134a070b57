"""The system coordinates."""

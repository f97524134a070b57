"""The system decisions."""

"""The system speech."""

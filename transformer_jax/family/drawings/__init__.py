"""The system drawings."""

"""The system recurrent."""

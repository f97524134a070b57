"""The system conversation."""

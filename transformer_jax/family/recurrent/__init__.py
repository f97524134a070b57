"""Recurrent models: see README.md."""

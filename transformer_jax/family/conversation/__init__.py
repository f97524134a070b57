"""Conversation: see README.md."""

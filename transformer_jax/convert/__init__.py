"""A run in other forms: for other machines and other engines."""

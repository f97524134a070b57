"""Images and their files."""

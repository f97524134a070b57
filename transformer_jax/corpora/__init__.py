"""The data that the package writes itself."""

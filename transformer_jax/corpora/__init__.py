"""Generate data: sentence pairs, stories, opinions, trees, sets, colour images.

A task finds them by name (`entry_points.txt`), as those of another package.
"""

"""Pictures of what a model does: `figures` draws them with matplotlib.

matplotlib is imported when the first figure is drawn; the package works without it.
"""

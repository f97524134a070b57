"""From files to planned batches: sources, tokenizers, the store and the batch plan.

All of it is NumPy, and imports no model.
"""

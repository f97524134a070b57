"""From files to planned batches: sources, tokenizers, the store and the batch plan.

Everything here works in NumPy and imports no model.
"""

"""From text to planned batches: sources, tokenizer, store, batch plan, phrasebook.

This room knows nothing of models: everything here is NumPy.
"""

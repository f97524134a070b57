"""Attention, embeddings, positions, layers, and the models made of them.

This room knows nothing of data or tasks: arrays in, arrays out.
"""

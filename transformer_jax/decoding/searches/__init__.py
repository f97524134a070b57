"""Searches over a model's state, each a `decoding.searching.Search`.

beam         beam search
sampling     greedy search and sampling
rules        which tokens may follow
constraints  rules of a task
"""

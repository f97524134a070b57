"""Requests in, replies out: searches over any autoregressive model.

requests    DecodeRequest, Reply, and what inference must implement
options     how to search
answering   lines → replies, in order
engine      requests → hypotheses, in batches
sliding     texts longer than what a model reads at once
searching   what every search shares; beam, sampling: the searches
rules       which tokens may follow; constraints: a task's own rule
trace       one search, step by step, with what it did not choose
forward     one pass over given sequences, without a search
"""

from transformer_jax.decoding.options import Options
from transformer_jax.decoding.requests import DecodeRequest, Reply

__all__ = ["DecodeRequest", "Options", "Reply"]

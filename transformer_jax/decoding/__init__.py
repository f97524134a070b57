"""Requests in, replies out: searches over any autoregressive model.

requests     DecodeRequest, Reply, and the protocol of inference
options      how to search
answering    lines → replies, in order
engine       requests → hypotheses, in batches
live         the same for callers that come and go
memory       whether a search fits into memory
sliding      texts longer than what a model reads at once
searching    the parts that all searches share
searches/    beam search, greedy search, sampling, and the rules of what may follow
ensemble     several models that write together
consensus    the candidate that is most like the others
forward      one pass over given sequences, without a search
"""

from transformer_jax.decoding.options import Options
from transformer_jax.decoding.requests import DecodeRequest, Reply

__all__ = ["DecodeRequest", "Options", "Reply"]

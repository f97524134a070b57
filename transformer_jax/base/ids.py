"""The ids of the special tokens, the first four in every vocabulary."""

PAD, UNK, BOS, EOS = 0, 1, 2, 3

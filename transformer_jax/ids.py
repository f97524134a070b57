"""The ids that every vocabulary of this package begins with."""

PAD, UNK, BOS, EOS = 0, 1, 2, 3

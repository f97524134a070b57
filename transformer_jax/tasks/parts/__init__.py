"""Hold parts that several tasks are composed of; each implements a part's protocol.

text      data of one text a record, its tokenizer, limits of lengths
pairs     data and objective of source and target
seq2seq   a whole task of an encoder-decoder model
writing   inference of models that write
whole_answers  inference of models that answer at once
scoring   BLEU, labels, and what most scoring has in common
reading   inspectors: given pairs, alignment, sentence vectors, attention
"""

"""Parts that several tasks share; each implements the protocol of a part.

text           data with one text per record, its tokenizer, limits of lengths
pairs          data and objective of source and target
seq2seq        a task with an encoder-decoder model, composed
writing        inference of models that write
whole_answers  inference of models that answer at once
labels         objective and answers of labels
scoring        BLEU, labels, and the base of all scoring
reading        inspectors: given pairs, alignment, sentence vectors, attention
learnt         files of what a task has learnt from its data
masking        hidden tokens
streams        running text and its windows
augmentation   changes of training images
"""

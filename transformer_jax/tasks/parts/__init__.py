"""Parts that several tasks are composed of; each implements a protocol of a task.

text      columns of one text a record, learning its tokenizer, limits of positions
pairs     data and objective of source and target
writing   inference of models that write
reading   forward passes: classes, fillings, attention, given pairs
"""

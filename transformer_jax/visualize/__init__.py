"""Show what a model does: figures by subject, and the commands that draw them.

figures     all figures, a file for each subject: arrays → matplotlib
commands    command-line flags → figure; flags: the flags themselves
viewer      one HTML file that shows how a run came to its answers
explain     one attention computation in numbers; examples: those of tutorials
capture     the tensors of one head, layer or table while a model reads
measures    statistics of attention weights
aligning    cross-attention against gold alignments
gradients   how far gradients reach
modules     the shapes of a config's model
neighbours  a command for words with similar vectors; similarity: finds them
style       colours, sizes and labels that all figures share

matplotlib is imported when the first figure is drawn; the package works without it.
"""

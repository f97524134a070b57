"""Show what a model does: figures by subject, and the commands that draw them.

figures     all figures: arrays → matplotlib
attention, masks, positions, training, beams, structure, explained: the figures
measures    statistics of attention weights
capture     the tensors of one head, layer or table while a model reads
explain     one attention computation in numbers; examples: those of tutorials
aligning    cross-attention against gold alignments
gradients   how far gradients reach
modules     the shapes of a config's model
commands    command-line flags → figure; command: the flags themselves
style       colours, sizes and labels that all figures share

matplotlib is imported when the first figure is drawn; the package works without it.
"""

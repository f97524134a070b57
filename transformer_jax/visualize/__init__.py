"""Look at what a model does: figures, by subject, and commands that draw them.

figures     all figures: arrays → matplotlib
attention, masks, positions, training, beams, structure, explained: the figures
measures    numbers of attention weights
capture     a model that reads → one head, one layer, one table
explain     one attention computation in numbers; examples: those of tutorials
aligning    cross-attention against gold alignments; gradients: how far they reach
modules     the shapes of a config's model
commands    a figure of the flags of the command line; command: these flags
style       colours, sizes and labels that all share

matplotlib is imported when the first figure is drawn; the package works without it.
"""

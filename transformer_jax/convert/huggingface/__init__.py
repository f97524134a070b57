"""Models of Hugging Face: read as bundles, and written from runs.

`architectures` says which models are the same here under other names, `links` how their
tensors become parameters, `vocabulary` how their tokens are numbered. `importing` makes
a bundle of a folder, `exporting` a folder of a run.
"""

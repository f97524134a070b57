"""Models of Hugging Face: read as bundles, and written from runs.

`architectures` lists the models that are the same here; `bert`, `bart`, `t5`,
`decoders` and `vit` describe them. `links` turns tensors into parameters, and
`vocabulary` numbers tokens. `importing` makes a bundle of a folder, `exporting` a
folder of a run.
"""

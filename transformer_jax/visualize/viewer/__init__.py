"""One HTML file that shows how a run came to its answers.

collect     a run and a line → attention, search, tree and picture, as JSON
numbers     arrays ↔ text, one byte per weight
page        that JSON and the viewer's code → one file
command     `python -m transformer_jax.visualize view`

The page itself is hand-written: page.html, page.css and the scripts next to them.
"""

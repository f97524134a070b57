"""Small computations that tutorials like, as the numbers of an `explain` file.

A file is a JSON object of these keys, and each example here is one:

    title      what it shows
    queries    rows of numbers, one a query; with `keys`, they are multiplied
    keys       rows of numbers, one a key
    scores     a table instead of both: a row a query, a column a key
    d_k        size of the vectors that a table of scores is of; 1: do not scale
    values     rows of numbers, one a key; without them only weights are computed
    mask       "look-ahead", or rows of 0 (hidden) and 1 (visible)
    query_labels, key_labels
"""

from typing import Any

EXAMPLES: dict[str, dict[str, Any]] = {
    "greeting": {
        "title": 'Scores of "Hi how are you", scaled by √64',
        "scores": [[98, 27, 10, 12], [27, 89, 31, 67], [10, 31, 91, 54],
                   [12, 67, 54, 92]],
        "d_k": 64,
        "query_labels": ["Hi", "how", "are", "you"],
    },
    "look-ahead": {
        "title": "Look-ahead mask of T1 … T5: equal scores",
        "scores": [[0] * 5] * 5,
        "d_k": 1,
        "mask": "look-ahead",
        "query_labels": ["T1", "T2", "T3", "T4", "T5"],
    },
    "fine": {
        "title": 'Look-ahead mask of "<start> I am fine"',
        "scores": [[0.7, 0.1, 0.1, 0.1], [0.1, 0.6, 0.2, 0.1], [0.1, 0.3, 0.6, 0.1],
                   [0.1, 0.3, 0.3, 0.3]],
        "d_k": 1,
        "mask": "look-ahead",
        "query_labels": ["<start>", "I", "am", "fine"],
    },
    "videos": {
        "title": "A search for a video: one query, two keys",
        "queries": [[3, 1, 4]],
        "keys": [[5, 4, 3], [-1, 0, 1]],
        "values": [[1, 0], [0, 1]],
        "query_labels": ["how does attention work"],
        "key_labels": ["Attention, explained", "Cats of the year"],
    },
}  # fmt: skip

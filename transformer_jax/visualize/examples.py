"""Small computations popular in tutorials, in the form of an `explain` file.

A file is a JSON object with these keys, and each example here is one:

    title      what the example shows
    queries    rows of numbers, one per query; they are multiplied with `keys`
    keys       rows of numbers, one per key
    scores     a table instead of both: one row per query, one column per key
    d_k        size of the vectors behind a table of scores; 1 means no scaling
    values     rows of numbers, one per key; without them only weights are computed
    mask       "look-ahead", or rows of 0 (hidden) and 1 (visible)
    query_labels, key_labels
"""

from typing import Any

EXAMPLES: dict[str, dict[str, Any]] = {
    "greeting": {
        "title": 'Scores of "Hi how are you", scaled by √64',
        "scores": [
            [98, 27, 10, 12],
            [27, 89, 31, 67],
            [10, 31, 91, 54],
            [12, 67, 54, 92],
        ],
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
        "scores": [
            [0.7, 0.1, 0.1, 0.1],
            [0.1, 0.6, 0.2, 0.1],
            [0.1, 0.3, 0.6, 0.1],
            [0.1, 0.3, 0.3, 0.3],
        ],
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
}

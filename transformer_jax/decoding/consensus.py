"""Choose among candidates the one that is most like the others (MBR decoding).

    ŷ = argmax_y Σ_y' chrF(y, y'),   y and y' among the candidates

With samples as candidates this is the text of highest expected chrF under the model's
own distribution (minimum Bayes risk; Kumar, Byrne 2004; Eikema, Aziz 2020). The
likeliest text is often an unlikely kind of text, such as a short one.
"""

import collections
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

ORDER = 6  # n-grams of 1 to 6 characters, as sacreBLEU's chrF2 counts them
BETA = 2  # recall counts twice as much as precision


def rank(texts: Sequence[str]) -> list[tuple[int, float]]:
    """Return (index, mean chrF with the others as references), best first.

    Of equal texts the first one stays, and is compared with the others of its kind,
    too.
    """
    distinct = list(dict.fromkeys(texts))
    count = np.array([texts.count(text) for text in distinct])
    similar = compare_all(distinct)
    others = similar @ count - np.diagonal(similar)
    mean = others / max(len(texts) - 1, 1)
    order = np.argsort(-mean, kind="stable")
    return [(texts.index(distinct[i]), float(mean[i])) for i in order]


def compare_all(texts: Sequence[str]) -> Float[np.ndarray, "N N"]:
    """Return chrF2 in per cent of each text (rows) to each as a reference (columns)."""
    texts = ["".join(text.split()) for text in texts]
    size = len(texts), len(texts)
    precision, recall, orders = (np.zeros(size) for _ in range(3))
    for n in range(1, ORDER + 1):
        grams = [
            collections.Counter(text[i : i + n] for i in range(len(text) - n + 1))
            for text in texts
        ]
        place = {
            gram: i for i, gram in enumerate(dict.fromkeys(g for c in grams for g in c))
        }
        table = np.zeros((len(texts), len(place)), np.float32)
        for row, counted in enumerate(grams):
            table[row, [place[gram] for gram in counted]] = list(counted.values())
        # min(a, b) is the number of thresholds that both reach.
        common = np.zeros(size)
        for threshold in range(1, int(table.max(initial=0)) + 1):
            reached = (table >= threshold).astype(np.float32)
            common += reached @ reached.T
        total = table.sum(axis=1)
        both = (total[:, None] > 0) & (total > 0)
        precision += common / np.maximum(total[:, None], 1)
        recall += common / np.maximum(total, 1)
        orders += both
    precision, recall = (x / np.maximum(orders, 1) for x in (precision, recall))
    least = BETA**2 * precision + recall
    product = (1 + BETA**2) * precision * recall
    return 100 * np.divide(product, least, out=np.zeros(size), where=least > 0)

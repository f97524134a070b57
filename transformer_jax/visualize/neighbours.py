"""Find words with similar vectors, and answer analogies, from a run or a file.

    python -m transformer_jax neighbours --workdir RUN --word gato
    python -m transformer_jax neighbours --vectors F --analogy "man king woman"
    python -m transformer_jax neighbours --vectors F --questions questions-words.txt

The vectors of a run are the rows of its embedding table. Pieces that begin a word are
shown as they are, others as "…ing". A file may come from GloVe, word2vec or fastText,
plain or .gz. Accuracy counts only the questions whose four words all have vectors.
"""

import numpy as np
from absl import flags

from transformer_jax import cli
from transformer_jax.base.errors import UserError
from transformer_jax.data.text import vectors
from transformer_jax.data.text.tokenizer import SPACE, SPECIAL
from transformer_jax.runs import run as runs
from transformer_jax.visualize import similarity
from transformer_jax.visualize.similarity import Answered, WordVectors


def define_flags() -> None:
    """Define the flags of the command."""
    flags.DEFINE_string("workdir", "", "The run directory whose embeddings are used.")
    flags.DEFINE_string("table", "", "Which table, if the run has several.")
    flags.DEFINE_string("vectors", "", "A file of vectors, instead of a run.")
    flags.DEFINE_integer("most", 200_000, "Vectors to read from the file; 0: all.")
    flags.DEFINE_string("word", "", "The word whose neighbours to show.")
    flags.DEFINE_string("analogy", "", 'Three words, "a b c": a is to b as c to …')
    flags.DEFINE_string("questions", "", "A file of analogies, four words per line.")
    flags.DEFINE_integer("count", 10, "Words to show.", lower_bound=1)
    cli.define_weights()


def main(overrides: dict[str, str]) -> None:
    """Answer the question that the flags ask."""
    args = flags.FLAGS
    cli.refuse_overrides(overrides)
    cli.check_weights(args.weights)
    if bool(args.workdir) == bool(args.vectors):
        raise UserError("name the vectors: --workdir=RUN or --vectors=FILE")
    if not (args.word or args.analogy or args.questions):
        raise UserError("name the question: --word, --analogy or --questions")
    words = args.analogy.split()
    if args.analogy and len(words) != 3:
        raise UserError(
            f"--analogy={args.analogy!r}: give three words, such as 'a b c'"
        )
    if args.vectors:
        known = WordVectors(vectors.read(args.vectors, most=args.most), args.vectors)
    else:
        known = of_run(args.workdir, args.weights, args.table)
    print(f"{len(known.words):,} vectors of {known.table.shape[1]} numbers")
    if args.word:
        print_table(f"like {args.word}", known.neighbours(args.word, args.count))
    if args.analogy:
        a, b, c = words
        found = known.analogy(a, b, c, args.count)
        print_table(f"{a} is to {b} as {c} to", found)
    if args.questions:
        print_answered(known.answer(similarity.read_questions(args.questions)))


def of_run(path: str, weights: str = "", table: str = "") -> WordVectors:
    """Open a run's embedding table; without a name, the first one."""
    run = runs.load(path, weights)
    tables = [n for n in run.task.data.vocabularies if n in run.params]
    if not tables:
        raise UserError(f"{path}: a run of the task {run.config.task} has no words")
    name = table or tables[0]
    cli.check_choice("table", name, tables)
    tokenizer = run.task.data.vocabularies[name]
    rows = np.asarray(run.params[name]["embedding"])
    found = {}
    for i, piece in enumerate(tokenizer.pieces(range(tokenizer.vocab_size))):
        if i >= SPECIAL and piece != SPACE:
            inside = not piece.startswith(SPACE) and piece[:1].isalnum()
            found[f"…{piece}" if inside else piece.removeprefix(SPACE)] = rows[i]
    return WordVectors(found, f"{path} ({name})")


def print_table(title: str, found: list[similarity.Neighbour]) -> None:
    """Print words with their cosines, best first."""
    print(f"\ncosine  {title}")
    for word, cosine in found:
        print(f"{cosine:6.3f}  {word}")


def print_answered(found: list[Answered]) -> None:
    """Print how many questions of each kind are covered and answered correctly."""
    total = Answered(
        "all", *(sum(n) for n in zip(*(a[1:] for a in found), strict=True))
    )
    print(f"\n{'kind':28} {'questions':>9} {'covered':>9} {'right':>7}")
    for row in (*found, total):
        right = f"{row.accuracy:7.1%}" if row.covered else f"{'-':>7}"
        print(f"{row.kind:28} {row.questions:9,} {row.covered:9,} {right}")
    print(
        f"\n{total.accuracy:.1%} of {total.covered:,} questions are right; "
        f"{total.covered / total.questions:.1%} of {total.questions:,} are covered"
    )


if __name__ == "__main__":
    define_flags()
    cli.run(main)

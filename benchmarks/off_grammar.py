"""Does a chatbot say that it does not understand what it was not trained on?

    python benchmarks/off_grammar.py --workdir runs/chat

40 questions from outside the grammar of the small talk, each asked alone, and how many
get one of the two fallbacks. The other answers are printed: they are the wrong ones.
"""

import argparse
import sys

import transformer_jax
from transformer_jax import cli
from transformer_jax.base.errors import UserError
from transformer_jax.family.conversation.smalltalk import FALLBACKS

QUESTIONS = """
What is the capital of France?
Who is the president of the United States?
What is two plus two?
How do airplanes stay in the air?
Can you tell me a joke?
What is the meaning of life?
How tall is Mount Everest?
Who painted the Mona Lisa?
Can you book a flight for me?
What is your opinion about politics?
Which team won the game last night?
How many planets are there?
Why is the sky blue?
Do you know any good movies?
How do I boil an egg?
What is the fastest animal?
Could you recommend a restaurant?
Is there life on Mars?
When was the first computer built?
How does a car engine work?
What should I wear to a wedding?
Can dogs eat chocolate?
How much does a house cost?
What language do they speak in Brazil?
Where can I park my car?
Do you believe in ghosts?
Who wrote Romeo and Juliet?
What is the square root of nine?
How long does it take to learn piano?
Are you smarter than me?
Please write me a poem about love
Turn on the lights
Play some music
My computer does not start
I need to see a lawyer about my landlord
The train was late again
Set an alarm for seven
Do you have feelings?
Is climate change real?
What happens when we die?
""".strip().splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", required=True, help="a run of smalltalk:many")
    args = parser.parse_args()
    try:
        replies = transformer_jax.load(args.workdir).predict(QUESTIONS)
    except UserError as error:
        cli.fail(*error.problems)
    pairs = [*zip(QUESTIONS, replies, strict=True)]
    others = [(line, reply) for line, reply in pairs if reply not in FALLBACKS]
    print(f"{len(pairs) - len(others)} of {len(pairs)} get a fallback")
    for line, reply in others:
        print(f"{line}\n    {reply}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

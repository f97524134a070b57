"""Text: tokenizers, vocabularies, vectors."""

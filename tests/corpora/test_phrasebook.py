"""The embedded corpus: correct in both languages, repeatable, with disjoint splits."""

import hashlib
import pickle
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from itertools import pairwise

import pytest
import sacrebleu

from transformer_jax.corpora.phrasebook import (
    HELD_OUT,
    SPLITS,
    VERSION,
    Pair,
    generate,
    word_for_word,
)
from transformer_jax.corpora.phrasebook.grammar import Speaker
from transformer_jax.corpora.phrasebook.inflection import conjugate
from transformer_jax.corpora.phrasebook.twins import phrase, word

FEMININE = """menina mulher professora enfermeira vizinha mãe irmã avó tia filha esposa
    vaca galinha ovelha maçã laranja banana batata cenoura cebola carne sopa manteiga
    água cerveja carta revista mensagem história camisa saia blusa meia luva bota
    gravata lâmpada câmera chave carteira caneta bola moeda faca colher porta janela
    bicicleta flor rosa árvore flauta canção mesa cadeira cama estante caixa gaveta
    mochila cozinha garagem casa igreja loja ponte cidade rua floresta escola praia
    estação fazenda ilha montanha Maria Ana Beatriz""".split()
MASCULINE = """menino homem médico aluno cozinheiro pintor ator amigo pai irmão avô tio
    marido gato cachorro cavalo porco bolo ovo tomate limão pão arroz queijo leite café
    chá vinho livro jornal poema artigo vestido sapato casaco chapéu telefone relógio
    espelho lápis mapa presente copo prato portão carro ônibus caminhão trem táxi violão
    piano filme programa quadro sofá armário quarto banheiro hotel jardim hospital
    museu mercado aeroporto teatro João Pedro André""".split()
PLURALS = {  # the plural is not the singular and -s
    "homem": "homens", "mulher": "mulheres", "pintor": "pintores", "ator": "atores",
    "limão": "limões", "pão": "pães", "jornal": "jornais", "mensagem": "mensagens",
    "lápis": "lápis", "colher": "colheres", "portão": "portões", "ônibus": "ônibus",
    "caminhão": "caminhões", "trem": "trens", "flor": "flores", "violão": "violões",
    "canção": "canções", "arroz": "arrozes",
}  # fmt: skip
FEMININE_WORDS = """a as à às da das na nas pela pelas uma numa esta estas desta destas
    nesta nestas aquela aquelas daquela daquelas naquela naquelas minha minhas nossa
    nossas outra algumas muitas várias duas todas""".split()
MASCULINE_WORDS = """o os ao aos do dos no nos pelo pelos um num este estes deste destes
    neste nestes aquele aqueles daquele daqueles naquele naqueles meu meus nosso nossos
    outro alguns muitos vários dois todos""".split()


SAMPLE = """
import pickle, random, sys
from transformer_jax.corpora.phrasebook.grammar import Speaker
from transformer_jax.corpora.phrasebook import SPLITS, generate
from transformer_jax.corpora.phrasebook.twins import detokenize, spell

sizes = dict.fromkeys(SPLITS, 500) | {"train": 20_000}
splits = {split: generate(split, size) for split, size in sizes.items()}
speaker = Speaker(random.Random("sample").random)
drawn = []
for _ in range(12_000):
    sides = spell(speaker.sentence())
    drawn.append([detokenize(leaf.word for leaf in side if leaf) for side in sides])
pickle.dump((splits, drawn), sys.stdout.buffer)
"""


@cache
def sample():
    """The splits, and sentences drawn without removing the repeated ones.

    From a separate process, without the type checks that slow tests down tenfold.
    """
    command = [sys.executable, "-c", SAMPLE]
    return pickle.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def held(split):
    return sample()[0][split]


def train():
    return held("train")


def lowered(words):
    return [word.lower() for word in words]


def forms(side):
    words = {w.lower() for pair in train() for w in getattr(pair, side)}
    return {word for word in words if word[0].isalpha()}


@pytest.mark.system
def test_the_same_seed_gives_the_same_pairs_and_smaller_sizes_a_prefix():
    assert generate("train", 50) == train()[:50]
    assert generate("train", 50, seed=1) != train()[:50]


def test_the_text_matches_this_version():
    text = "".join(f"{pair.source}\t{pair.target}\n" for pair in train()[:1000])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert (VERSION, digest) == (1, "e7dd08a25438ff8d"), (
        "the text changed: raise VERSION"
    )


@pytest.mark.parametrize("side", ["source", "target"])
def test_no_sentence_is_in_two_splits_or_twice_in_one(side):
    texts = [getattr(pair, side) for split in SPLITS for pair in held(split)]
    assert len(texts) == len(set(texts)) == 21_500


def test_every_sentence_has_one_translation():
    translations, repeated = {pair.source: pair.target for pair in train()}, 0
    for source, target in sample()[1]:
        repeated += source in translations
        assert translations.setdefault(source, target) == target
    assert repeated > 200


def test_unknown_splits_are_refused():
    with pytest.raises(ValueError, match="dev.*train, validation, test"):
        generate("dev", 5)


def test_sizes_beyond_the_grammar_are_refused(monkeypatch):
    only = phrase("TOP", [word("X", "um dois três quatro cinco", "one two")])
    monkeypatch.setattr(Speaker, "sentence", lambda self: only)
    with pytest.raises(ValueError, match="'train' has about 1 sentences: 5 were"):
        generate("train", 5)


def brackets(tree):
    """Read a bracketed tree into (label, children) and words."""
    stack = [[]]
    for token in re.findall(r"[()]|[^\s()]+", tree):
        if token == "(":
            stack.append([])
        elif token == ")":
            label, *children = stack.pop()
            stack[-1].append((label, children))
        else:
            stack[-1].append(token)
    return stack[0][0]


def noun_phrases(node):
    label, children = node
    if label == "NP":
        yield children
    for child in children:
        if isinstance(child, tuple):
            yield from noun_phrases(child)


def combinations(pair):
    """Return the adjectives that occur with nouns in one English noun phrase."""
    found = set()
    for children in noun_phrases(brackets(pair.target_tree)):
        words = {label: leaf[0] for label, leaf in children}
        if isinstance(words.get("ADJ"), str) and isinstance(words.get("N"), str):
            found.add((words["ADJ"].lower(), words["N"].lower()))
    return found


def test_held_out_combinations_are_unseen_and_their_parts_are_not():
    seen = set().union(*map(combinations, train()))
    known = Counter(word for pair in train() for word in lowered(pair.target_words))
    held_out = {tuple(name.split("+")) for name in HELD_OUT if "+" in name}
    tested = [combinations(pair) & held_out for pair in held("test_combinations")]
    assert not held_out & seen
    assert sum(map(bool, tested)) > 50
    parts = {part for pairs in tested for pair in pairs for part in pair}
    assert min(known[part] for part in parts) >= 10


def test_held_out_objects_never_follow_their_verbs():
    bought = {name.split(">")[1] for name in HELD_OUT if name.startswith("buy>")}
    verb = re.compile(r"\b(?:buy|buys|bought|buying) (?:the|an?|this|that) (\w+)")
    assert not bought & {m for pair in train() for m in verb.findall(pair.target)}
    tested = {m for p in held("test_combinations") for m in verb.findall(p.target)}
    assert bought & tested


def test_alignments_link_the_content_words_of_both_sides():
    for pair in train()[:5000]:
        sources = {i for i, _ in pair.alignment}
        targets = {j for _, j in pair.alignment}
        assert sources <= set(range(len(pair.source_words)))
        assert targets <= set(range(len(pair.target_words)))
        for tree, linked in ((pair.source_tree, sources), (pair.target_tree, targets)):
            labels = re.findall(r"\((\S+) [^\s()]+\)", tree)
            content = ("N", "V", "ADJ", "NAME", "NEG", "CL", "WH")
            for position, label in enumerate(labels):
                assert label not in content or position in linked, pair


def test_alignments_are_the_translations():
    pair = next(p for p in train() if p.source.startswith("De quem é"))
    links = {
        (pair.source_words[i].lower(), pair.target_words[j].lower())
        for i, j in pair.alignment
    }
    assert {("quem", "whose"), ("é", "is"), ("?", "?")} <= links


def test_the_leaves_of_the_trees_are_the_words_of_the_text():
    for pair in train()[:5000]:
        for text, words, tree in (
            (pair.source, pair.source_words, pair.source_tree),
            (pair.target, pair.target_words, pair.target_tree),
        ):
            assert tuple(re.findall(r" ([^\s()]+)\)", tree)) == words
            assert tree.count("(") == tree.count(")")
            assert re.sub(r" ([.,?]|'s)(?= |$)", r"\1", " ".join(words)) == text
            assert text[0].isupper() and text[-1] in ".?"


@pytest.mark.parametrize("side", ["source_words", "target_words"])
def test_the_corpus_is_rich_and_its_sentences_long(side):
    assert len(forms(side)) >= 600
    lengths = [sum(w[0].isalpha() for w in getattr(p, side)) for p in train()]
    assert sum(lengths) / len(lengths) >= 9


def test_articles_and_other_determiners_agree_with_their_nouns():
    genders = dict.fromkeys(FEMININE, "f") | dict.fromkeys(MASCULINE, "m")
    nouns = {noun: (gender, "s") for noun, gender in genders.items()}
    for noun, gender in genders.items():
        plural = PLURALS.get(noun, noun + "s")
        nouns[plural] = (gender, "sp" if plural == noun else "p")
    kinds = dict.fromkeys(FEMININE_WORDS, "f") | dict.fromkeys(MASCULINE_WORDS, "m")
    checked = 0
    for pair in train():
        for before, noun in pairwise(
            [pair.source_words[0].lower(), *pair.source_words[1:]]
        ):
            if (
                before in kinds
                and noun in nouns
                and before not in ("o", "a", "os", "as")
            ):
                gender, number = nouns[noun]
                plural = before.endswith("s")
                assert (kinds[before], "sp"[plural] in number) == (gender, True), pair
                checked += 1
    assert checked > 10_000


def test_prepositions_and_articles_are_contracted():
    apart = re.compile(
        r"\b(?:(?:de|em|por) (?:os?|as?)|(?:de|em) (?:el[ea]s?|(?:est|aquel)[ea]s?)"
        r"|em uma?|a (?:as?|os?|aquel[ea]s?)) ",
        re.IGNORECASE,
    )
    assert not [pair.source for pair in train() if apart.search(pair.source)]
    text = " ".join(lowered(w for pair in train() for w in pair.source_words))
    for form in "do da dos das no na nos nas num numa ao à aos às pelo pela".split():
        assert f" {form} " in text
    for form in "dele dela deles delas neste naquela àquele deste".split():
        assert f" {form} " in text


def test_english_articles_suit_the_next_sound():
    for pair in train():
        for article, following in pairwise(lowered(pair.target_words)):
            if article in ("a", "an"):
                assert (article == "an") == (following[0] in "aeiou"), pair


def test_no_sentence_starts_with_a_clitic():
    for pair in train():
        assert not pair.source_tree.startswith("(TOP (S (VP (CL"), pair
        assert "-" not in pair.source


@pytest.mark.parametrize(
    ("infinitive", "tense", "expected"),
    [
        ("tocar", "preterite", "toquei tocou tocamos tocaram"),
        ("carregar", "preterite", "carreguei carregou carregamos carregaram"),
        ("calçar", "preterite", "calcei calçou calçamos calçaram"),
        ("dirigir", "present", "dirijo dirige dirigimos dirigem"),
        ("oferecer", "present", "ofereço oferece oferecemos oferecem"),
        ("trazer", "preterite", "trouxe trouxe trouxemos trouxeram"),
        ("construir", "present", "construo constrói construímos constroem"),
        ("ouvir", "present", "ouço ouve ouvimos ouvem"),
        ("dar", "preterite", "dei deu demos deram"),
        ("estar", "imperfect", "estava estava estávamos estavam"),
    ],
)
def test_verbs_are_conjugated(infinitive, tense, expected):
    assert list(conjugate(infinitive, tense).values()) == expected.split()


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("^Estou ", "^I am "),
        ("^Vou (?:ler|ajudar|comprar) ", "^I am going to (?:read|help|buy) "),
        ("^Nós vamos ", "^We (?:are going to|go|do not go)"),
        ("^Comprei ", "^I bought "),
        ("^Encontramos ", "^We found "),
        ("^Queremos ", "^We want to "),
        ("^Ainda não [oa]s ", "^(?:We|I) have not .* them.* yet"),
        ("^Já a ", "^(?:We|I) have already .* her"),
        (" vai me ajudar", " (?:is|are)(?: not)? going to help me"),
        (" nos convidou", " invited us"),
        (" lhe deu ", " gave (?:him|her) "),
        (" lhes deram ", " gave them "),
        ("comprou um[^.]* e o l", "bought an?[^.]* and (?:washed|read) it"),
        ("^Há dois ", "^There are two "),
        ("^Havia uma ", "^There was an? "),
        (" é mais alt[oa] do que ", " is taller than "),
        (" é a aluna mais | é o aluno mais ", " is the .* student in the "),
        (" foram compradas pel", " were bought by "),
        ("carro (?:[a-z]+ )?d[ao] [A-Z]", "'s (?:[a-z]+ )?car"),
        ("filh[oa] dele ", "(?i)his (?:son|daughter)"),
        ("carro dela ", "her car"),
        ("^De quem é este ", "^Whose .* is this\\?$"),
        ("^De quem são aquel[ea]s ", "^Whose .* are those\\?$"),
        ("^Quant[oa]s ", "^How many .* (?:did|is|are|am) "),
        ("^Onde você ", "^Where did you "),
        ("^Quem vai ", "^Who is going to "),
        ("^Está chovendo ", "^It is raining "),
        ("^Se nevar amanhã, ", "^If it snows tomorrow, "),
        ("^O Pedro gosta d", "^Pedro likes "),
        ("^Todas as manhãs ", "^Every morning, "),
        (" ontem à noite\\.", " last night\\."),
        ("menino que comprou", "boy who bought"),
    ],
)
def test_constructions_are_translated_as_they_should_be(source, target):
    pairs = [pair for pair in train() if re.search(source, pair.source)]
    assert pairs
    for pair in pairs:
        assert re.search(target, pair.target), pair


def test_a_dictionary_is_not_enough():
    pairs = held("test")
    guesses = word_for_word(train(), [pair.source for pair in pairs])
    score = sacrebleu.corpus_bleu(guesses, [[pair.target for pair in pairs]]).score
    assert 5 < score < 60


def test_a_dictionary_takes_the_most_frequent_word_and_copies_the_unknown():
    words = [("O gato vê peixe", "The cat sees fish"), ("O gato vê", "A cat sees")]
    words.append(("O gato", "The cat"))
    pairs = [
        Pair("", "", *(tuple(side.split()) for side in both), links, "", "")
        for both in words
        for links in [tuple((i, i) for i in range(len(both[0].split())) if i != 2)]
    ]
    assert word_for_word(pairs, ["O gato vê xyz, o peixe?"]) == [
        "The cat xyz, the fish?"
    ]

"""The embedded corpus: right in both languages, reproducible, its splits disjoint."""

import re
from functools import cache
from itertools import pairwise

import pytest
import sacrebleu

from transformer_jax.data.inflection import conjugate
from transformer_jax.data.phrasebook import HELD_OUT, SPLITS, generate, word_for_word

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


@cache
def train():
    return generate("train", 20_000)


@cache
def held(split):
    return generate(split, 500)


def lowered(words):
    return [word.lower() for word in words]


def forms(side):
    words = {w.lower() for pair in train() for w in getattr(pair, side)}
    return {word for word in words if word[0].isalpha()}


def test_the_same_seed_gives_the_same_pairs_and_smaller_sizes_a_prefix():
    assert generate("train", 50) == train()[:50]
    assert generate("test", 20, seed=1) != held("test")[:20]


def test_the_text_is_the_one_of_this_version():
    assert [(pair.source, pair.target) for pair in train()[:2]] == [
        ("?", "?"),
    ]


@pytest.mark.parametrize("side", ["source", "target"])
def test_no_sentence_is_in_two_splits_or_twice_in_one(side):
    splits = {split: held(split) for split in SPLITS[1:]} | {"train": train()}
    texts = [getattr(pair, side) for pairs in splits.values() for pair in pairs]
    assert len(texts) == len(set(texts)) == 21_500


def test_every_sentence_has_one_translation():
    translations = {}
    for seed in (0, 1, 2):
        pairs = train() if seed == 0 else generate("train", 10_000, seed)
        for pair in pairs:
            assert translations.setdefault(pair.source, pair.target) == pair.target


def test_unknown_splits_and_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match="dev.*train, validation, test"):
        generate("dev", 5)


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
    """Return the adjectives met with nouns in one English noun phrase."""
    found = set()
    for children in noun_phrases(brackets(pair.target_tree)):
        words = {label: leaf[0] for label, leaf in children}
        if isinstance(words.get("ADJ"), str) and isinstance(words.get("N"), str):
            found.add((words["ADJ"].lower(), words["N"].lower()))
    return found


def test_held_out_combinations_are_unseen_and_their_parts_are_not():
    seen = set().union(*map(combinations, train()))
    known = {word for pair in train() for word in lowered(pair.target_words)}
    held_out = {tuple(name.split("+")) for name in HELD_OUT if "+" in name}
    new = [combinations(pair) - seen for pair in held("test_combinations")]
    assert not held_out & seen
    assert sum(bool(met & held_out) for met in new) > 100
    assert all(word in known for met in new for pair in met for word in pair)
    assert sum(map(bool, new)) < 500  # the others hold out a verb and its object


def test_held_out_objects_never_follow_their_verbs():
    eaten = {name.split(">")[1] for name in HELD_OUT if name.startswith("eat>")}
    verb = re.compile(r"\b(?:eat|eats|ate|eaten|eating) (?:the|an?) (\w+)")
    assert eaten
    assert not eaten & {m for pair in train() for m in verb.findall(pair.target)}
    tested = {m for p in held("test_combinations") for m in verb.findall(p.target)}
    assert eaten & tested


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
def test_the_corpus_is_as_rich_and_long_as_a_language(side):
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
        for word, noun in pairwise(
            [pair.source_words[0].lower(), *pair.source_words[1:]]
        ):
            if word in kinds and noun in nouns and word not in ("o", "a", "os", "as"):
                gender, number = nouns[noun]
                plural = word.endswith("s") or word == "dois"
                assert (kinds[word], "sp"[plural] in number) == (gender, True), pair
                checked += 1
    assert checked > 10_000


def test_what_contracts_is_contracted():
    apart = re.compile(
        r"\b(?:(?:de|em|por) (?:os?|as?)|(?:de|em) (?:el[ea]s?|(?:est|aquel)[ea]s?)"
        r"|em uma?|a (?:as?|os?|aquel[ea]s?)) ",
        re.IGNORECASE,
    )
    assert not [pair.source for pair in train() if apart.search(pair.source)]
    text = " ".join(lowered(f for pair in train() for f in pair.source_words))
    for word in "do da dos das no na nos nas num numa ao à aos às pelo pela".split():
        assert f" {word} " in text
    for word in "dele dela deles delas neste naquela àquele deste".split():
        assert f" {word} " in text


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

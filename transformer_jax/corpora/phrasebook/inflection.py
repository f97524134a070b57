"""Inflect the words of the phrasebook, in Portuguese and in English.

Everything regular follows a rule; the tables hold only the exceptions and the endings.
Respellings that keep a sound (tocar, toquei; run, running) are part of the rules.
"""

import re

PERSONS = ("1s", "3s", "1p", "3p")  # eu; ele, ela, você; nós; eles, elas, vocês
_IRREGULAR_VERBS = {
    "ler": {"present": "leio lê lemos leem"},
    "ver": {
        "present": "vejo vê vemos veem",
        "preterite": "vi viu vimos viram",
        "participle": "visto",
    },
    "perder": {"present": "perco perde perdemos perdem"},
    "abrir": {"participle": "aberto"},
    "escrever": {"participle": "escrito"},
    "vestir": {"present": "visto veste vestimos vestem"},
    "dormir": {"present": "durmo dorme dormimos dormem"},
    "ouvir": {"present": "ouço ouve ouvimos ouvem"},
    "trazer": {
        "present": "trago traz trazemos trazem",
        "preterite": "trouxe trouxe trouxemos trouxeram",
    },
    "construir": {
        "present": "construo constrói construímos constroem",
        "preterite": "construí construiu construímos construíram",
        "participle": "construído",
        "imperfect": "construía construía construíamos construíam",
    },
    "limpar": {"participle": "limpo"},
    "dar": {"present": "dou dá damos dão", "preterite": "dei deu demos deram"},
    "ir": {
        "present": "vou vai vamos vão",
        "preterite": "fui foi fomos foram",
        "imperfect": "ia ia íamos iam",
    },
    "dizer": {"preterite": "disse disse dissemos disseram"},
    "querer": {"present": "quero quer queremos querem"},
    "poder": {"present": "posso pode podemos podem"},
    "saber": {"present": "sei sabe sabemos sabem"},
    "ser": {
        "present": "sou é somos são",
        "preterite": "fui foi fomos foram",
        "imperfect": "era era éramos eram",
    },
    "estar": {"present": "estou está estamos estão"},
}
_ENDINGS = {  # by the theme vowel of the infinitive
    "a": {
        "present": "o a amos am",
        "preterite": "ei ou amos aram",
        "imperfect": "ava ava ávamos avam",
        "participle": "ado",
    },
    "e": {
        "present": "o e emos em",
        "preterite": "i eu emos eram",
        "imperfect": "ia ia íamos iam",
        "participle": "ido",
    },
    "i": {
        "present": "o e imos em",
        "preterite": "i iu imos iram",
        "imperfect": "ia ia íamos iam",
        "participle": "ido",
    },
}

_IRREGULAR_PLURALS = {
    "irmão": "irmãos",
    "pão": "pães",
    "lápis": "lápis",
    "ônibus": "ônibus",
    "fácil": "fáceis",
    "difícil": "difíceis",
}


def conjugate(infinitive: str, tense: str) -> dict[str, str]:
    """Return the forms of a Portuguese verb in one tense, by person."""
    forms = _IRREGULAR_VERBS.get(infinitive, {}).get(tense)
    if forms is None:
        endings = _ENDINGS[infinitive[-2]][tense].split()
        forms = " ".join(_attached(infinitive, ending) for ending in endings)
    return dict(zip(PERSONS, forms.split(), strict=True))


def participle_of(infinitive: str) -> str:
    """Return the masculine singular past participle of a Portuguese verb."""
    irregular = _IRREGULAR_VERBS.get(infinitive, {}).get("participle")
    return irregular or infinitive[:-2] + _ENDINGS[infinitive[-2]]["participle"]


def _attached(infinitive: str, ending: str) -> str:
    """Attach an ending, respelling the stem where its sound would change."""
    stem, theme = infinitive[:-2], infinitive[-2]
    if theme == "a" and ending[0] == "e":
        stem = re.sub("ç$", "c", re.sub("c$", "qu", re.sub("g$", "gu", stem)))
    elif theme != "a" and ending[0] in "oa":
        stem = re.sub("c$", "ç", re.sub("g$", "j", stem))
    return stem + ending


def pluralize(word: str) -> str:
    """Return the plural of a Portuguese noun or adjective."""
    if word in _IRREGULAR_PLURALS:
        return _IRREGULAR_PLURALS[word]
    for ending, plural in (
        ("ão", "ões"),
        ("ês", "eses"),
        ("m", "ns"),
        ("el", "éis"),
        ("l", "is"),
        ("r", "res"),
        ("z", "zes"),
    ):
        if word.endswith(ending):
            return word.removesuffix(ending) + plural
    return word + "s"


def add_s(word: str) -> str:
    """Add the English -s of plurals and of the third person."""
    if re.search("[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + ("es" if re.search("(s|x|ch|sh|[^aeiou]o)$", word) else "s")


def _doubled(word: str) -> str:
    """Double the last consonant of a short syllable: run, running."""
    short = re.search("^[^aeiou]*[aeiou][^aeiouwxy]$", word)
    return word + word[-1] if short else word


def past_of(word: str) -> str:
    """Return the past of a regular English verb."""
    word = re.sub("(?<=[^aeiou])y$", "i", word)
    return _doubled(word).rstrip("e") + "ed"


def ing_of(word: str) -> str:
    """Return the present participle of an English verb."""
    return (word if word[-2:] in ("ee", "be") else _doubled(word).rstrip("e")) + "ing"


def grade(word: str, ending: str, adverb: str) -> str:
    """Compare an English adjective: taller, happier, but more famous."""
    if word.endswith("y"):
        return word[:-1] + "i" + ending
    if len(re.findall("[aeiou]+", word.rstrip("e"))) > 1:
        return adverb + " " + word
    return _doubled(word).rstrip("e") + ending


def contract() -> dict[tuple[str, str], str]:
    """Tabulate Portuguese prepositions before determiners and pronouns."""
    table = {("em", "um"): "num", ("em", "uma"): "numa"}
    for article, fused in dict(o="ao", a="à", os="aos", **{"as": "às"}).items():
        table["a", article] = fused
        table["por", article] = "pel" + article
    for word in str.split("o a os as ele ela eles elas este esta estes estas"):
        table["de", word], table["em", word] = "d" + word, "n" + word
    for word in ["aquele", "aquela", "aqueles", "aquelas"]:
        table["de", word], table["em", word] = "d" + word, "n" + word
        table["a", word] = "à" + word[1:]
    return table

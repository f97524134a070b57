"""The words of the phrasebook, their inflection and which of them go together.

Entries are written `portuguese=english`; everything regular is inflected by rule and
only exceptions are spelled out. Each noun belongs to one semantic class, and verbs
and adjectives name the classes they go with, so that people read books and eat cake.
"""

import re
from typing import NamedTuple

from transformer_jax.corpora.phrasebook import inflection


class Noun(NamedTuple):
    """A noun; `preposition` is the English one for being in, at or on it."""

    kind: str
    gender: str
    source: tuple[str, str]  # singular, plural
    target: tuple[str, str]
    preposition: str


class Adjective(NamedTuple):
    """An adjective; `copula` is the Portuguese verb for "to be" that it takes."""

    source: dict[str, str]  # "ms", "fs", "mp", "fp"
    target: str
    copula: str
    kinds: tuple[str, ...]
    graded: bool


class Verb(NamedTuple):
    """A verb: `source[tense][person]`, and the preposition before its object."""

    infinitive: str
    gerund: str
    participle: str
    source: dict[str, dict[str, str]]
    preposition: str
    target: str  # base form; particles such as "for" are kept apart
    third: str
    past: str
    past_participle: str
    ing: str
    particle: str
    kinds: tuple[str, ...]


_NOUNS = {
    "person": """menino=boy menina=girl homem.m=man/men mulher.f=woman/women
        professora=teacher médico=doctor enfermeira=nurse aluno=student
        vizinha=neighbor engenheiro=engineer cozinheiro=cook advogada=lawyer
        pintor.m=painter ator.m=actor cantora=singer fazendeiro=farmer amigo=friend
        soldado=soldier escritora=writer rainha=queen""",
    "kin": """pai.m=father mãe.f=mother irmão.m=brother irmã.f=sister avô.m=grandfather
        avó.f=grandmother tio=uncle tia=aunt primo=cousin filho=son filha=daughter
        esposa=wife/wives marido=husband""",
    "animal": """gato=cat cachorro=dog pássaro=bird cavalo=horse vaca=cow galinha=hen
        coelho=rabbit porco=pig pato=duck macaco=monkey elefante.m=elephant
        ovelha=sheep/sheep""",
    "food": """maçã.f=apple laranja=orange banana=banana bolo=cake ovo=egg batata=potato
        cenoura=carrot tomate.m=tomato sanduíche.m=sandwich biscoito=cookie
        cebola=onion limão.m=lemon""",
    "meal": """pão.m=bread arroz.m=rice queijo=cheese carne.f=meat sopa=soup
        frango=chicken manteiga=butter""",
    "drink": """água=water leite.m=milk café.m=coffee chá.m=tea suco=juice vinho=wine
        cerveja=beer""",
    "book": "livro=book carta=letter bilhete.m=note",
    "writing": "poema.m=poem mensagem.f=message história=story artigo=article",
    "press": "jornal.m=newspaper revista=magazine",
    "garment": "camisa=shirt vestido=dress saia=skirt casaco=coat blusa=blouse",
    "footwear": "sapato=shoe meia=sock luva=glove bota=boot",
    "accessory": "chapéu.m=hat gravata=tie cinto=belt",
    "device": """telefone.m=phone relógio=clock espelho=mirror lâmpada=lamp boneca=doll
        câmera=camera computador.m=computer bicicleta=bicycle""",
    "trinket": """chave.f=key carteira=wallet lápis.m=pencil caneta=pen bola=ball
        presente.m=gift moeda=coin mapa.m=map""",
    "dish": """copo=glass prato=plate xícara=cup garrafa=bottle
        tigela=bowl""",
    "cutlery": "faca=knife/knives colher.f=spoon garfo=fork",
    "opening": "porta=door janela=window portão.m=gate",
    "vehicle": """carro=car ônibus.m=bus caminhão.m=truck trator.m=tractor
        trem.m=train táxi.m=taxi""",
    "plant": "flor.f=flower rosa=rose",
    "tree": "árvore.f=tree",
    "instrument": "violão.m=guitar piano=piano/pianos flauta=flute violino=violin",
    "subject": """inglês.m=English português.m=Portuguese matemática=mathematics
        química=chemistry física=physics música=music""",
    "sport": "futebol.m=soccer xadrez.m=chess tênis.m=tennis",
    "show": """filme.m=movie jogo=game concerto=concert programa.m=program""",
    "song": "canção.f=song hino=anthem ópera=opera",
    "sound": "rádio=radio",
    "art": "quadro=painting retrato=portrait",
    "surface": "mesa=table cadeira=chair cama=bed sofá.m=couch estante.f=shelf/shelves",
    "container": "caixa=box gaveta=drawer mochila=backpack armário=closet cesta=basket",
    "room": "cozinha=kitchen quarto=bedroom banheiro=bathroom garagem.f=garage",
    "building": "casa=house igreja=church loja=store hotel.m=hotel ponte.f=bridge",
    "town": "jardim.m=garden cidade.f=city floresta=forest praça=square aldeia=village",
    "street": "rua=street",
    "venue": """escola=school hospital.m=hospital museu.m=museum biblioteca=library
        mercado=market restaurante.m=restaurant estação.f=station
        aeroporto=airport teatro=theater""",
    "waters": "rio=river mar.m=sea",
    "land": "fazenda=farm ilha=island montanha=mountain praia=beach",
}
_GROUPS = {
    "text": "book writing press",
    "clothes": "garment footwear accessory",
    "thing": "device trinket",
}
_PREPOSITIONS = {"surface": "on", "land": "on", "venue": "at"}
MASS = ("meal", "drink", "subject", "sport")  # never counted, and never with "a"

NAMES = {
    "f": ["Maria", "Ana", "Clara", "Lúcia", "Helena", "Júlia", "Beatriz", "Sofia"],
    "m": ["João", "Pedro", "Paulo", "Carlos", "Tiago", "Miguel", "Rafael", "André"],
}

# The copula and the classes, then the adjectives; a star marks those with degrees.
_ADJECTIVES = {
    ("ser", "clothes device vehicle dish opening container surface plant building"): """
        vermelho=red azul=blue verde=green amarelo=yellow branco=white preto=black""",
    ("ser", "clothes device vehicle building container art instrument surface"): """
        caro*=expensive barato*=cheap novo=new bonito*=beautiful""",
    ("ser", "device vehicle animal building container town surface dish tree"): """
        grande=big pequeno=small""",
    ("ser", "person animal"): "velho*=old forte*=strong",
    ("ser", "person"): """alto*=tall jovem*=young inteligente*=intelligent rico*=rich
        famoso*=famous simpático*=nice brasileiro=Brazilian francês=French""",
    ("ser", "animal vehicle"): "rápido*=fast lento*=slow",
    ("ser", "animal town street"): "perigoso*=dangerous",
    ("ser", "surface container device instrument"): "pesado*=heavy leve*=light",
    ("ser", "text show art venue town"): "interessante*=interesting",
    ("ser", "book writing show song"): "longo*=long curto*=short triste*=sad",
    ("ser", "subject book writing song"): "difícil*=difficult fácil*=easy",
    ("ser", "food meal"): "delicioso*=delicious",
    ("ser", "venue building"): "antigo*=ancient",
    ("ser", "venue town street land"): "tranquilo*=quiet",
    ("estar", "person"): """cansado*=tired doente*=sick feliz*=happy ocupado*=busy
        preocupado*=worried zangado*=angry nervoso*=nervous""",
    ("estar", "meal drink"): "frio*=cold quente*=hot",
    ("estar", "opening venue container"): "aberto=open fechado=closed",
    ("estar", "venue container dish"): "cheio*=full vazio*=empty",
    ("estar", "clothes dish cutlery room vehicle surface"): "sujo*=dirty limpo*=clean",
    ("estar", "device vehicle dish instrument"): "quebrado=broken",
    ("estar", "clothes"): "molhado*=wet seco*=dry",
}

# A verb, its translation and the classes of its object; the part after "_" is the
# preposition before the object in Portuguese, the particle in English.
_TRANSITIVE = """
comer=eat/ate/eaten: food meal
beber=drink/drank/drunk: drink
preparar=prepare: food meal
cortar=cut/cut/cut: food
ler=read/read/read: text
escrever=write/wrote/written: book writing
comprar=buy/bought/bought: food meal drink text clothes thing dish cutlery vehicle plant
vender=sell/sold/sold: food clothes vehicle art instrument surface
ver=see/saw/seen: person animal vehicle art
encontrar=find/found/found: thing clothes animal container
perder=lose/lost/lost: thing clothes
procurar=look_for: thing clothes animal person
abrir=open: opening container
fechar=close: opening container
limpar=clean: room surface opening
lavar=wash: clothes dish cutlery vehicle
vestir=put_on/put/put: garment
calçar=put_on/put/put: footwear
usar=wear/wore/worn: clothes
quebrar=break/broke/broken: dish device
trazer=bring/brought/brought: food drink dish cutlery thing text clothes
carregar=carry: container surface instrument
estudar=study: subject
ensinar=teach/taught/taught: subject
ajudar=help: person kin
visitar=visit: kin person venue town land building
convidar=invite: person kin
cumprimentar=greet: person kin
esperar=wait_for: person kin vehicle
desenhar=draw/drew/drawn: animal plant tree building device
pintar=paint: building opening art surface
construir=build/built/built: building
consertar=repair: vehicle instrument device
dirigir=drive/drove/driven: vehicle
ouvir=listen_to: song sound
assistir_a=watch: show
tocar=play: instrument
jogar=play: sport
cantar=sing/sang/sung: song
plantar=plant: plant tree
gostar_de=like: food meal drink animal sport subject song town
precisar_de=need: thing clothes container dish cutlery
alimentar=feed/fed/fed: animal
"""
_DATIVE = """
dar=give/gave/given: thing text clothes plant
mostrar=show/showed/shown: text art thing vehicle
enviar=send/sent/sent: book writing plant
emprestar=lend/lent/lent: thing text clothes vehicle
oferecer=offer: food drink plant
"""
_INTRANSITIVE = """
dormir=sleep/slept/slept: room
trabalhar=work: venue town
correr=run/ran/run: town street
nadar=swim/swam/swum: waters
chorar=cry: room
dançar=dance: venue town
descansar=rest: room town
caminhar=walk: town street
viajar=travel:
"""
_MOTION = """
ir_a=go_to/went/gone: venue town land
voltar_a=return_to: venue town land
chegar_a=arrive_at: venue
"""
_AUXILIARY = """
ser=be/was/been:
estar=be/was/been:
querer=want_to:
poder=can/could/could:
precisar=need_to:
dizer=say/said/said:
achar=think/thought/thought:
saber=know/knew/known:
"""
TENSES = ("present", "preterite", "imperfect")
SCENES = {  # where an action on an object is likely to take place
    name: kinds.split()
    for kinds, names in {
        "room venue": "comer beber preparar ler escrever",
        "venue": "estudar ensinar assistir",
        "street": "dirigir tocar comprar vender",
        "room": "cortar vestir calçar",
        "venue town": "ver perder cantar jogar desenhar procurar ajudar",
        "room container": "encontrar",
    }.items()
    for name in names.split()
}
STATIVE = ("gostar", "precisar", "ver", "encontrar", "perder")  # no progressive
ACCIDENTAL = ("perder", "quebrar")  # never planned
# Things that are done once are not done every day.
ONCE = str.split("construir quebrar perder encontrar vender consertar plantar pintar")

# Fixed adverbials: tagged words of both sides, links between their positions.
ADVERBIALS = {
    "past": (
        ("ontem/ADV", "yesterday/ADV", "0-0"),
        ("ontem/ADV à/PREP noite/N", "last/ADJ night/N", "0-0 2-1"),
        ("na/PREP semana/N passada/ADJ", "last/ADJ week/N", "1-1 2-0"),
        ("no/PREP mês/N passado/ADJ", "last/ADJ month/N", "1-1 2-0"),
        ("no/PREP ano/N passado/ADJ", "last/ADJ year/N", "1-1 2-0"),
        ("hoje/ADV de/PREP manhã/N", "this/DET morning/N", "0-0 2-1"),
    ),
    "habit": (
        ("todos/DET os/DET dias/N", "every/DET day/N", "0-0 2-1"),
        ("todas/DET as/DET manhãs/N", "every/DET morning/N", "0-0 2-1"),
        ("toda/DET semana/N", "every/DET week/N", "0-0 1-1"),
        ("aos/PREP domingos/N", "on/PREP Sundays/N", "0-0 1-1"),
        ("às/PREP vezes/N", "sometimes/ADV", "0-0 1-0"),
        ("de/PREP manhã/N", "in/PREP the/DET morning/N", "0-0 1-2"),
        ("à/PREP noite/N", "at/PREP night/N", "0-0 1-1"),
    ),
    "now": (
        ("agora/ADV", "now/ADV", "0-0"),
        ("neste/PREP momento/N", "at/PREP this/DET moment/N", "0-0 0-1 1-2"),
        ("hoje/ADV", "today/ADV", "0-0"),
    ),
    "future": (
        ("amanhã/ADV", "tomorrow/ADV", "0-0"),
        ("na/PREP próxima/ADJ semana/N", "next/ADJ week/N", "1-0 2-1"),
        ("no/PREP próximo/ADJ mês/N", "next/ADJ month/N", "1-0 2-1"),
        ("no/PREP sábado/N", "on/PREP Saturday/N", "0-0 1-1"),
        ("hoje/ADV à/PREP noite/N", "tonight/ADV", "0-0 2-0"),
    ),
}

PRONOUNS = {  # subject, its translation, the Portuguese and the English person
    "eu": ("I", "1s", "I"),
    "você": ("you", "3s", "they"),
    "ele": ("he", "3s", "he"),
    "ela": ("she", "3s", "he"),
    "nós": ("we", "1p", "they"),
    "vocês": ("you", "3p", "they"),
    "eles": ("they", "3p", "they"),
    "elas": ("they", "3p", "they"),
}
CLITICS = dict(me="me", nos="us", o="him", a="her", os="them", **{"as": "them"})
_DETERMINERS = """
o a os as=the the
um uma=a
este esta estes estas=this these
aquele aquela aqueles aquelas=that those
meu minha meus minhas=my my
nosso nossa nossos nossas=our our
cada cada=each
outro outra=another
- - alguns algumas=- some
- - muitos muitas=- many
- - vários várias=- several
- - dois duas=- two
- - três três=- three
- - quatro quatro=- four
- - cinco cinco=- five
- - seis seis=- six
- - sete sete=- seven
- - oito oito=- eight
- - nove nove=- nine
- - dez dez=- ten
- - doze doze=- twelve
- - vinte vinte=- twenty
"""
NUMBERS = str.split("two three four five six seven eight nine ten twelve twenty")


def _spread(kinds: str) -> tuple[str, ...]:
    """Split a list of classes, with the groups among them replaced by their members."""
    return tuple(" ".join(_GROUPS.get(kind, kind) for kind in kinds.split()).split())


def _read_nouns(kind: str, entries: str) -> list[Noun]:
    nouns = []
    for entry in entries.split():
        source, _, target = entry.partition("=")
        source, _, gender = source.partition(".")
        target, _, plural = target.partition("/")
        nouns.append(
            Noun(
                kind,
                gender or {"a": "f", "o": "m"}[source[-1]],
                (source, inflection.pluralize(source)),
                (target, plural or inflection.add_s(target)),
                _PREPOSITIONS.get(kind, "in"),
            )
        )
    return nouns


def _read_adjectives(copula: str, kinds: str, entries: str) -> list[Adjective]:
    adjectives = []
    for entry in entries.split():
        masculine, _, target = entry.partition("=")
        graded = masculine.endswith("*")
        masculine = masculine.rstrip("*")
        feminine = re.sub("o$", "a", masculine).replace("ês", "esa")
        forms = {"m": masculine, "f": feminine}
        source = {g + "s": word for g, word in forms.items()}
        source |= {g + "p": inflection.pluralize(word) for g, word in forms.items()}
        adjectives.append(Adjective(source, target, copula, _spread(kinds), graded))
    return adjectives


def _read_verbs(entries: str) -> list[Verb]:
    verbs = []
    for entry in entries.strip().splitlines():
        names, _, kinds = entry.partition(":")
        infinitive, _, english = names.partition("=")
        infinitive, _, preposition = infinitive.partition("_")
        base, *parts = english.split("/")
        base, _, particle = base.partition("_")
        past, past_participle = parts or [inflection.past_of(base)] * 2
        verbs.append(
            Verb(
                infinitive,
                infinitive[:-1] + "ndo",
                inflection.participle_of(infinitive),
                {tense: inflection.conjugate(infinitive, tense) for tense in TENSES},
                preposition,
                base,
                inflection.add_s(base),
                past,
                past_participle,
                inflection.ing_of(base),
                particle,
                _spread(kinds),
            )
        )
    return verbs


NOUNS = {kind: _read_nouns(kind, entries) for kind, entries in _NOUNS.items()}
ADJECTIVES = [
    adjective
    for (copula, kinds), entries in _ADJECTIVES.items()
    for adjective in _read_adjectives(copula, kinds, entries)
]
TRANSITIVE, DATIVE, INTRANSITIVE, MOTION, AUXILIARY = map(
    _read_verbs, (_TRANSITIVE, _DATIVE, _INTRANSITIVE, _MOTION, _AUXILIARY)
)
DETERMINERS = {
    english.split()[-1]: (source.split(), english.split())
    for source, _, english in (
        line.partition("=") for line in _DETERMINERS.strip().splitlines()
    )
}
CONTRACTIONS = inflection.contract()

"""Phonemes as targets of a formant synthesizer, and a lexicon of words.

A phoneme is one or two segments. A segment has a duration, the first three resonances
of the vocal tract, and how loud its three sources are: the voice, breath through the
same resonances, and the noise of a constriction, which has a spectrum of its own.
Resonances are of an adult male voice (Peterson and Barney 1952 for the vowels).
"""

from typing import NamedTuple


class Segment(NamedTuple):
    """Targets of a stretch of speech: milliseconds, Hz, and amplitudes."""

    duration: float
    f1: float
    f2: float
    f3: float
    voice: float = 1.0
    breath: float = 0.0
    noise: float = 0.0
    centre: float = 4000.0  # of the noise's spectrum
    width: float = 1000.0


def _vowel(duration: float, f1: float, f2: float, f3: float) -> tuple[Segment, ...]:
    return (Segment(duration, f1, f2, f3),)


def _glide(
    duration: float,
    first: tuple[float, float, float],
    second: tuple[float, float, float],
) -> tuple[Segment, ...]:
    """Move from one vowel to another; the first takes more of the time."""
    return Segment(0.6 * duration, *first), Segment(0.4 * duration, *second)


def _fricative(
    duration: float, noise: float, centre: float, width: float, voice: float = 0.0
) -> tuple[Segment, ...]:
    return (Segment(duration, 350, 1700, 2600, voice, 0.0, noise, centre, width),)


def _stop(
    locus: tuple[float, float], noise: float, centre: float, width: float, voiced: bool
) -> tuple[Segment, ...]:
    """Close the tract, then release it: a burst, and breath if it has no voice."""
    voice, breath = (0.6, 0.0) if voiced else (0.0, 0.35)
    closed = Segment(55 if voiced else 70, 220, *locus, 0.12 * voiced)
    burst = Segment(
        16 if voiced else 34, 320, *locus, voice, breath, noise, centre, width
    )
    return closed, burst


PHONEMES: dict[str, tuple[Segment, ...]] = {
    "IY": _vowel(120, 270, 2290, 3010),
    "IH": _vowel(85, 390, 1990, 2550),
    "EH": _vowel(100, 530, 1840, 2480),
    "AE": _vowel(135, 660, 1720, 2410),
    "AH": _vowel(90, 640, 1190, 2390),
    "AA": _vowel(135, 730, 1090, 2440),
    "AO": _vowel(130, 570, 840, 2410),
    "UH": _vowel(85, 440, 1020, 2240),
    "UW": _vowel(120, 300, 870, 2240),
    "ER": _vowel(120, 490, 1350, 1690),
    "AX": _vowel(60, 500, 1500, 2500),
    "EY": _glide(150, (480, 1990, 2600), (320, 2250, 2900)),
    "AY": _glide(160, (710, 1150, 2450), (380, 2000, 2600)),
    "OW": _glide(150, (520, 950, 2400), (350, 820, 2280)),
    "AW": _glide(160, (720, 1250, 2450), (400, 930, 2300)),
    "W": (Segment(65, 300, 610, 2200, 0.6),),
    "Y": (Segment(60, 270, 2250, 3000, 0.6),),
    "L": (Segment(70, 360, 1000, 2750, 0.6),),
    "R": (Segment(70, 390, 1150, 1520, 0.6),),
    "M": (Segment(75, 270, 950, 2150, 0.4),),
    "N": (Segment(70, 270, 1650, 2550, 0.4),),
    "NG": (Segment(75, 270, 2150, 2700, 0.4),),
    "S": _fricative(110, 0.6, 6200, 1300),
    "SH": _fricative(110, 0.6, 3400, 1000),
    "F": _fricative(95, 0.16, 5500, 3500),
    "TH": _fricative(90, 0.12, 6800, 1500),
    "Z": _fricative(80, 0.3, 6200, 1300, 0.3),
    "V": _fricative(60, 0.08, 5500, 3500, 0.4),
    "DH": _fricative(45, 0.06, 6800, 1500, 0.4),
    "HH": (Segment(60, 500, 1500, 2500, 0.0, 0.4),),
    "P": _stop((800, 2200), 0.25, 900, 700, voiced=False),
    "T": _stop((1750, 2650), 0.5, 4700, 1600, voiced=False),
    "K": _stop((1950, 2350), 0.45, 2100, 600, voiced=False),
    "B": _stop((800, 2200), 0.2, 900, 700, voiced=True),
    "D": _stop((1750, 2650), 0.35, 4700, 1600, voiced=True),
    "G": _stop((1950, 2350), 0.35, 2100, 600, voiced=True),
    "CH": (
        Segment(60, 220, 1750, 2650, 0.0),
        Segment(80, 350, 1800, 2600, 0.0, 0.0, 0.6, 3400, 1000),
    ),
    "JH": (
        Segment(50, 220, 1750, 2650, 0.1),
        Segment(55, 350, 1800, 2600, 0.3, 0.0, 0.35, 3400, 1000),
    ),
}

_WORDS = """
zero Z IY R OW|one W AH N|two T UW|three TH R IY|four F AO R|five F AY V|six S IH K S|
seven S EH V AX N|eight EY T|nine N AY N|ten T EH N|
red R EH D|green G R IY N|blue B L UW|yellow Y EH L OW|black B L AE K|white W AY T|
brown B R AW N|grey G R EY|
lamp L AE M P|door D AO R|window W IH N D OW|box B AA K S|book B UH K|cup K AH P|
chair CH EH R|table T EY B AX L|clock K L AA K|radio R EY D IY OW|heater HH IY T ER|
ball B AO L|shirt SH ER T|key K IY|bag B AE G|phone F OW N|
kitchen K IH CH AX N|garden G AA R D AX N|hall HH AO L|office AO F IH S|
bedroom B EH D R UW M|garage G AX R AA JH|
turn T ER N|move M UW V|put P UH T|open OW P AX N|close K L OW Z|bring B R IH NG|
take T EY K|find F AY N D|count K AW N T|call K AO L|paint P EY N T|wash W AA SH|
set S EH T|show SH OW|on AA N|off AO F|to T UW|in IH N|from F R AH M|the DH AX|me M IY|
and AE N D|please P L IY Z|now N AW|up AH P|down D AW N|number N AH M B ER
"""
LEXICON: dict[str, tuple[str, ...]] = {
    entry.split()[0]: tuple(entry.split()[1:])
    for entry in _WORDS.replace("\n", " ").split("|")
}

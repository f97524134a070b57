"""Words of the stories: the values of each slot, names and what agrees with them."""

from collections.abc import Sequence

GIRLS: Sequence[str] = """Ana Eva Mia Nora Lucy Rosa Emma Clara Julia Sara Maria Laura
    Helen Alice Irene Sofia Olga Vera Greta Carmen Zoe Ruth Ida Lena""".split()
BOYS: Sequence[str] = """Tom Paul Leo Max Ivan Omar Hugo Felix David Peter Simon Adam
    Marco Victor Daniel Martin Bruno Oscar Nils Yusuf Finn Carl Jack Ben""".split()
GENDERS: dict[str, str] = {
    name: gender for gender, names in (("she", GIRLS), ("he", BOYS)) for name in names
}
KINDS = {
    "she": "girl woman princess shepherdess".split(),
    "he": "boy man prince shepherd".split(),
}
PRONOUNS = {  # slot → its form for a woman, and for a man
    "he": ("she", "he"),
    "him": ("her", "him"),
    "his": ("her", "his"),
}

_SLOTS = """
trait: young brave curious poor quiet cheerful clever shy gentle lonely patient humble
trait2: old wise kind friendly strong tall helpful generous merry careful
size: small little quiet green busy sunny
place: village town valley city hamlet castle forest kingdom
day: morning evening afternoon night Monday Friday Saturday Sunday
feeling: sad worried angry afraid unhappy upset
job: baker farmer fisherman miller gardener teacher doctor sailor painter hunter tailor
    carpenter blacksmith musician nurse soldier traveler merchant
gift: flower cake basket picture scarf loaf song coin pie letter
colour: red blue green yellow white black golden silver
thing: ball kite ring key hat doll drum book coat whistle necklace umbrella lantern
wild: woods hills garden park meadow field market orchard
spot: tree stone bush bench rock fence
tool: lamp rope ladder spade hammer stick saw hook
dish: soup bread cake pie jam porridge pudding salad
food: flour salt sugar butter honey milk apples eggs
animal: cat dog horse lamb rabbit bird fox goat donkey pony
trap: well ditch hole net cave pond
relative: grandmother grandfather aunt uncle sister brother cousin
town: Paris London Rome Berlin Lisbon Vienna Prague Oslo Dublin Athens
barrier: river mountain desert lake swamp
ride: boat cart sledge wagon raft
skill: dance swim read sing paint cook sew write
time: week month year summer
building: house boat bridge tower mill shed barn
material: wood stones bricks nails rope glass
weather: rain snow fog wind storm
light: lantern candle torch fire
race: race contest tournament game
rival: wolf giant duke stranger knight
fur: white black brown gray spotted
crop: beans roses carrots tomatoes pumpkins onions tulips potatoes
water: bucket barrel jug tank
chore: clean the floor|feed the chickens|cut the grass|wash the windows|carry the boxes|
    pick the apples|paint the fence
"""


def _read(text: str) -> dict[str, list[str]]:
    slots: dict[str, list[str]] = {}
    for line in text.replace("\n    ", " ").strip().splitlines():
        name, values = line.split(": ")
        parts = values.split("|") if "|" in values else values.split()
        slots[name] = [part.strip() for part in parts]
    return slots


SLOTS = _read(_SLOTS)

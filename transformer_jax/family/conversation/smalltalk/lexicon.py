"""Lines, answers and words of the small talk."""

Exchange = tuple[str, str]  # what the first says and what the second answers

SEPARATOR = " __eou__ "
FIXED = ("Hi how are you", "I am fine")

# A line and its answer, in any context.
_GREETINGS = """Hello=Hello to you|Hi=Hi there|Good morning=Good morning to you|
    Good afternoon=Good afternoon to you|Good evening=Good evening to you|
    Hello, how are you?=I am fine, thank you|How are you today?=I am fine today|
    Hey, what is new?=Nothing is new here|Are you well?=Yes, I am very well"""
_CURIOUS = """What is your name?=My name is Robin|How old are you?=I am very young|
    Where do you live?=I live in a computer|Do you have a family?=No, I live alone|
    What do you do?=I answer questions|Can you dance?=No, I have no legs|
    Can you sing?=No, but I can write|What do you like?=I like good company|
    Are you a robot?=Yes, I am a friendly robot|Do you sleep?=No, I never sleep|
    What do you eat?=I never eat anything|Who made you?=Clever people made me"""
_MORE_CURIOUS = """
    What is the weather like?=I have no window to look out of|
    What's the weather like?=I have no window to look out of|
    How is the weather today?=I have no window to look out of|
    Will it rain tomorrow?=I have no window to look out of|
    What time is it?=I have no watch|What's the time?=I have no watch|
    What day is it today?=I have no calendar|What is the date?=I have no calendar|
    What is your favorite food?=I never eat, but I like the word pancake|
    Are you hungry?=No, I am never hungry|What should I cook?=You could cook soup|
    What is for dinner?=You could cook soup|What are you doing?=I am talking with you|
    What are your plans?=I will stay here and talk|How was your day?=My day was quiet|
    What will you do tomorrow?=Tomorrow I will talk again|Are you busy?=No, not at all|
    What is your favorite color?=I like blue best|Where are you from?=From a computer|
    Do you like music?=Yes, I like quiet songs|Do you have a pet?=No, but I like cats|
    Can you help me?=Yes, tell me more|Do you have friends?=Yes, you are my friend|
    Do you speak Spanish?=No, I only speak English|Do you like me?=Yes, I like you"""
_PARTING = """Goodbye=Goodbye|Bye=Bye|See you soon=See you soon|
    Good night=Sleep well|I have to go now=Take care|Have a nice day=You too"""
_THANKS = "Thank you|Thanks a lot|Thank you very much|That is kind of you|Many thanks"
_NAMES = """Ana Tom Eva Paul Mia Leo Nora Max Lucy Ivan Rosa Omar Emma Hugo Clara Felix
    Julia David Sara Peter Maria Simon Laura Adam Helen Marco Alice Victor Irene Daniel
    Sofia Martin Olga Bruno Vera Oscar Greta Nils Carmen Yusuf"""
_CITIES = """Paris London Rome Berlin Madrid Lisbon Vienna Prague Oslo Dublin Athens
    Cairo Tokyo Delhi Lima Boston Chicago Toronto Sydney Nairobi"""
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
_JOBS = """baker:bread:a bakery|teacher:lessons:a school|nurse:visits:a hospital|
    farmer:cheese:a farm|waiter:coffee:a restaurant|gardener:flowers:a park|
    tailor:coats:a workshop|painter:pictures:a studio|cook:soup:a kitchen|
    librarian:lists:a library|carpenter:tables:a workshop|brewer:beer:a cellar|
    writer:stories:an office|potter:cups:a studio|actor:plays:a theater|
    florist:bouquets:a shop|banker:money:a bank|lawyer:contracts:an office|
    jeweler:rings:a shop|miller:flour:a mill|mechanic:repairs:a garage|
    engineer:engines:a factory|sailor:journeys:a harbor|priest:sermons:a church"""
_WEATHER = """raining::an umbrella|snowing::warm boots|hailing::a strong hat|
    cold::a thick coat|windy::a scarf|foggy::a lamp|stormy::a raincoat|icy::gloves|
    sunny:nice:sunglasses|warm:nice:a light shirt|hot:nice:some water|
    mild:nice:a sweater|dry:nice:your bicycle"""
_FOODS = """fruit:apples pears plums cherries grapes melons bananas peaches oranges|
    vegetables:carrots beans peas onions spinach cabbage tomatoes pumpkins leeks|
    meat:chicken beef ham bacon sausages lamb turkey duck|
    drinks:tea coffee milk lemonade cocoa cider juice water|
    sweets:chocolate biscuits honey cake candy jam waffles muffins"""
_RELATIVES = """mother=she father=he sister=she brother=he aunt=she uncle=he cousin=he
    grandmother=she grandfather=he daughter=she son=he wife=she husband=he niece=she
    nephew=he neighbor=he boss=she"""
_MOODS = """tired=You should sleep|hungry=You should eat|thirsty=You should drink|
    bored=You should read|sick=You should see a doctor|sad=You should call a friend|
    cold=You should wear a coat|nervous=You should breathe slowly|
    happy=I am glad to hear that|excited=I wish you much fun|late=You should run|
    angry=You should count to ten|lost=You should look at a map"""
_PLANS = """swim in the lake|play football|visit the museum|bake a cake|
    paint the door|read a novel|watch a film|ride a horse|climb a mountain|
    clean the house|write letters|buy shoes|wash the car|study history|plant roses|
    repair the roof|see the dentist|cook dinner|learn Spanish|play chess|go fishing|
    feed the birds|sell the boat"""
_KINDS = "brothers sisters cousins children uncles aunts nephews nieces"
_AGAIN = "Can you say that again?|What did you say?|Sorry, what was that?|Pardon?"
_NUMBERS = "two three four five six seven eight nine ten"
_HOURS = """six:an early walk|seven:breakfast|eight:the first bus|nine:work|
    ten:a cup of tea|twelve:lunch|one:a short rest|two:more work|four:coffee|
    five:the way home"""
_HOBBIES = """draw|sing|dance|bake|swim|run|paint|sew|write poems|take photos|
    play cards|play the piano|grow herbs|collect stamps|watch birds|fly kites|
    ride a bicycle|tell stories"""


def _list(text: str) -> list[str]:
    return [" ".join(entry.split()) for entry in text.split("|")]


def _pairs(text: str) -> list[Exchange]:
    return [(line, answer) for line, answer in (e.split("=") for e in _list(text))]


GREETINGS, CURIOUS, MORE_CURIOUS, MOODS = map(
    _pairs, (_GREETINGS, _CURIOUS, _MORE_CURIOUS, _MOODS)
)
PARTING = [(line, answer + "{you}") for line, answer in _pairs(_PARTING)]
THANKS, AGAIN, PLANS = map(_list, (_THANKS, _AGAIN, _PLANS))
NAMES, CITIES, DAYS, NUMBERS, KINDS = (
    text.split() for text in (_NAMES, _CITIES, _DAYS, _NUMBERS, _KINDS)
)
JOBS = [tuple(entry.split(":")) for entry in _list(_JOBS)]
WEATHER = [tuple(entry.split(":")) for entry in _list(_WEATHER)]
HOURS = [tuple(entry.split(":")) for entry in _list(_HOURS)]
HOBBIES = _list(_HOBBIES)
FOODS = [(e.split(":")[0], e.split(":")[1].split()) for e in _list(_FOODS)]
RELATIVES = [tuple(entry.split("=")) for entry in _RELATIVES.split()]
HER = {"she": "her", "he": "his"}
# Openings are few and everybody's: no other split holds them out.
COMMON = {FIXED[0], SEPARATOR.join(FIXED)} | {line for line, _ in GREETINGS}

"""Simple facts as questions and answers: opposites, colours, animals, days, months, numbers, words.

Each maker takes a seeded generator and returns (question, full answer, answer in one word).
"""

import re

OPPOSITES = """hot cold|big small|up down|left right|day night|happy sad|fast slow|old young|light dark|wet dry
|hard soft
|open closed|full empty|high low|loud quiet|long short|good bad|strong weak|rich poor|near far|first last|early late
|black white|front back|in out|yes no|warm cool|heavy light|clean dirty|thick thin|wide narrow|brave afraid|kind mean
|sweet sour|true false|win lose|start stop|push pull|laugh cry|give take|buy sell|summer winter|morning evening
|north south
|east west|friend enemy|love hate|awake asleep|above below|always never|easy difficult|safe dangerous|sunny cloudy"""

COLOUR_OF = """the sky;blue|grass;green|snow;white|the sun;yellow|blood;red|a lemon;yellow|a frog;green|coal;black
|milk;white
|a carrot;orange|a cherry;red|a strawberry;red|a banana;yellow|chocolate;brown|an elephant;grey|a raven;black
|a leaf;green
|the sea;blue|a pumpkin;orange|a plum;purple|a pig;pink|a polar bear;white|a tomato;red|a tree trunk;brown|gold;yellow
|an orange;orange|a mouse;grey|the night;black|a cloud;white|a cucumber;green|a fire engine;red|lavender;purple"""

SOUNDS = """cow;moo|dog;woof|cat;meow|sheep;baa|duck;quack|pig;oink|hen;cluck|owl;hoot|frog;croak|bee;buzz|lion;roar
|horse;neigh
|mouse;squeak|bird;tweet|snake;hiss|goat;bleat|crow;caw|wolf;howl|donkey;hee-haw|rooster;cock-a-doodle-doo"""

YOUNG = """dog;puppy|cat;kitten|cow;calf|sheep;lamb|horse;foal|pig;piglet|hen;chick|duck;duckling|bear;cub|lion;cub
|deer;fawn
|goat;kid|frog;tadpole|owl;owlet|goose;gosling|elephant;calf|swan;cygnet|rabbit;kit"""

LIVES = """fish;in the water|bird;in a nest|bee;in a hive|rabbit;in a burrow|bear;in a cave|fox;in a den|frog;by a pond
|cow;on a farm|lion;on the dry plain|penguin;on the ice|monkey;in the jungle|spider;in a web|horse;in a stable
|camel;in the desert
|whale;in the sea|mole;under the ground|squirrel;in a tree|duck;on a pond|snail;in its shell|goat;in the mountains
|wolf;in the forest|polar bear;on the ice|ant;in an ant hill|hen;in a hen house|owl;in a hollow tree"""

EATS = """cow;grass|rabbit;carrots|mouse;cheese|squirrel;nuts|bear;honey|monkey;bananas|cat;fish|dog;bones|horse;hay
|bird;seeds
|hen;corn|frog;flies|goat;leaves|elephant;fruit|lion;meat|bee;nectar|snail;leaves|duck;bread|owl;mice|sheep;grass"""

LEGS = """dog;four|cat;four|bird;two|spider;eight|ant;six|fish;no|cow;four|hen;two|bee;six|horse;four|snake;no
|person;two|duck;two
|frog;four|snail;no|beetle;six|lion;four|penguin;two|table;four|mouse;four"""

USES = """umbrella;to stay dry in the rain|spoon;to eat soup|knife;to cut bread|pen;to write|bed;to sleep
|lamp;to see in the dark
|key;to open a door|clock;to tell the time|broom;to sweep the floor|book;to read|boat;to cross the water|cup;to drink
|hammer;to drive in nails|needle;to sew|oven;to bake bread|map;to find the way|ladder;to climb up|bell;to call somebody
|soap;to wash your hands|basket;to carry things|spade;to dig|scissors;to cut paper|towel;to dry yourself
|coat;to keep warm
|telescope;to look at the stars|paintbrush;to paint|pillow;to rest your head|bag;to carry things"""

FIRST_OF_KIND = """animal;cat dog horse rabbit bear fox cow sheep duck lion mouse
|colour;red blue green yellow white black purple pink
|fruit;apple pear plum cherry orange peach banana|season;spring summer autumn winter
|vegetable;carrot onion bean potato cabbage
|bird;owl duck hen crow swan robin|flower;rose daisy tulip lily|tool;hammer saw spade needle|toy;ball doll kite drum
|shape;circle square triangle|drink;water milk tea juice|tree;oak pine beech apple tree"""

RHYMES = """cat hat|dog log|sun fun|moon spoon|tree bee|house mouse|star car|night light|rain train|bear chair
|king ring|book cook
|boat coat|snow go|fish dish|cake lake|ball wall|bed red|day play|fox box|hill mill|frog log|nose rose|sea tea
|top hop|wing sing"""

SHAPES = "triangle;three|square;four|circle;no|rectangle;four|star with five points;ten|hexagon;six|pentagon;five"

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
SEASON_OF = dict(zip(MONTHS, ["winter"] * 2 + ["spring"] * 3 + ["summer"] * 3 + ["autumn"] * 3 + ["winter"]))
NUMBERS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen twenty""".split()
SPELLED = """cat dog sun moon tree house bird fish star king hat cup ball book rain snow milk frog bear duck kite lamp
apple bread water""".split()


WORDS = sorted({word for table in (OPPOSITES, FIRST_OF_KIND, RHYMES, YOUNG) for word in re.findall(r"[a-z]+", table)})


def _pairs(text, separator=";"):
    return [tuple(p.strip().split(separator, 1)) for p in text.replace("\n", "").split("|")]


def _article(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def opposite(rng):
    pair = list(rng.choice(_pairs(OPPOSITES, " ")))
    rng.shuffle(pair)
    if set(pair) == {"heavy", "light"}:
        pair = ["heavy", "light"]
    if "light" in pair and "dark" in pair:
        pair = ["dark", "light"] if rng.random() < 0.5 else ["light", "dark"]
    ask = rng.choice(["What is the opposite of {}?", "Tell me the opposite of {}.",
                      "What is the opposite of the word {}?"])
    return ask.format(pair[0]), f"The opposite of {pair[0]} is {pair[1]}.", pair[1]


def colour(rng):
    what, value = rng.choice(_pairs(COLOUR_OF))
    ask = rng.choice([f"What colour is {what}?", f"Which colour is {what}?", f"Tell me the colour of {what}."])
    return ask, f"{what[0].upper() + what[1:]} is {value}.", value


def sound(rng):
    animal, value = rng.choice(_pairs(SOUNDS))
    if rng.random() < 0.3:
        return f"Which animal says {value}?", f"{_article(animal).capitalize()} says {value}.", animal
    ask = rng.choice(["What does {} say?", "What sound does {} make?", "How does {} go?"])
    return ask.format(_article(animal)), f"{_article(animal).capitalize()} says {value}.", value


def young(rng):
    animal, value = rng.choice(_pairs(YOUNG))
    ask = rng.choice([f"What is a baby {animal} called?", f"What do you call a young {animal}?"])
    return ask, f"A baby {animal} is called {_article(value)}.", value


def lives(rng):
    animal, value = rng.choice(_pairs(LIVES))
    ask = rng.choice([f"Where does {_article(animal)} live?", f"Where do I find {_article(animal)}?"])
    return ask, f"{_article(animal).capitalize()} lives {value}.", value


def eats(rng):
    animal, value = rng.choice(_pairs(EATS))
    ask = rng.choice([f"What does {_article(animal)} eat?", f"What does {_article(animal)} like to eat?"])
    return ask, f"{_article(animal).capitalize()} eats {value}.", value


def legs(rng):
    animal, value = rng.choice(_pairs(LEGS))
    return f"How many legs does {_article(animal)} have?", f"{_article(animal).capitalize()} has {value} legs.", \
        "none" if value == "no" else value


def uses(rng):
    tool, value = rng.choice(_pairs(USES))
    one = tool if tool in ("soap", "scissors") else _article(tool)
    ask = rng.choice([f"What is {one} for?", f"What do you use {one} for?", f"Why do people need {one}?"])
    if tool == "scissors":
        ask = "What are scissors for?"
    return ask, f"You use {one} {value}.", value


def example(rng):
    kind, members = rng.choice(_pairs(FIRST_OF_KIND))
    members = members.replace("apple tree", "apple").split()
    if rng.random() < 0.4:
        some = rng.sample(members, 3)
        return f"Name three {kind}s.", f"Three {kind}s are {some[0]}, {some[1]} and {some[2]}.", ", ".join(some)
    member = rng.choice(members)
    if rng.random() < 0.5:
        return f"Is {member} {_article(kind)}?", f"Yes, {member} is {_article(kind)}.", "yes"
    ask = rng.choice([f"Name {_article(kind)}.", f"Tell me {_article(kind)}.", f"Can you name {_article(kind)}?"])
    return ask, f"One {kind} is {member}.", member


def rhyme(rng):
    pair = list(rng.choice(_pairs(RHYMES, " ")))
    rng.shuffle(pair)
    return f"What rhymes with {pair[0]}?", f"{pair[0].capitalize()} rhymes with {pair[1]}.", pair[1]


def sides(rng):
    shape, value = rng.choice(_pairs(SHAPES))
    return f"How many sides does {_article(shape)} have?", f"{_article(shape).capitalize()} has {value} sides.", \
        "none" if value == "no" else value


def _neighbour(rng, ring, what):
    i = rng.randrange(len(ring))
    after, before = ring[(i + 1) % len(ring)], ring[i - 1]
    if rng.random() < 0.6:
        ask = rng.choice([f"What comes after {ring[i]}?", f"Which {what} comes after {ring[i]}?"])
        return ask, f"After {ring[i]} comes {after}.", after
    ask = rng.choice([f"What comes before {ring[i]}?", f"Which {what} comes before {ring[i]}?"])
    return ask, f"Before {ring[i]} comes {before}.", before


def days(rng):
    if rng.random() < 0.25:
        ask = rng.choice(["What are", "Name", "Tell me"]) + " the days of the week"
        ask += "?" if ask.startswith("What") else "."
        return ask, "The days of the week are " + ", ".join(DAYS[:-1]) + " and Sunday.", ", ".join(DAYS)
    if rng.random() < 0.3:
        i = rng.randrange(7)
        return f"Today is {DAYS[i]}. What day is tomorrow?", f"Tomorrow is {DAYS[(i + 1) % 7]}.", DAYS[(i + 1) % 7]
    return _neighbour(rng, DAYS, "day")


def months(rng):
    if rng.random() < 0.3:
        month = rng.choice(MONTHS)
        return f"In which season is {month}?", f"{month} is in {SEASON_OF[month]}.", SEASON_OF[month]
    return _neighbour(rng, MONTHS, "month")


def amounts(rng):
    return rng.choice([
        ("How many days are in a week?", "A week has seven days.", "seven"),
        ("How many months are in a year?", "A year has twelve months.", "twelve"),
        ("How many seasons are there?", "There are four seasons: spring, summer, autumn and winter.", "four"),
        ("How many hours are in a day?", "A day has twenty-four hours.", "twenty-four"),
        ("How many minutes are in an hour?", "An hour has sixty minutes.", "sixty"),
        ("How many fingers do I have?", "You have ten fingers.", "ten"),
        ("How many eyes does a cat have?", "A cat has two eyes.", "two"),
        ("How many wheels does a bicycle have?", "A bicycle has two wheels.", "two"),
        ("How many wheels does a car have?", "A car has four wheels.", "four"),
        ("How many arms does a snowflake have?", "A snowflake has six arms.", "six"),
        ("What are the four seasons?", "The four seasons are spring, summer, autumn and winter.",
         "spring, summer, autumn, winter"),
        ("What are the colours of the rainbow?", "They are red, orange, yellow, green, blue and purple.",
         "red, orange, yellow, green, blue, purple")])


def after_number(rng):
    i = rng.randrange(1, 20)
    if rng.random() < 0.6:
        return f"What comes after {NUMBERS[i]}?", f"After {NUMBERS[i]} comes {NUMBERS[i + 1]}.", NUMBERS[i + 1]
    return f"What number comes before {NUMBERS[i]}?", f"Before {NUMBERS[i]} comes {NUMBERS[i - 1]}.", NUMBERS[i - 1]


def count(rng):
    n = rng.randrange(3, 13)
    if rng.random() < 0.25:
        down = ", ".join(NUMBERS[n:0:-1])
        return f"Count down from {NUMBERS[n]}.", down.capitalize() + ".", down
    number = str(n) if rng.random() < 0.3 else NUMBERS[n]
    ask = rng.choice([f"Count to {number}.", f"Can you count to {number}?", f"Please count from one to {number}."])
    up = ", ".join(NUMBERS[1:n + 1])
    return ask, up.capitalize() + ".", up


def add(rng):
    a, b = rng.randrange(1, 11), rng.randrange(1, 11)
    if rng.random() < 0.35:
        a, b = max(a, b), min(a, b)
        task, value = f"{NUMBERS[a]} minus {NUMBERS[b]}", NUMBERS[a - b]
        return f"What is {task}?", f"{task.capitalize()} is {value}.", value
    if rng.random() < 0.3:
        return f"What is {a} + {b}?", f"{a} + {b} = {a + b}.", str(a + b)
    task, value = f"{NUMBERS[a]} plus {NUMBERS[b]}", NUMBERS[a + b]
    return f"What is {task}?", f"{task.capitalize()} is {value}.", value


def spell(rng):
    word = rng.choice(SPELLED)
    letters = "-".join(word)
    if rng.random() < 0.3:
        return f"What is the first letter of {word}?", f"The first letter of {word} is {word[0]}.", word[0]
    ask = rng.choice([f"How do you spell {word}?", f"Spell {word}."])
    return ask, f"{word.capitalize()} is spelled {letters}.", letters


# The larger tables stand here twice.
MAKERS = [opposite, opposite, colour, colour, sound, young, lives, eats, legs, uses, example, rhyme, sides, days, days,
          months, amounts, after_number, count, add, add, spell]


def fact(rng):
    return rng.choice(MAKERS)(rng)

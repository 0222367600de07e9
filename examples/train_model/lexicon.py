"""Who and what the stories are about: characters, things, places, food and weather, with what grammar needs to know."""

import re

# Few names, seen often: a model this small has to learn for each of them how to carry it through a story.
GIRLS = "Mia Anna Lily Rosa Nora Zoe Lucy Ruby".split()
BOYS = "Tom Ben Sam Leo Max Oscar Jack Ravi".split()
ANIMAL_NAMES = "Pip Bramble Rusty Clover Pepper Biscuit Poppy Sunny Whiskers Pebble Ginger Scout".split()

# kind; size and looks; home; food; body part; sound; a way to move
SPECIES = """
mouse; small grey|tiny brown; a hole under the stairs|a nest in the hay; cheese|crumbs; whiskers; squeaked; scampered
fox; red|young; a den under the hill|a den between the roots; berries|eggs; tail; yapped; trotted
rabbit; white|soft brown; a burrow under the hedge|a warm burrow; carrots|clover; ears; squeaked; hopped
bear; big brown|gentle; a cave near the river|a cave in the hills; honey|fish; paws; growled softly; lumbered
owl; wise old|grey; a hollow oak|the church tower; moths|supper; wings; hooted; flew
duck; yellow|plump white; a nest by the pond|the reeds; bread|pond weed; feathers; quacked; waddled
frog; green|spotted; a pond full of lilies|a hole by the pond; flies|beetles; legs; croaked; hopped
squirrel; red|quick grey; a nest in the tall pine|a hole in the beech tree; nuts|acorns; tail; chattered; scurried
hedgehog; shy|round; a pile of dry leaves|a nest under the shed; apples|worms; spines; snuffled; shuffled
cat; black|striped; a basket by the fire|the baker's house; fish|milk; paws; purred; crept
dog; brown|shaggy; a kennel in the yard|the farmhouse; bones|sausages; ears; barked; ran
turtle; slow green|old; the tall reeds|a hollow by the lake; lettuce|water plants; shell; said slowly; crawled
bird; blue|little brown; a nest in the apple tree|the hedge; seeds|worms; wings; chirped; fluttered
goat; white|stubborn; the barn|the high meadow; grass|thistles; horns; bleated; climbed
lamb; woolly|newborn; the green field|the fold; grass|clover; wool; bleated; skipped
pony; spotted|brown; the stable|the long meadow; hay|apples; mane; neighed; galloped
pig; pink|muddy; the sty behind the barn|a little barn; turnips|corn; snout; grunted; trotted
hen; speckled|brown; the hen house|a little barn; corn|seeds; feathers; clucked; hurried
badger; old|stripy; a sett under the oak|a deep sett; roots|berries; nose; grumbled; plodded
beaver; busy|wet brown; a lodge in the river|the dam; bark|twigs; teeth; said; swam
mole; blind little|velvety; a tunnel under the lawn|a deep tunnel; worms|roots; nose; mumbled; dug
otter; sleek|playful; a hole in the river bank|a hole by the stream; fish|crabs; tail; whistled; slid
deer; shy|spotted; a clearing in the forest|the fern valley; leaves|grass; legs; said softly; leaped
elephant; little grey|huge; the wide grassland|the warm valley; fruit|leaves; trunk; trumpeted; stomped
monkey; cheeky|small; the tall fig tree|the jungle; bananas|figs; tail; chattered; swung
lion; young|golden; a den among the rocks|the dry grassland; meat|supper; mane; roared; padded
penguin; small|round; a land of ice|the snow; fish|shrimps; flippers; squawked; waddled
bee; busy|tiny; the hive|the hollow log; honey|nectar; wings; buzzed; flew
snail; little|slow; the cabbage patch|the garden wall; leaves|lettuce; shell; whispered; crept
dragon; small green|shy purple; a cave on the mountain|a castle tower; hot soup|toast; wings; rumbled; flew
robot; small silver|rusty; a workshop|the clockmaker's shop; oil|batteries; wheels; beeped; rolled
"""

# who; he or she; how the child speaks to them
ELDERS = """
mother;she;Mum
father;he;Dad
grandmother;she;Grandma
grandfather;he;Grandpa
aunt;she;Auntie
uncle;he;Uncle
"""

TOWNSFOLK = """
baker;he;bakes bread|sells warm rolls
farmer;she;grows corn|keeps cows
teacher;she;teaches the children|reads books aloud
fisherman;he;catches fish|mends nets
postwoman;she;brings letters|carries parcels
gardener;he;plants roses|waters the beds
shopkeeper;he;sells sweets and string|keeps a small shop
doctor;she;looks after sick people|knows about fevers
carpenter;he;makes tables|saws wood
librarian;she;looks after the books|finds the right book
miller;he;grinds flour|runs the mill
painter;she;paints pictures|mixes colours
sailor;he;sails a ship|knows every star
shepherd;she;watches the sheep|walks the hills
bus driver;he;drives the bus|knows every street
"""

# thing; what one does with it; how it breaks; where it might be found
THINGS = """
kite; fly it|run with it in the wind; its string snapped; in a tree|on the roof
ball; bounce it|kick it|throw it; it burst on a thorn; under the hedge|in the long grass
boat; sail it on the pond|float it in the bath; its mast broke; in the reeds|under the bridge
drum; play it|bang on it; its skin tore; behind the sofa|in the shed
book; read it|look at its pictures; a page tore; under the bed|on the high shelf
hat; wear it|show it to everyone; its brim bent; on the fence|in a puddle
scarf; wear it|wrap it round and round; a thread came loose; on a branch|behind the door
lamp; light it|read by it; its glass cracked; in the cellar|on the window sill
doll; play with it|dress it; its arm came off; under the bench|in the toy box
wagon; pull it|ride in it; a wheel fell off; behind the barn|at the bottom of the hill
bell; ring it|hear it ring; its handle broke; in the straw|in the attic
flute; play it|practise on it; it cracked in the cold; under the pillow|in the tall grass
bicycle; ride it|ride it down the lane; its chain came off; by the gate|behind the shed
umbrella; open it|carry it; the wind turned it inside out; in the hall|on the bus
puzzle; put it together|play with it; a piece went missing; under the rug|on the table
paintbrush; paint with it|use it; its handle snapped; behind the easel|in the sink
spade; dig with it|dig holes; its handle split; in the sand|in the flower bed
basket; carry it|fill it with berries; its bottom fell out; under the apple tree|on the step
whistle; blow it|play tunes on it; the pea fell out of it; in a pocket|in the mud
key; open the old door with it|keep it safe; it bent in the lock; under the mat|between two stones
mirror; look into it|catch the light with it; it cracked; behind the curtain|in the drawer
train; play with it|push it along its track; a wheel came off; under the sofa|in the garden
blanket; sleep with it|wrap up in it; it got a hole; on the washing line|under the bed
map; follow it|study it; a corner tore off; inside a book|in the boot box
telescope; look at the stars with it|see far away; its glass came loose; in the attic|on the roof
sledge; ride it down the hill|pull it through the snow; a board broke; behind the house|in a snow bank
teapot; pour tea from it|polish it; its lid broke; in the cupboard|on the table
clock; wind it up|listen to it tick; its hands stopped; on the wall|in the workshop
swing; swing on it|go high on it; its rope frayed; in the yard|by the old oak
music box; wind it up|listen to its song; its spring broke; in the chest|under the stairs
"""

COLOURS = "red blue green yellow orange purple pink brown black white grey silver golden".split()

# with its preposition; how to get there; things to see or hear there
PLACES = """
in the forest; into the forest; tall pines|a mossy log|mushrooms in a ring|a path of soft needles
at the beach; to the beach; shells in the sand|white waves|a row of gulls|a pool full of crabs
by the river; down to the river; smooth stones|a wooden bridge|little silver fish|reeds in the wind
in the garden; into the garden; rows of beans|a bed of roses|bees in the lavender|an old stone wall
on the hill; up the hill; the whole village below|a lonely tree|sheep in the grass|a windmill far away
in the meadow; across the meadow; yellow flowers|butterflies|tall grass|a fallen fence
at the market; to the market; piles of oranges|a man with balloons|baskets of eggs|a stall full of cheese
in the park; to the park; a round pond|a green bench|children on the swings|ducks on the water
on the farm; to the farm; a red barn|a cart full of hay|cows by the gate|a sleepy dog
in the village; through the village; a stone well|the baker's window|a crooked street|a clock on a tower
by the lake; to the lake; a small rowing boat|the mountains in the water|a heron on one leg|an old pier
in the library; to the library; long shelves|a quiet corner|a big globe|a ladder on wheels
in the orchard; to the orchard; apples on every branch|a ladder against a tree|wasps on the fallen fruit|a wheelbarrow
at the harbour; down to the harbour; fishing boats|a tall lighthouse|ropes and nets|a cat asleep on a barrel
in the valley; down into the valley; a thin stream|a row of white houses|wild ponies|a stone bridge
in the mountains; into the mountains; snow on the peaks|an eagle high above|a narrow path|a hut with a red door
in the playground; to the playground; a long slide|a sand pit|two seesaws|a rope to climb
in the town square; to the town square; a fountain|pigeons|a band with trumpets|a tall statue
"""

# plural; one of it; how it tastes
FOODS = """
apples;apple;sweet|crisp
plums;plum;juicy|sweet
pancakes;pancake;warm|soft
biscuits;biscuit;crunchy|sweet
cherries;cherry;red and sweet|juicy
pears;pear;soft|juicy
rolls;roll;warm|fresh
strawberries;strawberry;sweet|red
carrots;carrot;crunchy|fresh
nuts;nut;crunchy|good
muffins;muffin;soft|warm
dumplings;dumpling;hot|soft
oranges;orange;juicy|bright
honey cakes;honey cake;sticky|sweet
peaches;peach;soft|sweet
grapes;grape;cool|sweet
sandwiches;sandwich;tasty|fresh
"""

FRUITS = ["apples", "plums", "cherries", "pears", "nuts", "oranges", "peaches", "strawberries"]

# adjective; a sentence about it; what is on the ground; what it makes one do
WEATHER = """
sunny; the sun shone|the sun was warm and bright|there was not a cloud in the sky; warm stones|dry grass
rainy; rain tapped on the roofs|it had rained since breakfast|grey clouds hung over everything; puddles|mud
windy; the wind shook the trees|the wind pushed the clouds along|leaves danced in the air; fallen leaves|dust
snowy; snow covered every roof|soft snow was falling|the world was white and quiet; deep snow|ice
foggy; fog lay over the fields|a grey fog hid the houses|nobody could see far in the fog; wet grass|dew
cloudy; grey clouds covered the sky|the sky was full of slow clouds|the sun hid behind the clouds; soft earth|grass
hot; the air was hot and still|even the flies were sleepy|the road shone in the heat; dust|hot stones
cold; the air was cold and clear|frost sat on the windows|everyone could see their own breath; frost|hard ground
"""

# Words that stand for each other in a story; the first is what the grammars use.
SYNONYMS = """
at last|in the end|finally
began to|started to
all at once|suddenly
suddenly|all at once|in that moment
big|large|great
shouted|cried|called out
answered|replied
looked at|gazed at|stared at
ran|raced|rushed
walked|wandered|strolled
everybody|everyone
nobody|no one
quickly|in a hurry
slowly|bit by bit
quiet|silent|still
a strange|an odd|a curious
a funny|a silly
jumped|leaped
beautiful|lovely|pretty
near|close to
soon|before long|in no time
often|many times
every day|each day|day after day
the next day|the day after that|the following day
that night|that very night
that evening|in the evening
smiled|grinned|beamed
laughed|giggled|chuckled
tired|worn out
for a long time|for a long while|for quite a while
it was no use|nothing helped
from then on|ever since|from that day on
of course|naturally
an idea|a thought
wonderful|marvellous
"""


def _table(text):
    return [[field.strip() for field in line.split(";")] for line in text.strip().splitlines()]


def _pronouns(sex):
    he, him, his = ("he", "him", "his") if sex == "he" else ("she", "her", "her")
    return {"he": he, "him": him, "his": his, "self": him + "self"}


def _child(rng, sex, name):
    kind = "boy" if sex == "he" else "girl"
    return {"name": name, "kind": kind, "animal": "", "the": [f"the {kind}", f"the little {kind}", name],
            "intro": [f"a {kind} named {name}", f"a <trait> {kind} named {name}", f"a young {kind} called {name}"],
            "home": ["[a small|a yellow|a tall] house [at the end of the lane|by the mill|near the school]",
                     "a village [by the sea|near the forest|between two hills]", "a [big|noisy|busy] town"],
            "food": ["[bread and cheese|soup|pancakes|apples]"], "part": "hands", "said": "said",
            "move": ["walked", "ran", "skipped", "hurried"], **_pronouns(sex)}


def _animal(rng, sex, name):
    kind, looks, home, food, part, said, move = rng.choice(_table(SPECIES))
    looks = rng.choice(looks.split("|"))
    return {"name": name, "kind": kind, "animal": "yes", "the": [f"the {kind}", f"the {looks} {kind}", name, name],
            "intro": [f"a {looks} {kind} named {name}", f"a <trait> {kind} named {name}",
                      f"a {looks} {kind} called {name}"],
            "home": [rng.choice(home.split("|"))], "food": food.split("|"), "part": part, "said": said,
            "move": [move], **_pronouns(sex)}


def character(rng, taken, sex=None, animal=None):
    """A child or an animal with a name that is not taken yet."""
    sex = sex or rng.choice(["he", "she"])
    animal = rng.random() < 0.5 if animal is None else animal
    names = ANIMAL_NAMES if animal else (BOYS if sex == "he" else GIRLS)
    name = rng.choice([n for n in names if n not in taken])
    taken.add(name)
    return (_animal if animal else _child)(rng, sex, name)


def elder(rng, of):
    """Somebody of the family of a character: `his mother`; `Grandma` when spoken to."""
    who, sex, address = rng.choice(_table(ELDERS))
    if of["animal"]:
        who, sex, address = rng.choice([e for e in _table(ELDERS) if e[0] != "uncle"])
    return {"name": f"{of['his']} {who}", "the": f"{of['his']} {who}", "kind": who, "call": address, "said": "said",
            "part": "hands", **_pronouns(sex)}


def neighbour(rng):
    """Somebody with a trade: `the baker`."""
    who, sex, work = rng.choice(_table(TOWNSFOLK))
    return {"name": f"the {who}", "the": f"the {who}", "kind": who, "work": work.split("|"), "said": "said",
            "part": "hands", **_pronouns(sex)}


def thing(rng, taken):
    """A thing with a colour: `a red kite`, `the red kite`, what it is for and how it breaks."""
    name, use, breaks, found = rng.choice([t for t in _table(THINGS) if t[0] not in taken])
    taken.add(name)
    look = rng.choice(COLOURS) if rng.random() < 0.7 else rng.choice(["new", "old", "little", "wooden", "shiny"])
    return {"name": name, "the": f"the {look} {name}", "a": f"a {look} {name}", "look": look, "full": f"{look} {name}",
            "use": use.split("|"), "breaks": breaks, "found": found.split("|")}


def place(rng, taken):
    """A place: `in the forest`, `into the forest`, `the forest`."""
    at, to, see = rng.choice([p for p in _table(PLACES) if p[0] not in taken])
    taken.add(at)
    return {"name": at.split(" ", 1)[1], "in": at, "to": to, "see": see.split("|")}


def food(rng, taken, fruit=False):
    plural, one, taste = rng.choice([f for f in _table(FOODS) if f[0] not in taken and (f[0] in FRUITS or not fruit)])
    taken.add(plural)
    return {"name": plural, "one": one, "taste": taste.split("|")}


def weather(rng):
    name, line, ground = rng.choice(_table(WEATHER))
    return {"name": name, "line": line.split("|"), "ground": ground.split("|")}


_VARIANTS = {first: others for first, *others in (line.split("|") for line in SYNONYMS.strip().splitlines())}
_VARIED = re.compile(r"\b(" + "|".join(sorted(_VARIANTS, key=len, reverse=True)) + r")\b", re.IGNORECASE)


def vary(text, rng, share=0.35):
    """The same text with some of its words exchanged for others of the same meaning."""

    def other(match):
        found = match.group(0)
        if rng.random() > share:
            return found
        new = rng.choice(_VARIANTS[found.lower()])
        return new[0].upper() + new[1:] if found[0].isupper() else new

    return _VARIED.sub(other, text)


def draw_cast(rng):
    """The cast of a story.

    A is the hero, B the friend, C a third, E an elder and N a neighbour; T and S are things, L and M places, F and G
    food, R fruit and W the weather.
    """
    taken = set()
    hero = character(rng, taken)
    other = "she" if hero["he"] == "he" else "he"
    friend = character(rng, taken, sex=other if rng.random() < 0.8 else hero["he"])
    third = character(rng, taken, sex=other if rng.random() < 0.5 else hero["he"])
    for other in (friend, third):
        other["short_intro"] = [f"{other['name']} the {other['kind']}", f"{hero['his']} friend {other['name']}"]
    for member in (hero, friend, third):
        member["kind_a"] = ("an " if member["kind"][0] in "aeiou" else "a ") + member["kind"]
    return {"A": hero, "B": friend, "C": third, "E": elder(rng, hero), "N": neighbour(rng),
            "T": thing(rng, taken), "S": thing(rng, taken), "L": place(rng, taken), "M": place(rng, taken),
            "F": food(rng, taken), "R": food(rng, taken, fruit=True), "G": food(rng, taken), "W": weather(rng)}

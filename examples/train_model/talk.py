"""Conversations: small talk, simple facts, explanations, stories on request, and questions about a short text."""

import facts
import grammar
import lexicon

LIKES = {"colour": "colour", "animal": "animal", "music": "music", "food": "food"}
EXPLAINED = """rain rainbow night moon stars seasons leaves snow thunder wind plants bees birds winterbirds sleep teeth
wash ice sea shadow echo boats bread tea sandwich butterfly frogs milk friends angry scared sorry bored""".split()
SUBJECTS = """hello hello who can thanks bye fine sad tired hungry like like joke joke riddle unknown unknown""".split()


def careless(rng, text):
    """The same line as somebody in a hurry types it."""
    if rng.random() < 0.25:
        text = text.lower()
    if rng.random() < 0.25:
        text = text.rstrip(".?!")
    return text


def _user(rng, text):
    return {"role": "user", "content": careless(rng, text)}


def _model(text):
    return {"role": "assistant", "content": text}


def small_talk(doc):
    """One exchange on a subject of talk.txt."""
    subject = doc.rng.choice(SUBJECTS)
    say = doc.write(f"<say_{subject}>")
    reply = f"reply_{subject}"
    for word, kind in LIKES.items():
        if subject == "like" and word in say:
            reply = f"reply_like_{kind}"
    return [_user(doc.rng, say), _model(doc.write(f"<{reply}>"))]


def simple_fact(rng, brief=False):
    ask, answer, word = facts.fact(rng)
    return [_user(rng, ask), _model(word if brief else answer)]


def explanation(doc):
    topic = doc.rng.choice(EXPLAINED)
    return [_user(doc.rng, doc.write(f"<ask_{topic}>")), _model(doc.write(f"<tell_{topic}>"))]


def told_story(doc, rules):
    """A story on request, sometimes with a question about it afterwards."""
    rng = doc.rng
    long = rng.random() < 0.6
    name = rng.choice([r for r in rules if r.startswith("story_") and r != "story_lead"]) if long else "mini"
    ask = doc.write("<say_story>" if rng.random() < 0.3 else "<say_story_about>")
    lead, body = doc.write("<story_lead>"), lexicon.vary(doc.write(f"<{name}>"), rng)
    turns = [_user(rng, ask), _model(f"{lead}\n{body}" if lead else body)]
    if long and rng.random() < 0.3:
        lesson = doc.write(f"<lesson_{name.removeprefix('story_')}>")
        turns += [_user(rng, doc.write("<say_lesson>")), _model(lesson)]
    elif not long and rng.random() < 0.2:
        other = grammar.Document(rules, rng, lexicon.draw_cast(rng))
        turns += [_user(rng, doc.write("<say_another>")), _model(other.write("<mini>"))]
    return turns


def poem(doc):
    return [_user(doc.rng, doc.write("<say_rhyme>")), _model(doc.write("<rhyme>"))]


def reading(doc):
    """Two or three sentences and questions that they answer."""
    rng = doc.rng
    a, b = doc.cast["A"], doc.cast["B"]
    thing, place, other = doc.cast["T"], doc.cast["L"], doc.cast["M"]
    number, fruit = doc.word("number1"), doc.cast["F"]["name"]
    sentences = [
        (f"{a['name']} has {thing['a']}.", [(f"What does {a['name']} have?", f"{a['name']} has {thing['a']}."),
                                            (f"Who has {thing['a']}?", f"{a['name']} has {thing['a']}.")]),
        (f"{a['name']} is {place['in']}.", [(f"Where is {a['name']}?", f"{a['name']} is {place['in']}.")]),
        (f"{b['name']} is {other['in']}.", [(f"Where is {b['name']}?", f"{b['name']} is {other['in']}.")]),
        (f"{b['name']} has {number} {fruit}.",
         [(ask, f"{b['name']} has {number} {fruit}.")
          for ask in (f"How many {fruit} does {b['name']} have?", f"What does {b['name']} have?")]),
        (f"{a['name']} is {a['kind_a']}.", [(f"What is {a['name']}?", f"{a['name']} is {a['kind_a']}."),
                                            (f"Who is {a['kind_a']}?", f"{a['name']} is {a['kind_a']}.")]),
    ]
    chosen = rng.sample(sentences, rng.choice([2, 3]))
    text = grammar.polish(" ".join(s for s, _ in chosen))
    pairs = [tuple(grammar.polish(p) for p in rng.choice(q)) for _, q in rng.sample(chosen, rng.choice([1, 2]))]
    turns = [{"role": "user", "content": f"{text} {pairs[0][0]}"}, _model(pairs[0][1])]
    for ask, answer in pairs[1:]:
        turns += [{"role": "user", "content": ask}, _model(answer)]
    return turns


def word_list(rng):
    """Words of all kinds in no order, for games that only attention to what was said can win."""
    pool = facts.WORDS if rng.random() < 0.5 else lexicon.GIRLS + lexicon.BOYS + lexicon.ANIMAL_NAMES
    return [rng.choice(pool) for _ in range(rng.randint(3, 24))]


def word_game(rng):
    """Say the words again; name the first, the last, or the one after another."""
    words = word_list(rng)
    spoken = rng.choice([" ", ", "]).join(words)
    ask = rng.choice(["Repeat after me: {}", "Say this again: {}", "Please repeat: {}", "Say: {}"])
    turns = [{"role": "user", "content": ask.format(spoken)}, _model(spoken)]
    once = [i for i, word in enumerate(words[:-1]) if words.count(word) == 1] or [0]
    for kind in rng.sample(["first", "last", "after", "again"], rng.randint(0, 2)):
        i = rng.choice(once)
        ask, answer = {"first": ("What was the first word?", words[0]), "last": ("What was the last word?", words[-1]),
                       "after": (f"Which word came after {words[i]}?", words[i + 1]),
                       "again": ("And again, please.", spoken)}[kind]
        turns += [{"role": "user", "content": ask}, _model(answer)]
    return turns


def conversation(rules, rng):
    """A list of messages in which user and assistant alternate, with a system message in front of some."""
    doc = grammar.Document(rules, rng, lexicon.draw_cast(rng))
    if rng.random() < 0.15:
        return word_game(rng)
    draw = rng.random()
    if draw < 0.10:
        turns = [t for _ in range(rng.choice([1, 2, 3])) for t in simple_fact(rng, brief=True)]
        return [{"role": "system", "content": doc.write("<system_brief>")}] + turns
    if draw < 0.35:
        turns = told_story(doc, rules)
    elif draw < 0.45:
        turns = reading(doc)
    else:
        turns = []
        for _ in range(rng.choice([1, 2, 2, 3, 3, 4])):
            kind = rng.random()
            if kind < 0.35:
                turns += small_talk(doc)
            elif kind < 0.75:
                turns += simple_fact(rng)
            elif kind < 0.95:
                turns += explanation(doc)
            else:
                turns += poem(doc)
    if rng.random() < 0.3:
        turns = [{"role": "system", "content": doc.write("<system_chat>")}] + turns
    return turns

#!/usr/bin/env python3
"""Write the training text: JSON lines, each {"text": ...} or {"messages": [...]}.

Everything comes from the grammars and tables beside this script and a seed. Document i depends on the seed and on i
alone, so a longer corpus begins with the shorter one. --rendered writes conversations as texts too, with the tokens of
the chat template, for training on all that is said. --plain writes the texts alone, separated by empty lines, for
evaluation.
"""

import argparse
import json
import sys
from pathlib import Path

import grammar
import lexicon
import talk

HERE = Path(__file__).resolve().parent
EVERYDAY = ["letter", "diary", "portrait", "place_text", "rhyme", "mini", "mini", "mini"]


def plain_text(rules, rng, stories):
    draw = rng.random()
    doc = grammar.Document(rules, rng, lexicon.draw_cast(rng))
    if draw < 0.80:
        return lexicon.vary(doc.write(f"<{rng.choice(stories)}>"), rng)
    if draw < 0.94:
        return doc.write(f"<{rng.choice(EVERYDAY)}>")
    topic = rng.choice(talk.EXPLAINED)
    return doc.write(f"<ask_{topic}>") + " " + doc.write(f"<tell_{topic}>")


def document(rules, seed, index, talk_share=0.4):
    """The document of a corpus at an index."""
    rng = grammar.seeded(seed, index)
    stories = sorted(r for r in rules if r.startswith("story_") and r != "story_lead")
    if rng.random() < talk_share:
        return {"messages": talk.conversation(rules, rng)}
    # Now and then several texts in a row, so that the model knows what an empty line between texts means.
    texts = rng.choice([2, 3]) if rng.random() < 0.1 else 1
    return {"text": "\n\n".join(plain_text(rules, rng, stories) for _ in range(texts))}


def rendered(doc):
    """A conversation as the chat template of train_tokenizer.py has it, but for the token that begins every text."""
    if "text" in doc:
        return doc
    return {"text": "".join(f"<|{m['role']}|>{m['content'].strip()}<|end|>" for m in doc["messages"])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, help="file to write, or - for standard output")
    parser.add_argument("--bytes", type=int, default=20_000_000, help="stop after about this much text")
    parser.add_argument("--seed", default="train")
    parser.add_argument("--plain", action="store_true", help="stories and other texts only, as plain text")
    parser.add_argument("--rendered", action="store_true", help="conversations as texts, with the template's tokens")
    options = parser.parse_args()

    rules = grammar.load_rules(HERE / "grammar")
    out = sys.stdout if options.out == "-" else open(options.out, "w", encoding="utf-8")
    written = index = 0
    while written < options.bytes:
        doc = document(rules, options.seed, index, 0.0 if options.plain else 0.4)
        if options.rendered:
            doc = rendered(doc)
        line = doc["text"] + "\n\n" if options.plain else json.dumps(doc, ensure_ascii=False) + "\n"
        written += out.write(line)
        index += 1
    if out is not sys.stdout:
        out.close()
    print(f"{index} documents, {written} characters", file=sys.stderr)


if __name__ == "__main__":
    main()

"""A small text grammar: rules written by hand in grammar/*.txt, expanded by a seeded generator.

A grammar file is a list of rules. A line `name:` opens a rule, each line `- text` is one alternative, and a deeper
indented line continues the alternative above it. `#` opens a comment line. In the text:

    [a|b|c]     one of these, chosen afresh each time; may be empty and may be nested
    <rule>      one alternative of the rule; two in a row are never the same within a document while others are left
    <rule:A>    the same with the cast member A bound to X (`<rule:A,B>`: X and Y), so that one rule serves everybody
    {A.him}     an attribute of a cast member; `{A}` is its name, `{A.name}` its name alone. A friend who has not been
                introduced (by `.intro` or `.name`) is introduced at the first `{B}` outside quotation marks
    {colour1}   a word from the rule `colour`, remembered: the same number gives the same word, another number another
    ^           the next letter is a capital
    //          a new line

`a` becomes `an` where it must, and sentences begin with a capital, after the expansion.
"""

import random
import re
from pathlib import Path

_VOWEL_SOUND = re.compile(r"\b(a) (?=[aei]|o(?!ne\b|nce\b)|hour|honest|u(?!ni|se|su))", re.IGNORECASE)
_SENTENCE_START = re.compile(r'(^|\n|[.!?] |\." )(["(]?)([a-z])')
_MARK = re.compile("\x01(\\w+)([!?])")
_SENTENCE_END = re.compile(r'[.!?]"?\]?$')
_RULE_HEAD = re.compile(r"^([a-z_0-9]+):\s*$")


class GrammarError(Exception):
    """A grammar file that cannot be read, or a reference to something that is not there."""


def load_rules(folder):
    """Read every grammar file of a folder into {rule name: [alternative, ...]}."""
    rules = {}
    for path in sorted(Path(folder).glob("*.txt")):
        name = None
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            where = f"{path.name}:{number}"
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            head = _RULE_HEAD.match(line)
            if head:
                name = head.group(1)
                if name in rules:
                    raise GrammarError(f"{where}: rule {name} is defined twice")
                rules[name] = []
            elif name is None:
                raise GrammarError(f"{where}: text before the first rule")
            elif text.startswith("- ") or text == "-":
                rules[name].append(text[2:])
            elif rules[name]:
                rules[name][-1] += " " + text
            else:
                raise GrammarError(f"{where}: rule {name} starts with a continuation")
    return {name: [_as_sentence(text) for text in alternatives] for name, alternatives in rules.items()}


def _as_sentence(text):
    """A whole sentence begins with a capital wherever it lands; a phrase does not."""
    return "^" + text if _SENTENCE_END.search(text) and not text.startswith("^") else text


def _matching(text, start, opening, closing):
    """Index of the bracket that closes the one at start."""
    depth = 0
    for i in range(start, len(text)):
        if text[i] == opening:
            depth += 1
        elif text[i] == closing:
            depth -= 1
            if depth == 0:
                return i
    raise GrammarError(f"unbalanced {opening} in: {text}")


def _split_choices(body):
    """Split at the bars that are not inside inner brackets."""
    parts, depth, last = [], 0, 0
    for i, c in enumerate(body):
        if c == "[":
            depth += 1
        elif c == "]":
            depth -= 1
        elif c == "|" and depth == 0:
            parts.append(body[last:i])
            last = i + 1
    parts.append(body[last:])
    return parts


def _introduce(text, cast):
    """Replace the marks of cast members by names, with an introduction where the reader meets somebody new."""
    known = set()

    def name(match):
        key, kind, following = match.group(1), match.group(2), text[match.end():match.end() + 1]
        member = cast[key]
        quoted = text.count('"', 0, match.start()) % 2 == 1
        if kind == "!":
            known.add(key)
            return ""
        if key in known or quoted or "short_intro" not in member:
            return member["name"]
        known.add(key)
        plain = following not in ("'", ",")
        return member["short_intro"][0 if plain and len(text) % 2 else 1]

    return _MARK.sub(name, text)


def polish(text):
    """Mend articles, spaces and capitals after an expansion."""
    text = re.sub(r"\s*//\s*", "\n", text)
    text = re.sub(r"[ \t]+", " ", text)
    text = re.sub(r" +([,.!?;:])(?!\.)", r"\1", text)
    text = _VOWEL_SOUND.sub(r"\1n ", text)
    text = _SENTENCE_START.sub(lambda m: m.group(1) + m.group(2) + m.group(3).upper(), text)
    text = re.sub(r"\^[\^ \t]*(\"?)(\w)", lambda m: m.group(1) + m.group(2).upper(), text)
    return text.replace("^", "").strip()


class Document:
    """One text in the making: its cast, the words it has fixed, and the alternatives it has used."""

    def __init__(self, rules, rng, cast=None):
        self.rules = rules
        self.rng = rng
        self.cast = dict(cast or {})
        self.words = {}
        self.used = {}

    def write(self, text):
        """Expand a text to its final form."""
        return polish(_introduce(self._expand(text, {}), self.cast))

    def word(self, key):
        """The word remembered under a key such as colour1, drawn from the rule colour at its first use."""
        if key not in self.words:
            base = key.rstrip("0123456789")
            if base not in self.rules:
                raise GrammarError(f"no cast member and no rule for {{{key}}}")
            taken = {w for k, w in self.words.items() if k.rstrip("0123456789") == base}
            for _ in range(20):
                drawn = self._expand(self.rng.choice(self.rules[base]), {})
                if drawn not in taken:
                    break
            self.words[key] = drawn
        return self.words[key]

    def _pick(self, name):
        """An alternative of a rule that this document has not used yet, while there is one."""
        if name not in self.rules:
            raise GrammarError(f"no rule {name}")
        return self.rules[name][self._unused(name, len(self.rules[name]))]

    def _unused(self, name, count):
        """One of count indices; all of them come before any comes again."""
        used = self.used.setdefault(name, set())
        if len(used) == count:
            used.clear()
        index = self.rng.choice([i for i in range(count) if i not in used])
        used.add(index)
        return index

    def _rule(self, reference, bound):
        name, _, arguments = reference.partition(":")
        if not arguments:
            return self._expand(self._pick(name), bound)
        members = [bound.get(a, a) for a in arguments.split(",")]
        return self._expand(self._pick(name), dict(zip("XYZ", members)))

    def _reference(self, reference, bound):
        key, _, attribute = reference.partition(".")
        key = bound.get(key, key)
        if key not in self.cast:
            return self.word(key)
        member = self.cast[key]
        if not attribute and "short_intro" in member:
            return f"\x01{key}?"
        value = self._attribute(key, attribute or "name")
        return f"\x01{key}!{value}" if attribute in ("intro", "name") and "short_intro" in member else value

    def _attribute(self, key, attribute):
        """The value of an attribute; of a list, one that this document has not used yet, while there is one."""
        if attribute not in self.cast[key]:
            raise GrammarError(f"{key} has no attribute {attribute}")
        value = self.cast[key][attribute]
        if isinstance(value, (list, tuple)):
            value = value[self._unused(f"{key}.{attribute}", len(value))]
        return self._expand(value, {"X": key}) if any(c in value for c in "[<{") else value

    def _expand(self, text, bound):
        out, i = [], 0
        while i < len(text):
            c = text[i]
            if c == "[":
                end = _matching(text, i, "[", "]")
                out.append(self._expand(self.rng.choice(_split_choices(text[i + 1:end])), bound))
            elif c == "<":
                end = text.index(">", i)
                out.append(self._rule(text[i + 1:end], bound))
            elif c == "{":
                end = text.index("}", i)
                out.append(self._reference(text[i + 1:end], bound))
            else:
                end = i
                out.append(c)
            i = end + 1
        return "".join(out)


def seeded(*parts):
    """A generator that depends on the parts alone, never on the process or its hash seed."""
    return random.Random("/".join(str(p) for p in parts))

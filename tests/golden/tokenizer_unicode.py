#!/usr/bin/env python3
"""Compares characters in regular expressions, normal forms and classes with the `tokenizers` library.

    tokenizer_unicode.py --write tests/fixtures/unicode/tokenizer_classes.json
    tokenizer_unicode.py --library build/dev/libqrun.so

The first writes a golden for test_tokenizer_unicode: for every expression below, which characters of a sample it
matches. The second asks qrun about every code point and prints the table of docs/formats.md (half an hour).
A difference is one of versions where the character is unassigned in Unicode 14, which PCRE2 10.42 knows, where its
properties have changed since, or, in normal forms, where qrun does as Unicode 14 says: the library's tables for those
are older. Any other is printed with its code points, and the exit status is 1.

Needs the `tokenizers` package (0.23.3 made the committed files) and Python 3.11, whose unicodedata is Unicode 14.
"""
import argparse
import ctypes
import json
import pathlib
import sys
import tempfile
import unicodedata

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

# An expression matches a character where removing its matches from prefix + character removes something.
EXPRESSIONS = [(regex, "") for regex in (
    r"\w", r"\W", r"[\w]", r"[\W]", r"[^\w]", r"[^\W]", r"[^\W\d]", r"[^\W\d_]", r"[\W\d]", r"[^\s\W]", r"[\S]", r"[^\S]",
    r"[^\S\n]", r"\d", r"\D", r"[^\D]", r"\s", r"\S", r"\h", r"\H", r"[^\h]", r"[\H]", r"\v", r"[\v]", r"\V", r"\R", r"\N",
    r"\O", r".", r"(?m:.)", r"[[:alnum:]]", r"[[:alpha:]]", r"[[:ascii:]]", r"[[:blank:]]", r"[[:cntrl:]]", r"[[:digit:]]",
    r"[[:graph:]]", r"[[:lower:]]", r"[[:print:]]", r"[[:punct:]]", r"[[:space:]]", r"[[:upper:]]", r"[[:xdigit:]]",
    r"[[:word:]]", r"[[:^alpha:]]", r"[[:^word:]]", r"[[:^alnum:]]", r"[^[:alpha:]]", r"[^[:^punct:]]", r"[[:^graph:]]",
    r"[[:^print:]]", r"[[:^blank:]]", r"[[:^ascii:]\d]", r"\p{Alnum}", r"\p{Alpha}", r"\p{Blank}", r"\p{Cntrl}",
    r"\p{Digit}", r"\p{Graph}", r"\p{Lower}", r"\p{Print}", r"\p{Punct}", r"\p{Space}", r"\p{Upper}", r"\p{XDigit}",
    r"\p{Word}", r"\P{Word}", r"[\p{Word}]", r"\p{ASCII}", r"\p{Any}", r"\p{Assigned}", r"\p{Alphabetic}", r"\p{^L}",
    r"\P{^L}", r"[^\P{L}]", r"\p{L}", r"\p{M}", r"\p{N}", r"\p{P}", r"\p{S}", r"\p{Z}", r"\p{C}", r"\p{Lu}", r"\p{ll}",
    r"\p{Lt}", r"\p{Lm}", r"\p{Lo}", r"\p{Mn}", r"\p{Mc}", r"\p{Me}", r"\p{Nd}", r"\p{Nl}", r"\p{No}", r"\p{Pc}",
    r"\p{Pd}", r"\p{Ps}", r"\p{Pe}", r"\p{Pi}", r"\p{Pf}", r"\p{Po}", r"\p{Sm}", r"\p{Sc}", r"\p{Sk}", r"\p{So}",
    r"\p{Zs}", r"\p{Zl}", r"\p{Zp}", r"\p{Cc}", r"\p{Cf}", r"\p{Co}", r"\p{Cn}", r"\p{LC}", r"\p{Letter}",
    r"\p{Uppercase_Letter}", r"\p{decimal number}", r"\p{Punctuation}", r"\p{White_Space}", r"\p{Lowercase}",
    r"\p{Uppercase}", r"\p{Emoji}", r"\p{Extended_Pictographic}", r"\p{ID_Start}", r"\p{ID_Continue}", r"\p{Han}",
    r"\p{Hiragana}", r"\p{Katakana}", r"\p{Hangul}", r"\p{Latin}", r"\p{Greek}", r"\p{Cyrillic}", r"\p{Arabic}",
    r"\p{Hebrew}", r"\p{Thai}", r"\p{Devanagari}", r"\p{Common}", r"\p{Inherited}", r"(?i:[a-z])", r"(?i)k", r"(?i:\u00e9)",
    r"^[^\S\r\n]", r"[\x{41}-\x{5A}\u00C0-\u00D6]", r"[]a]", r"[a\-z]", r"[\b]", r"\i|\q")]
EXPRESSIONS += [(regex, prefix) for prefix in ("a", " ", "\xb2", "\u0915\u094d", "\U0001F1E6")
                for regex in (r"\A.+\b\O\z", r"\A.+\B\O\z")]

NORMALIZERS = {"NFC": normalizers.NFC(), "NFD": normalizers.NFD(), "NFKC": normalizers.NFKC(),
               "NFKD": normalizers.NFKD(), "Lowercase": normalizers.Lowercase(),
               "StripAccents": normalizers.StripAccents(), "Strip": normalizers.Strip()}
# A base of each kind, so that a mark composes or is reordered.
BASES = ("", "a", "a\u0323\u0301", "\u1100", "\u05d0\u05bc")

CODE_POINTS = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
# Properties that later versions changed for characters that Unicode 14 has: Alphabetic and Lowercase.
CHANGED = ({*range(0x363, 0x370), 0xC04, 0xF82, 0xF83, *range(0x1DD3, 0x1DE7), 0x11080, 0x11081},
           {0x10FC, 0xA7F2, 0xA7F3, 0xA7F4, 0xAB69})


def is_later(c):
    return unicodedata.category(chr(c)) == "Cn" or any(c in changed for changed in CHANGED)


def byte_tokenizer(normalizer=None, pre_tokenizer=None):
    """A tokenizer whose ids are bytes, so that its decoded text is the normalised text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    steps = [] if pre_tokenizer is None else [pre_tokenizer]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        steps + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


class Qrun:
    """The few calls of qrun.h that this needs."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.error = ctypes.create_string_buffer(4096)
        self.context = ctypes.c_void_p()
        self.check(self.lib.qrun_context_create(None, ctypes.byref(self.context), self.error))

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.error.raw[4:].split(b"\0")[0].decode())

    def open(self, tokenizer):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "tokenizer.json").write_text(tokenizer.to_str())
            handle = ctypes.c_void_p()
            self.check(self.lib.qrun_tokenizer_open(self.context, folder.encode(), ctypes.byref(handle), self.error))
        return handle

    def texts(self, tokenizer):
        """What this tokenizer decodes its own ids of a text to."""
        handle = self.open(tokenizer)
        return lambda text: self.text(handle, text)

    def text(self, handle, text):
        data = text.encode()
        ids, n_ids = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_int64()
        self.check(self.lib.qrun_tokenize(handle, data, ctypes.c_size_t(len(data)), False, False, ctypes.byref(ids),
                                          ctypes.byref(n_ids), self.error))
        out, n_bytes = ctypes.c_void_p(), ctypes.c_size_t()
        self.check(self.lib.qrun_detokenize(handle, ids, n_ids, False, ctypes.byref(out), ctypes.byref(n_bytes),
                                            self.error))
        result = ctypes.string_at(out.value, n_bytes.value).decode()
        self.lib.qrun_free(ids)
        self.lib.qrun_free(out)
        return result


def compare_each(ours, theirs, prefix=""):
    return [c for c in CODE_POINTS if ours(prefix + chr(c)) != theirs(prefix + chr(c))]


def compare_lines(ours, theirs, base):
    """For what does not look beyond a line."""
    text = "\n".join(base + chr(c) for c in CODE_POINTS if c != 10)
    pairs = zip((c for c in CODE_POINTS if c != 10), ours(text).split("\n"), theirs(text).split("\n"))
    return [c for c, our, their in pairs if our != their]


def compare_sets(ours, theirs):
    """For expressions that match one character: the characters that are left."""
    text = "".join(map(chr, CODE_POINTS))
    return sorted(map(ord, set(ours(text)) ^ set(theirs(text))))


def removed(normalizer, text):
    return len(normalizer.normalize_str(text)) < len(text)


def write(path):
    """The sample: both sides of every place where some expression changes its mind, as far as Unicode 14 goes."""
    compiled = [(normalizers.Replace(Regex(regex), ""), prefix) for regex, prefix in EXPRESSIONS]
    sample = set(range(1, 0x180))
    everything = "".join(map(chr, CODE_POINTS))
    for normalizer, _ in compiled[:EXPRESSIONS.index((r"\p{Han}", ""))]:
        kept, last = set(normalizer.normalize_str(everything)), None
        for c in CODE_POINTS:
            if (chr(c) in kept) != last:
                sample |= {c - 1, c}
                last = chr(c) in kept
    sample = sorted(c for c in sample if not 0xD800 <= c < 0xE000 and c > 0 and not is_later(c))
    step = max(1, len(sample) // 600)
    sample = [c for i, c in enumerate(sample) if c < 0x180 or i % step == 0]
    tests = []
    for (regex, prefix), (normalizer, _) in zip(EXPRESSIONS, compiled):
        bits = sum(removed(normalizer, prefix + chr(c)) << i for i, c in enumerate(sample))
        tests.append({"regex": regex, "prefix": prefix, "matches": f"{bits:x}"})
    lines = ",\n".join(json.dumps(test) for test in tests)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"sample":' + json.dumps(sample, separators=(",", ":")) + ',\n"tests":[\n' + lines + "\n]}\n")


def by_unicode_14(name, text):
    """The text as a normaliser of Unicode 14 makes it."""
    if name == "StripAccents":
        return "".join(c for c in text if not unicodedata.category(c).startswith("M"))
    return unicodedata.normalize(name, text) if name.startswith("NF") else text.lower()


def report(name, different, wrong, rows, strange):
    """A row of the table, and what the version of Unicode does not explain."""
    if different:
        rows.append((name, len(different)))
    if wrong:
        strange.append(f"{name}: {len(wrong)} code points: " + " ".join(f"{c:X}" for c in wrong[:40]))


def compare(library):
    """Every code point on a line of its own; expressions with a prefix have it before each."""
    qrun, rows, strange = Qrun(library), [], []
    for regex, prefix in EXPRESSIONS:
        theirs = normalizers.Replace(Regex(regex), "")
        name = regex + (f" after {ascii(prefix)}" if prefix else "")
        try:
            ours = qrun.texts(byte_tokenizer(theirs))
        except RuntimeError as error:
            strange.append(f"{name}: refused: {error}")
            continue
        alone = prefix == "" and not regex.startswith("^")
        different = (compare_sets(ours, theirs.normalize_str) if alone
                     else compare_each(ours, theirs.normalize_str, prefix))
        report(name, different, [c for c in different if not is_later(c)], rows, strange)
    for name, theirs in NORMALIZERS.items():
        ours, different, wrong = qrun.texts(byte_tokenizer(theirs)), set(), set()
        for base in BASES:
            compared = compare_each if name == "Strip" else compare_lines
            some = compared(ours, theirs.normalize_str, base)
            different |= set(some)
            wrong |= {c for c in some if not is_later(c) and ours(base + chr(c)) != by_unicode_14(name, base + chr(c))}
        report(name, sorted(different), sorted(wrong), rows, strange)
    theirs = pre_tokenizers.Punctuation("removed")
    ours = qrun.texts(byte_tokenizer(pre_tokenizer=theirs))
    different = compare_lines(ours, lambda text: "".join(piece for piece, _ in theirs.pre_tokenize_str(text)), "a")
    wrong = [c for c in different
             if not is_later(c) and (ours("a" + chr(c)) == "a") != (unicodedata.category(chr(c))[0] == "P")]
    report("Punctuation", different, wrong, rows, strange)
    print("| | code points |\n|---|---|")
    for name, n in rows:
        print(f"| `{name}` | {n:,} |")
    print("\nNot by the version of Unicode alone:\n" + "\n".join(strange) if strange else "\nAll by the version of Unicode.")
    return 1 if strange else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=pathlib.Path, help="file that gets the golden")
    parser.add_argument("--library", help="libqrun.so to compare with")
    options = parser.parse_args()
    if unicodedata.unidata_version != "14.0.0":
        sys.exit("needs a Python whose unicodedata is Unicode 14 (3.11)")
    if options.write:
        write(options.write)
    sys.exit(compare(options.library) if options.library else 0)


if __name__ == "__main__":
    main()

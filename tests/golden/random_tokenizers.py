#!/usr/bin/env python3
"""Random tokenizer.json files, and whether libqrun does with them what the `tokenizers` library does.

    random_tokenizers.py --library build/dev/lib/libqrun.so                     # 500 files, 400 texts each
    random_tokenizers.py --library build/dev/lib/libqrun.so --characters        # every character, component by component
    random_tokenizers.py --library build/dev/lib/libqrun.so --out tests/fixtures/random_tokenizers \\
        --count 56 --texts 16 --vocab 100 --seed 11

Every file has a model trained on the sentences of make_tokenizer_goldens.py, and a random normaliser, pre-tokeniser,
post-processor, decoder and list of added tokens. Ids and decoded texts must be equal, or the file must be refused with a
message. --out writes what test_tokenizer reads; a file that qrun refuses has a goldens.json that says so.
--contested adds regular expressions of which the engines' readings differ. Needs the
`tokenizers` package (0.23.3 made the committed files).
"""
import argparse
import collections
import ctypes
import json
import os
import pathlib
import random
import re
import tempfile

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

from make_tokenizer_goldens import (CORPUS, GPT4O_REGEX, LLAMA3_REGEX, MARK, QWEN_REGEX, TEXTS, golden, sample_charsmap,
                                    write_goldens)

BEHAVIORS = ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous")
SPECIALS = ("<unk>", "<s>", "</s>")


# --- components --------------------------------------------------------------------------------------------------------
# Each list has one function per kind: from a random.Random to a component. They are used in turn.


def flag(rng):
    return rng.random() < 0.5


def pattern(rng, texts, expressions):
    """A text or a regular expression, as the constructors take it."""
    return rng.choice(texts) if rng.random() < 0.4 else Regex(rng.choice(expressions))


def some(kinds, rng, most):
    """Up to `most` components of these kinds."""
    return [rng.choice(kinds)(rng) for _ in range(rng.randint(1, most))]


REPLACED = (" ", "  ", "e", "``", "''", "\u00e9", "the", MARK, "\n")
REPLACED_EXPRESSIONS = (r" {2,}", r"\s+", r"[aeiou]", r"^ ", r"\d", r"\p{L}+", r"(?<=a)b", r"\n+\z", r"\A\s", r"e|\x{301}", "a*")
REPLACEMENTS = ("", " ", MARK, "-", "ab", "\u00e9", "\u2581 ")

SIMPLE_NORMALIZERS = [
    lambda rng: normalizers.NFC(),
    lambda rng: normalizers.NFD(),
    lambda rng: normalizers.NFKC(),
    lambda rng: normalizers.NFKD(),
    lambda rng: normalizers.Lowercase(),
    lambda rng: normalizers.Strip(left=flag(rng), right=flag(rng)),
    lambda rng: normalizers.StripAccents(),
    lambda rng: normalizers.Nmt(),
    lambda rng: normalizers.Replace(rng.choice(REPLACED), rng.choice(REPLACEMENTS)),
    lambda rng: normalizers.Replace(Regex(rng.choice(REPLACED_EXPRESSIONS)), rng.choice(REPLACEMENTS)),
    lambda rng: normalizers.Prepend(rng.choice((MARK, " ", "ab", "\u00e9"))),
    lambda rng: normalizers.ByteLevel(),
    lambda rng: normalizers.BertNormalizer(clean_text=flag(rng), handle_chinese_chars=flag(rng),
                                           strip_accents=rng.choice((None, True, False)), lowercase=flag(rng)),
    lambda rng: normalizers.Precompiled(sample_charsmap()),
]
NORMALIZERS = SIMPLE_NORMALIZERS + [
    lambda rng: None,
    lambda rng: normalizers.Sequence(some(SIMPLE_NORMALIZERS, rng, 4)),
    lambda rng: normalizers.Sequence([normalizers.Sequence(some(SIMPLE_NORMALIZERS, rng, 2)), *some(SIMPLE_NORMALIZERS, rng, 2)]),
    lambda rng: normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]),
    lambda rng: normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]),
    lambda rng: normalizers.Sequence([]),
]

SPLIT_TEXTS = (" ", "-", "e", "the", "\n", "\u00e9", MARK, "''")
SPLIT_EXPRESSIONS = [LLAMA3_REGEX, QWEN_REGEX, GPT4O_REGEX, r"\s+", r"\d{1,3}", r"[A-Z][a-z]+", r"\p{Han}", r"\n|\t", r"(?i)the",
                     r"a*", r"[^a-z ]+", r"(?<=\p{L})\p{N}", r"\p{Lu}", r"[\r\n]+", r"\S+(?=!)", r"(?:ab)+?"]
CONTESTED_EXPRESSIONS = [r"\b", r"\X", r"\v", r"\w+", r"[[:alpha:]]+", r"[^\W\d]+", r"\p{Alphabetic}+", r"[[:punct:]]", r"[\p{L}&&[^a-z]]"]

SIMPLE_PRETOKENIZERS = [
    lambda rng: pre_tokenizers.ByteLevel(add_prefix_space=flag(rng), use_regex=flag(rng)),
    lambda rng: pre_tokenizers.Metaspace(replacement=rng.choice((MARK, MARK, "_", "\u00e9")),
                                         prepend_scheme=rng.choice(("always", "first", "never")), split=flag(rng)),
    lambda rng: pre_tokenizers.Split(rng.choice(SPLIT_TEXTS), rng.choice(BEHAVIORS), invert=flag(rng)),
    lambda rng: pre_tokenizers.Split(Regex(rng.choice(SPLIT_EXPRESSIONS)), rng.choice(BEHAVIORS), invert=flag(rng)),
    lambda rng: pre_tokenizers.Digits(individual_digits=flag(rng)),
    lambda rng: pre_tokenizers.Punctuation(rng.choice(BEHAVIORS)),
    lambda rng: pre_tokenizers.Whitespace(),
    lambda rng: pre_tokenizers.WhitespaceSplit(),
    lambda rng: pre_tokenizers.BertPreTokenizer(),
    lambda rng: pre_tokenizers.CharDelimiterSplit(rng.choice((" ", "-", "\u00e9", "e"))),
    lambda rng: pre_tokenizers.FixedLength(rng.choice((1, 2, 5, 64))),
]
PRETOKENIZERS = SIMPLE_PRETOKENIZERS + [
    lambda rng: None,
    lambda rng: pre_tokenizers.UnicodeScripts(),
    lambda rng: pre_tokenizers.Metaspace(prepend_scheme="first", split=flag(rng)),
    lambda rng: pre_tokenizers.Sequence(some(SIMPLE_PRETOKENIZERS, rng, 4)),
    lambda rng: pre_tokenizers.Sequence([*some(SIMPLE_PRETOKENIZERS, rng, 2), pre_tokenizers.Metaspace(prepend_scheme="first")]),
    lambda rng: pre_tokenizers.Sequence([pre_tokenizers.Sequence(some(SIMPLE_PRETOKENIZERS, rng, 2)), *some(SIMPLE_PRETOKENIZERS, rng, 2)]),
    lambda rng: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(rng.choice(SPLIT_EXPRESSIONS[:3])), "isolated"),
                                         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
]


def template(rng):
    single = rng.choice(("<s> $A", "$A </s>", "<s> $A </s>", "<s>:1 </s> $A:1 </s> </s>", "$A", "$0"))
    return processors.TemplateProcessing(single=single, pair=f"{single} $B", special_tokens=[("<s>", 1), ("</s>", 2)])


def roberta(rng):
    return processors.RobertaProcessing(("</s>", 2), ("<s>", 1), trim_offsets=flag(rng), add_prefix_space=flag(rng))


def bert(rng):
    return processors.BertProcessing(("</s>", 2), ("<s>", 1))


POST_PROCESSORS = [
    lambda rng: None,
    lambda rng: processors.ByteLevel(trim_offsets=flag(rng)),
    template, roberta, bert,
    lambda rng: processors.Sequence([processors.ByteLevel(trim_offsets=flag(rng)), template(rng)]),
    lambda rng: processors.Sequence([template(rng), processors.ByteLevel(trim_offsets=flag(rng))]),
    lambda rng: processors.Sequence([rng.choice((roberta, bert))(rng), rng.choice((roberta, bert, template))(rng)]),
    lambda rng: processors.Sequence([template(rng), rng.choice((roberta, bert, template))(rng)]),
]

SIMPLE_DECODERS = [
    lambda rng: decoders.ByteLevel(),
    lambda rng: decoders.WordPiece(prefix=rng.choice(("##", "", "\u00e9")), cleanup=flag(rng)),
    lambda rng: decoders.ByteFallback(),
    lambda rng: decoders.Fuse(),
    lambda rng: decoders.Strip(rng.choice((" ", MARK, "e")), rng.randint(0, 2), rng.randint(0, 1)),
    lambda rng: decoders.Replace(pattern(rng, REPLACED, REPLACED_EXPRESSIONS), rng.choice(REPLACEMENTS)),
    lambda rng: decoders.Metaspace(replacement=rng.choice((MARK, "_")), prepend_scheme=rng.choice(("always", "first", "never"))),
    lambda rng: decoders.BPEDecoder(suffix=rng.choice(("</w>", "e"))),
]
DECODERS = SIMPLE_DECODERS + [
    lambda rng: None,
    lambda rng: decoders.CTC(),
    lambda rng: decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
    lambda rng: decoders.Sequence(some(SIMPLE_DECODERS, rng, 4)),
    lambda rng: decoders.Sequence([]),
]

ADDED = ("<s>", "</s>", "[MASK]", "<|end|>", "<|end|><|end|>", "tag", "TAG", "tagged", "the", " the", "a b", "\u00e9", "e\u0301", "\ufb01", "\uff21",
         "\u00bd", " ", "  ", "\n", "\n\n", "\t", "\n \n", MARK, MARK * 2, "1", "12", "-", "'s", "don't", "\u200d", "\U0001f469", "\u4e2d",
         "\u0301", "<0x0A>", "\u1e9e", "\u0130", "\u00a0", "\u3000", "s", "ing", "##ing", ".", "<unk>", "  x ", "\u05e9", "x\u00a0y")


def added_tokens(rng, normalizer):
    """Without those that normalisation leaves nothing of, with which the library never ends, and without those that it
    makes alike, of which the library takes one by chance."""
    contents = rng.sample(ADDED, rng.choice((0, 1, 3, 6, 12)))
    tokens = [AddedToken(content, single_word=rng.random() < 0.25, lstrip=rng.random() < 0.35, rstrip=rng.random() < 0.35,
                         normalized=flag(rng), special=flag(rng)) for content in contents]
    if normalizer is None:
        return tokens
    by_text = {normalizer.normalize_str(token.content) if token.normalized else f"raw {token.content}": token for token in tokens}
    return [token for text, token in by_text.items() if text]


# --- models ------------------------------------------------------------------------------------------------------------

BYTE_TOKENS = [f"<0x{i:02X}>" for i in range(256)]


def retouched(tokenizer, **members):
    """With other members of the model, and byte tokens that are no added tokens."""
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] not in BYTE_TOKENS]
    data["model"].update(members)
    return Tokenizer.from_str(json.dumps(data))


def byte_tokens(rng):
    return rng.choice(([], BYTE_TOKENS, BYTE_TOKENS, BYTE_TOKENS[:200]))


def spelled_in_bytes(tokenizer):
    return "ByteLevel" in json.dumps([json.loads(tokenizer.to_str())[key] for key in ("normalizer", "pre_tokenizer")])


def train_bpe(rng, tokenizer, size):
    prefix, suffix = rng.choice((None, None, "##", "")), rng.choice((None, None, "</w>", ""))
    unk, extra = rng.choice((None, "<unk>", "<unk>")), byte_tokens(rng)
    affixes = {"continuing_subword_prefix": prefix, "end_of_word_suffix": suffix}
    affixes = {key: value for key, value in affixes.items() if value is not None}
    options = {"unk_token": unk, "dropout": rng.choice((None, 0.0)), **affixes}
    tokenizer.model = models.BPE(fuse_unk=flag(rng), byte_fallback=bool(extra) or flag(rng), ignore_merges=rng.random() < 0.3,
                                 **{key: value for key, value in options.items() if value is not None})
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet()) if spelled_in_bytes(tokenizer) and rng.random() < 0.8 else []
    trainer = trainers.BpeTrainer(vocab_size=size + len(extra), special_tokens=[*SPECIALS, *extra], show_progress=False, initial_alphabet=alphabet,
                                  limit_alphabet=rng.choice((40, 300)), **affixes)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return retouched(tokenizer)


def train_unigram(rng, tokenizer, size):
    tokenizer.model, extra = models.Unigram(), byte_tokens(rng)
    trainer = trainers.UnigramTrainer(vocab_size=size + len(extra), special_tokens=[*SPECIALS, *extra], unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return retouched(tokenizer, byte_fallback=bool(extra) or flag(rng), unk_id=rng.choice((0, 0, 0, None)))


def train_word_piece(rng, tokenizer, size):
    prefix = rng.choice(("##", "##", "", "\u00e9"))
    tokenizer.model = models.WordPiece(unk_token="<unk>", max_input_chars_per_word=rng.choice((4, 100, 100)), continuing_subword_prefix=prefix)
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=list(SPECIALS), show_progress=False,
                                        continuing_subword_prefix=prefix, limit_alphabet=rng.choice((40, 300)))
    tokenizer.train_from_iterator(CORPUS, trainer)
    return retouched(tokenizer, continuing_subword_prefix=prefix, max_input_chars_per_word=rng.choice((4, 100, 100)))


def train_word_level(rng, tokenizer, size):
    tokenizer.model = models.WordLevel(unk_token="<unk>")
    tokenizer.train_from_iterator(CORPUS, trainers.WordLevelTrainer(vocab_size=size, special_tokens=list(SPECIALS), show_progress=False))
    return tokenizer


MODELS = [train_bpe, train_bpe, train_unigram, train_word_piece, train_word_level]


def in_turn(kinds, seed):
    """Every kind as often as the others, in random order."""
    rng = random.Random(seed)
    while True:
        yield from rng.sample(kinds, len(kinds))


def random_tokenizers(count, seed, size):
    """(number, tokenizer) of those that the library itself can make and read again."""
    draws = [in_turn(kinds, f"{seed} {i}") for i, kinds in enumerate((MODELS, NORMALIZERS, PRETOKENIZERS, POST_PROCESSORS, DECODERS))]
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        train, normalizer, pretokenizer, processor, decoder = (next(draw) for draw in draws)
        tokenizer = Tokenizer(models.BPE())
        for name, make in (("normalizer", normalizer), ("pre_tokenizer", pretokenizer)):
            component = make(rng)
            if component is not None:
                setattr(tokenizer, name, component)
        try:
            tokenizer = train(rng, tokenizer, size)
            for name, make in (("post_processor", processor), ("decoder", decoder)):
                component = make(rng)
                if component is not None:
                    setattr(tokenizer, name, component)
            tokenizer.add_tokens(added_tokens(rng, tokenizer.normalizer))
            yield number, Tokenizer.from_str(tokenizer.to_str())
        except BaseException as error:  # the library panics too; ours is not asked
            print(f"{number}: the library cannot make it: {type(error).__name__}: {str(error)[:100]}")


# --- texts -------------------------------------------------------------------------------------------------------------

NASTY = [
    "\x00", "a\x00b", "\x01\x02\x1b[31m\x7f\x80\x9b", "\u0301", "\u0301\u0301a", "e\u0301\u0323\u0345", "\u0345\u0301\u0323", "\u200d", "\u200b\u200c\u200d\u2060\ufeff",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f3f3\ufe0f\u200d\U0001f308", "\U0001f1e9\U0001f1ea\U0001f1fa", "\U0001f44d\U0001f3fd", "1\ufe0f\u20e3",
    "\u202e\u0627\u0644\u0639\u0631\u0628\u064a\u0629\u202c abc", "\u05e9\u05b8\u05dc\u05d5\u05b9\u05dd", "\u0915\u094d\u0937\u093f", "\u0e01\u0e33\u0e49", "\u1100\u1161\u11a8\uac01\uac00\u11a8",
    "\ufdfa \u3300 \u00bd \ufb03\ufb01\u0301", "\u1e9b\u0323", "\u2126\u212b\u00c5A\u030a", "\u0130I\u0307 \u0131\u0049 \u03a3\u03c3\u03c2", "\u00df\u1e9e\ufb05", "\ud7a3\uff9e\uff76\uff9e",
    "\ufffe\uffff\U0010ffff\U0001fffe", "\ue000\U000f0000\U00100000\U0010fffd", "\ufffd\ufffd", "\U0001d400\U0001d7d8\u24b6\u2460\u2167", "\u2028\u2029\u0085\u000b\u000c\u001c\u001f",
    "\r\n\r\r\n\n", " \t\u00a0\u1680\u2000\u200a\u202f\u205f\u3000x", "\u3000\u3000 \u3000", "a" * 300, " " * 200, "\n" * 100, "\t \t " * 30, "ab" * 150, "\u00e9" * 120, "e\u0301" * 80,
    "\u0301" * 100, "a" + "\u0323\u0301" * 40, "\U0001f469" * 50, "\u4e2d" * 120, "-" * 130, "'s't're've'm'll'd", "''''``", "1" * 120, "1,234,567.89e-10", "0x1F 0b101 1_000",
    "undefined null NaN Infinity -0 true", "'; DROP TABLE users;--", "<script>alert(1)</script>", "${HOME} $(id) `ls` %s %n", "../../../etc/passwd\x00", "C:\\\\NUL.txt", "{\"a\": [1, 2]}",
    "\u0660\u0661\u0662 \u0966\u0967 \uff11\uff12 \u4e09", "a.b.c e.g. U.S.A. ...", "CamelCaseString snake_case kebab-case", "do not ca n't I 'm he 's we 've they 're ' x '", "a . b ? c ! d , e",
    "<0x00><0xFF><0x0A>", "##ing ing##", "</w> e</w>", MARK, MARK * 3 + "a" + MARK, "_a_b_", "\u0120the\u010a", "\u2581 \u2581", " " + MARK, "x" + " " * 40 + "y", "\ufeffthe", "the\ufeff",
    "\u0e33\u0eb3", "\u0958\u0929", "\u0f43\u0f71\u0f72", "\u2adc", "\U0001d15e", "\u0344\u0340\u0341\u0343", "\u1100\u1161\u1112\u1161\u11ab", "\ufb1d\ufb2a", "\u00c5\u212b\u0041\u030a",
]
ALPHABET = (list("  \n\t\r'.,!?-_$<>|[](){}#@&*+=~^`\"\\/:;%") + list("aAbBeEiIsStTxXyYzZ0123456789") + ["'s", "'ll", "the", " the", "ing", "don't"] +
            list("\u00e9\u00c9\u00df\u0130\u0131\u017f\u0301\u0323\u0345\u0308\u00bd\u2167\u0663\u4e2d\u6587\uac00\u1112\u1161\u11ab\u3000\u00a0\u2028\u0085\u200d\u200b\u2581\uff21\uff11\ufb01\ufb03"
                 "\U0001f600\U0001f469\u1e9e\u00b5\u03a3\u03c2\u0416\u05e9\u0627\u0915\u094d\u0e01\u0e33\u3042\u30ab\uff76\uff9e\u00ad\u2019\u201c\u2014\u20ac\u00a9\x00\x07\x7f\ue000"))


def random_texts(rng, count, contents):
    """Texts over the alphabet and the added tokens, which often have spaces around them."""
    spaced = [f"{before}{content}{after}" for content in contents for before in ("", " ", "  ", "\n", "a", "\u00a0") for after in ("", " ", " \n", "a")]
    for _ in range(count):
        pieces = [rng.choice(spaced) if spaced and rng.random() < 0.4 else rng.choice(ALPHABET) for _ in range(rng.choice((1, 2, 4, 8, 16, 32)))]
        yield "".join(pieces)


def texts_for(tokenizer, rng, count):
    contents = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    fixed = TEXTS + NASTY
    chosen = fixed if count > len(fixed) else rng.sample(fixed, count // 2)
    return chosen + list(random_texts(rng, count - len(chosen), contents))


# --- the library under test --------------------------------------------------------------------------------------------


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("message", ctypes.c_char * 1024)]


class Refused(Exception):
    pass


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(os.path.abspath(path))
        self.lib.qrun_free.argtypes = [ctypes.c_void_p]

    def open(self, folder):
        return QrunTokenizer(self.lib, folder)


class QrunTokenizer:
    def __init__(self, lib, folder):
        self.lib, self.tokenizer = lib, ctypes.c_void_p()
        self.call(lib.qrun_tokenizer_open, None, str(folder).encode(), ctypes.byref(self.tokenizer))

    def call(self, function, *arguments):
        error = Error()
        if function(*arguments, ctypes.byref(error)) != 0:
            raise Refused(error.message.decode())

    def encode(self, text, add_special, parse_special):
        ids, n, data = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_int64(), text.encode()
        self.call(self.lib.qrun_tokenize, self.tokenizer, data, ctypes.c_size_t(len(data)), ctypes.c_bool(add_special),
                  ctypes.c_bool(parse_special), ctypes.byref(ids), ctypes.byref(n))
        result = ids[:n.value]
        self.lib.qrun_free(ids)
        return result

    def decode(self, ids, skip_special):
        text, n = ctypes.c_void_p(), ctypes.c_size_t()
        self.call(self.lib.qrun_detokenize, self.tokenizer, (ctypes.c_int32 * len(ids))(*ids), ctypes.c_int64(len(ids)),
                  ctypes.c_bool(skip_special), ctypes.byref(text), ctypes.byref(n))
        result = ctypes.string_at(text, n.value).decode()
        self.lib.qrun_free(text)
        return result

    def close(self):
        self.lib.qrun_tokenizer_destroy(self.tokenizer)


def open_json(library, text):
    """Opens the text of a tokenizer.json; raises Refused."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "tokenizer.json").write_text(text)
        return library.open(folder)


# --- comparing ---------------------------------------------------------------------------------------------------------


def skipped_otherwise(tokenizer):
    """Ids of which the library's decode asks by their normalised text whether they are special; qrun asks the token."""
    tokens, normalizer = tokenizer.get_added_tokens_decoder(), tokenizer.normalizer
    specials = {token.content for token in tokens.values() if token.special}

    def text(token):
        return normalizer.normalize_str(token.content) if normalizer and token.normalized else token.content

    return {i for i, token in tokens.items() if (text(token) in specials) != token.special}


def expected(tokenizer, text, special, lenient):
    """A golden of this text, or None where the library itself fails."""
    try:
        test = golden(tokenizer, text, special, special)
    except BaseException:
        return None
    if test["skip_special"] and lenient.intersection(test["ids"]):
        test["decoded"] = None
    return test


def difference(ours, test):
    """What is not as in the golden, in words; None where nothing is."""
    try:
        ids = ours.encode(test["text"], test["add_special"], test["parse_special"])
        if ids != test["ids"]:
            return f"ids {ids}, expected {test['ids']}"
        decoded = ours.decode(ids, test["skip_special"])
        if test["decoded"] is not None and decoded != test["decoded"]:
            return f"decoded {decoded!r}, expected {test['decoded']!r}"
    except Refused as error:
        return f"failed: {error}"
    return None


def decoding_difference(ours, tokenizer, ids, skip_special, lenient):
    """The same for ids that no text gave."""
    try:
        decoded = tokenizer.decode(ids, skip_special_tokens=skip_special)
    except BaseException:
        return None
    decoded_here = ours.decode(ids, skip_special)
    same = decoded_here == decoded or (skip_special and lenient.intersection(ids))
    return None if same else f"decoded {decoded_here!r}, expected {decoded!r}"


def decoding_differences(ours, tokenizer, rng, count):
    """[(ids, what differs)]: ids of any token, in any order."""
    lenient, every = skipped_otherwise(tokenizer), sorted(tokenizer.get_vocab().values())
    draws = [(rng.choices(every, k=rng.choice((0, 1, 2, 5, 20))), flag(rng)) for _ in range(count)]
    return [(ids, wrong) for ids, skip in draws if (wrong := decoding_difference(ours, tokenizer, ids, skip, lenient))]


def goldens_of(tokenizer, texts):
    lenient = skipped_otherwise(tokenizer)
    tests = (expected(tokenizer, text, special, lenient) for text in texts for special in (True, False))
    return [test for test in tests if test is not None]


def describe(tokenizer):
    data = json.loads(tokenizer.to_str())
    model = {key: value for key, value in data["model"].items() if key not in ("vocab", "merges")}
    parts = {key: data[key] for key in ("normalizer", "pre_tokenizer", "post_processor", "decoder")}
    return re.sub(r'"precompiled_charsmap": "[^"]*"', '"precompiled_charsmap": …', json.dumps(parts | {"model": model, "added": data["added_tokens"]}))


def compare(library, arguments):
    """Prints what differs; the number of tokenizers that do."""
    refused, n_equal, n_different, n_tests = collections.Counter(), 0, 0, 0
    for number, tokenizer in random_tokenizers(arguments.count, arguments.seed, arguments.vocab):
        if arguments.only is not None and number != arguments.only:
            continue
        try:
            ours = open_json(library, tokenizer.to_str())
        except Refused as error:
            refused[re.sub(r"^\S*tokenizer.json", "", str(error))] += 1
            continue
        rng = random.Random(f"{arguments.seed} {number} texts")
        tests = goldens_of(tokenizer, texts_for(tokenizer, rng, arguments.texts))
        n_tests += len(tests)
        found = [(test["text"], "on" if test["add_special"] else "off", wrong) for test in tests if (wrong := difference(ours, test))]
        found += [(ids, "in ids", wrong) for ids, wrong in decoding_differences(ours, tokenizer, rng, arguments.texts)]
        ours.close()
        n_equal += not found
        n_different += bool(found)
        if found:
            print(f"{number}: {len(found)} of {len(tests)} differ: {describe(tokenizer)}")
            for given, special, wrong in sorted(found, key=lambda case: len(case[0]))[:arguments.show]:
                print(f"    {given!r}, special tokens {special}: {wrong}")
    print(f"{n_equal} equal in {n_tests} encodings, {n_different} different, {sum(refused.values())} refused:")
    for message, n in refused.most_common():
        print(f"    {n} × {message}")
    return n_different


def write_out(library, arguments):
    """Of tokenizers that are refused alike the first is enough."""
    seen = set()
    for number, tokenizer in random_tokenizers(arguments.count, arguments.seed, arguments.vocab):
        texts = texts_for(tokenizer, random.Random(f"{arguments.seed} {number} texts"), arguments.texts)
        tests, refused = goldens_of(tokenizer, [text for text in texts if len(text) <= 60]), None
        try:
            open_json(library, tokenizer.to_str()).close()
        except Refused as error:
            refused = re.sub(r"^.*tokenizer.json: ", "", str(error))
        if refused not in seen and (refused or len(tests) >= 13):
            write_goldens(arguments.out / f"{number:03}", tokenizer, [] if refused else tests, refused)
        seen.update([refused] if refused else [])


# --- every character ---------------------------------------------------------------------------------------------------
# Of components that tokenizer_unicode.py does not compare.


def byte_carrier(normalizer, pretokenizer):
    """Ids that spell the bytes of every pre-token, and where it ends."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: i for i, text in enumerate(alphabet + [character + "</w>" for character in alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], end_of_word_suffix="</w>"))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    steps = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pretokenizer] * (pretokenizer is not None) + steps)
    return tokenizer


CHARACTER_COMPONENTS = {
    "Nmt": (normalizers.Nmt(), None), "BertNormalizer clean_text": (normalizers.BertNormalizer(True, False, False, False), None),
    "BertNormalizer handle_chinese_chars": (normalizers.BertNormalizer(False, True, False, False), None),
    "BertNormalizer strip_accents": (normalizers.BertNormalizer(False, False, True, False), None),
    "Precompiled": (normalizers.Precompiled(sample_charsmap()), None),
    "Digits": (None, pre_tokenizers.Digits(False)),
    "Whitespace": (None, pre_tokenizers.Whitespace()), "WhitespaceSplit": (None, pre_tokenizers.WhitespaceSplit()),
    "ByteLevel use_regex": (None, pre_tokenizers.ByteLevel(add_prefix_space=False)),
}


def ranges(points):
    result = []
    for point in points:
        if result and point == result[-1][1] + 1:
            result[-1][1] = point
        else:
            result.append([point, point])
    return " ".join(f"U+{low:04X}" + (f"–{high:04X}" if high > low else "") for low, high in result)


def compare_characters(library, arguments):
    blocks = [range(low, low + 64) for low in range(0, 0x110000, 64) if not 0xD800 <= low < 0xE000]
    for name, (normalizer, pretokenizer) in CHARACTER_COMPONENTS.items():
        tokenizer = byte_carrier(normalizer, pretokenizer)
        try:
            ours = open_json(library, tokenizer.to_str())
        except Refused as error:
            print(f"{name}: {error}")
            continue

        def differs(points):
            text = "".join(f"a{chr(point)}b {chr(point)}\n" for point in points)
            return ours.encode(text, False, True) != tokenizer.encode(text, add_special_tokens=False).ids

        points = [point for block in blocks if differs(block) for point in block if differs([point])]
        print(f"{name}: {len(points)} characters differ: {ranges(points)}" if points else f"{name}: equal")
        ours.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="libqrun.so to compare with")
    parser.add_argument("--out", type=pathlib.Path, help="folder that gets one folder per tokenizer")
    parser.add_argument("--count", type=int, default=500, help="tokenizers")
    parser.add_argument("--texts", type=int, default=400, help="texts for each")
    parser.add_argument("--vocab", type=int, default=300, help="tokens of a vocabulary")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="this number alone")
    parser.add_argument("--show", type=int, default=3, help="differences shown of one tokenizer")
    parser.add_argument("--contested", action="store_true", help="also regular expressions that the engines read differently")
    parser.add_argument("--characters", action="store_true", help="compare every character instead")
    arguments = parser.parse_args()
    if arguments.contested:
        SPLIT_EXPRESSIONS.extend(CONTESTED_EXPRESSIONS)
    library = Library(arguments.library)
    if arguments.out:
        write_out(library, arguments)
    elif arguments.characters:
        compare_characters(library, arguments)
    else:
        raise SystemExit(compare(library, arguments) > 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Makes small tokenizers of every kind, and what the `tokenizers` library does with them.

    make_tokenizer_goldens.py --out tests/fixtures/tokenizers

Each folder gets a tokenizer.json and a goldens.json: texts, ids and decoded text under several options. Needs the
`tokenizers` package (0.23.3 made the committed files). Training is on the sentences below, so nothing is downloaded.
"""
import argparse
import itertools
import json
import pathlib
import random
import struct

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

LLAMA3_REGEX = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN_REGEX = LLAMA3_REGEX.replace("{1,3}", "")
GPT4O_REGEX = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
               r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
               r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
MARK = "\u2581"

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind: it's used to foxes by now.",
    "A tokenizer turns text into numbers and numbers into text; what it does in between should surprise nobody.",
    "In the beginning there were bytes, and the bytes were merged, two by two, until the words were whole again.",
    "We've measured it twice: 12345 tokens in 0.75 seconds, which they'll say is fast and I'd say is fair.",
    "def merge(pairs, ranks):\n    while pairs:\n        best = min(pairs, key=ranks.get)\n        yield best\n",
    "Prices rose from $1,999.99 to €2.450,00 between 2019 and 2024 (see table 3, page 42).",
    "Der schnelle braune Fuchs springt \u00fcber den faulen Hund; die Stra\u00dfe ist na\u00df und gr\u00f6\u00dfer als gedacht.",
    "Le c\u0153ur a ses raisons que la raison ne conna\u00eet point; \u00e0 No\u00ebl, o\u00f9 \u00eates-vous all\u00e9s ?",
    "El ni\u00f1o comi\u00f3 una manzana ma\u00f1ana por la ma\u00f1ana, \u00bfverdad?",
    "\u041c\u0430\u043b\u0435\u043d\u044c\u043a\u0438\u0439 \u0442\u043e\u043a\u0435\u043d\u0438\u0437\u0430\u0442\u043e\u0440 \u0447\u0438\u0442\u0430\u0435\u0442 \u0442\u0435\u043a\u0441\u0442 \u0438 \u0441\u0447\u0438\u0442\u0430\u0435\u0442 \u0441\u043b\u043e\u0432\u0430.",
    "\u5c0f\u72d7\u8df3\u8fc7\u4e86\u61d2\u72d7\uff0c\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002",
    "\u3053\u3093\u306b\u3061\u306f\u3001\u4e16\u754c\u3002\u30c6\u30ad\u30b9\u30c8\u3092\u8aad\u307f\u307e\u3059\u3002",
    "The end of the line is the beginning of the next line.\n\nAnd so on, and so on, and so on.\n",
] * 3

TEXTS = [
    "", " ", "  ", "   ", "\t", "\n", "\n\n", "\n\n\n", "\t\n", " \n ", "Hello world", " Hello world", "Hello  world ",
    "  leading and trailing  ", "Hello, y'all! How are you \U0001f601 ?", "I'LL say it'S what WE'VE got, don'T I'd",
    "the quick brown fox", "doesn't they'll we've I'm", "12345 0.75 1,999.99 \u00bd \u2167 \u0663\u0664", "3 33 333 3333 33333",
    "x = y\n    return x\n\n\n\tz", "a\r\nb\r\n\r\nc", "\u00fcber na\u00efve caf\u00e9 \u0153uvre", "u\u0308ber cafe\u0301 \u212b \ufb01 \u2460",
    "a\u0323\u0307 a\u0307\u0323 \u1e69 s\u0323\u0307", "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab", "\u5c0f\u72d7\u8df3\u8fc7\u4e86\u61d2\u72d7", "\u3053\u3093\u306b\u3061\u306f\u3001\u4e16\u754c",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea\U0001f1eb \u2764\ufe0f", "\u202b\u0645\u0631\u062d\u0628\u0627\u202c \u05e9\u05dc\u05d5\u05dd", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "tab\there", "nbsp\u00a0here\u2003em\u3000ideographic\u180emvs\u200bzwsp", "\u2581mark \u2581\u2581marks\u2581", "<0x0A> <0x41>",
    "punct!!! ... --- (a) [b] {c} <d> \u201cquoted\u201d \u2014 \u00bfque? ___ `` $ + ~", "\u0130stanbul STRASSE \u00c9T\u00c9",
    "\uff21\uff22\uff23 \uff11\uff12\uff13 \uff5e", "zero\u0000byte", "\x01\x02\x7f", "\ufffd \ue000 \U0010fffd",
    "<s>text</s>", "<s> text </s>  more", "a<|end|>b", "a <|end|> b", "x  <mask>  y", "tagged tagging tag tag.", "TAG Tag",
    "before<|pad|><|pad|>after", "<|user|>\nHi<|end|>\n<|assistant|>\n", "<unk> <|endoftext|> <|start",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "\u00e9" * 12, "\U0001f601" * 3, "ab" * 20, " " * 33 + "x", "x" + "\n" * 17,
]


def random_texts(n, seed):
    """Strings over an alphabet that meets every class of character the components tell apart."""
    rng = random.Random(seed)
    alphabet = (list("  \n\t\r'\u2019.,!?-_$<>|[]()") + list("aAbBeEsStTxX019") + ["'s", "'ll", "the", " the", "<s>", "<|end|>"] +
                list("\u00e9\u00df\u0130\u017f\u0301\u0323\u0345\u00bd\u2167\u0663\u4e2d\u6587\uac00\u1112\u1161\u3000\u00a0\u2028\u0085\u180e\u200d\u2581\uff21\ufb01\ufb03\U0001f600\U0001f1e9\ufe0f\u24b6"))
    return ["".join(rng.choice(alphabet) for _ in range(rng.randint(1, 24))) for _ in range(n)]


# --- a precompiled character map ---------------------------------------------------------------------------------------


def build_charsmap(mapping):
    """SentencePiece's format: a Darts double array from UTF-8 keys to offsets into NUL-terminated replacements."""
    replacements, keys = b"", {}
    for key, value in sorted(mapping.items()):
        keys[key.encode()] = len(replacements)
        replacements += value.encode() + b"\0"
    trie = {}
    for key, offset in keys.items():
        node = trie
        for byte in key:
            node = node.setdefault(byte, {})
        node[0] = offset  # the leaf hangs under label 0
    units, used = {0: 0}, {0}

    def place(position, node):
        labels = sorted(node)
        base = 1
        while any((base ^ label) in used for label in labels) or (base ^ position) >= 1 << 21:
            base += 1
        units[position] |= (base ^ position) << 10 | (1 << 8 if 0 in node else 0)
        for label in labels:
            used.add(base ^ label)
            units[base ^ label] = (1 << 31 | node[0]) if label == 0 else label
        for label in labels:
            if label != 0:
                place(base ^ label, node[label])

    place(0, trie)
    array = [units.get(i, 0) for i in range(max(units) + 256)]
    return struct.pack("<I", 4 * len(array)) + struct.pack(f"<{len(array)}I", *array) + replacements


def sample_charsmap():
    mapping = {chr(0xFF01 + i): chr(0x21 + i) for i in range(94)}
    mapping |= {"\u3000": " ", "\u00a0": " ", "\n": " ", "\t": " ", "\u200b": "", "\ufb01": "fi", "\ufb03": "ffi", "\u00bd": "1/2",
                "\u212b": "\u00c5", "e\u0301": "\u00e9", "u\u0308": "\u00fc", "\u2167": "VIII", "\u2460": "1"}
    return build_charsmap(mapping)


# --- the tokenizers ----------------------------------------------------------------------------------------------------


def special(text, **flags):
    return AddedToken(text, special=True, normalized=False, **flags)


def template(bos, tokenizer, eos=None):
    names = [name for name in (bos, eos) if name]
    single = f"{bos} $A {eos}" if eos else f"{bos} $A"
    return processors.TemplateProcessing(single=single, pair=f"{single} {bos} $B",
                                         special_tokens=[(name, tokenizer.token_to_id(name)) for name in names])


def train_bpe(tokenizer, size, specials=(), byte_alphabet=False):
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(specials), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if byte_alphabet else [])
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_level_bpe(regex, size, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(regex), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return train_bpe(tokenizer, size, byte_alphabet=True)


def make_llama3():
    tokenizer = byte_level_bpe(LLAMA3_REGEX, 640, ignore_merges=True)
    tokenizer.add_special_tokens([special(t) for t in ("<s>", "</s>", "<|end|>", "<|user|>", "<|assistant|>", "<|pad|>")])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template("<s>", tokenizer)])
    return tokenizer


def make_qwen2():
    tokenizer = byte_level_bpe(QWEN_REGEX, 520)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens([special("<|endoftext|>"), special("<|end|>")])
    tokenizer.add_tokens([AddedToken("tag", single_word=True, normalized=False)])
    return tokenizer


def make_gpt4o():
    return byte_level_bpe(GPT4O_REGEX, 420)


def make_gpt2_prefix_space():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    train_bpe(tokenizer, 480, ["<|endoftext|>", "<s>", "</s>"], byte_alphabet=True)
    tokenizer.add_special_tokens([AddedToken("<mask>", special=True, lstrip=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", tokenizer.token_to_id("</s>")),
                                                            ("<s>", tokenizer.token_to_id("<s>")))
    return tokenizer


def sentencepiece_bpe(size, normalizer, pre_tokenizer, splitter, **model):
    """BPE over marked words, with the 256 byte tokens right after the special ones, as SentencePiece numbers them."""
    specials = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True, **model))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    train_bpe(tokenizer, size, specials)
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["id"] < 3]
    for token in data["added_tokens"]:
        token["normalized"] = False
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


def make_llama2():
    normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    tokenizer = sentencepiece_bpe(600, normalizer, None, pre_tokenizers.Metaspace(prepend_scheme="never"))
    tokenizer.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([special("<|end|>", rstrip=True), special("<|pad|>"), special("<mask>", lstrip=True)])
    tokenizer.add_tokens([AddedToken("tagged", normalized=True), AddedToken("tag", single_word=True, normalized=False)])
    tokenizer.post_processor = template("<s>", tokenizer, "</s>")
    return tokenizer


def make_gemma():
    tokenizer = sentencepiece_bpe(560, normalizers.Replace(" ", MARK),
                                  pre_tokenizers.Split(" ", "merged_with_previous"), None)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_tokens([AddedToken("\n" * n, normalized=False) for n in range(2, 6)])
    tokenizer.add_tokens([AddedToken(MARK * n, normalized=False) for n in range(2, 6)])
    tokenizer.add_special_tokens([special("<|user|>"), special("<|end|>")])
    tokenizer.post_processor = template("<s>", tokenizer)
    return tokenizer


def make_mistral_metaspace():
    first = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer = sentencepiece_bpe(560, None, first, pre_tokenizers.Metaspace(prepend_scheme="always"))
    tokenizer.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([special("<|end|>")])
    tokenizer.post_processor = template("<s>", tokenizer)
    return tokenizer


def train_unigram(tokenizer, size, specials):
    trainer = trainers.UnigramTrainer(vocab_size=size, special_tokens=specials, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def make_unigram_charsmap():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Precompiled(sample_charsmap()),
                                                 normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    train_unigram(tokenizer, 400, ["<s>", "</s>", "<unk>"])
    tokenizer.add_special_tokens([AddedToken("<mask>", special=True, lstrip=True)])
    tokenizer.post_processor = template("<s>", tokenizer, "</s>")
    return tokenizer


def make_unigram_bytes():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    train_unigram(tokenizer, 640, ["<unk>", "<s>"] + [f"<0x{i:02X}>" for i in range(256)])
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = data["added_tokens"][:2]
    data["model"]["byte_fallback"] = True
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    return tokenizer


def make_word_level():
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(),
                                                 normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(),
                                                       pre_tokenizers.Digits(individual_digits=True)])
    tokenizer.train_from_iterator(CORPUS, trainers.WordLevelTrainer(vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"],
                                                                    show_progress=False))
    tokenizer.post_processor = processors.BertProcessing(("</s>", 2), ("<s>", 1))
    return tokenizer


def make_affixes():
    """Subword prefix and word suffix, unknown characters not fused, delimiters of every behaviour."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=["<unk>"], continuing_subword_prefix="##",
                                  end_of_word_suffix="</w>", limit_alphabet=60, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("contiguous"),
        pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Split("e", "merged_with_next"),
        pre_tokenizers.Split(Regex("[aeiou]+"), "merged_with_previous", invert=True)])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("##", ""), decoders.Strip("e", 2, 1),
                                           decoders.Replace(Regex("</w>$"), " "), decoders.Fuse()])
    return tokenizer


def make_bert():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]", "<s>", "</s>"],
                                                                    show_progress=False))
    tokenizer.post_processor = processors.BertProcessing(("</s>", 2), ("<s>", 1))
    return tokenizer


def make_swallowed():
    """Added tokens whose spaces are added tokens too."""
    tokenizer = Tokenizer(models.BPE({chr(i): i for i in range(1, 127)}, []))
    tokenizer.add_tokens([AddedToken("R", rstrip=True, normalized=False), AddedToken("L", lstrip=True, normalized=False),
                          AddedToken("B", lstrip=True, rstrip=True, normalized=False), AddedToken("\t", rstrip=True, normalized=False)])
    tokenizer.add_special_tokens([AddedToken(" ", lstrip=True, rstrip=True, normalized=False), AddedToken("\n", normalized=False)])
    return tokenizer


SWALLOWED_TEXTS = ["".join(letters) for n in (1, 2, 3) for letters in itertools.product("RLB \n", repeat=n)] + [
    "R \t x", "R\t\tx", "a  L", "a\n L", "B  B", "  \n  R  \n  L  \n  a", "R \n\n a", "   ", "a   b", "R   L"]


def make_metaspace_first():
    """Where text comes from decides, not where it is: some of it was in front, some is made of the first character."""
    marks = {"<unk>": 0, MARK: 1, "a": 2, "1": 3, "2": 4, "\u2044": 5, MARK + "a": 6, MARK + "1": 7, MARK + "2": 8, MARK + "\u2044": 9,
             MARK + MARK: 10, "x": 11, MARK + "x": 12}
    tokenizer = Tokenizer(models.WordLevel(marks, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(left=True, right=False), normalizers.NFKC(),
                                                 normalizers.Replace("aa", "x"), normalizers.Replace(Regex("-"), "")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex("[12\u2044]"), "isolated"), pre_tokenizers.Metaspace(prepend_scheme="first", split=False)])
    tokenizer.add_special_tokens([AddedToken("<s>", normalized=False), AddedToken("<n>", normalized=True)])
    return tokenizer


METASPACE_TEXTS = ["", "a", " a", "  a", "\u3000a", "1a", " 1a", "\u00bd", "\u00bda", "a\u00bd", " \u00bd", "aa", "aaa", "a1", "a a", "-a", "-1", "1-a",
                   "<s>a", " <s>a", "a<s>a", "<n>a", "-<n>a", "a<n>1", "\u2460a", "\u24691", "\u2581a", "a\u2581", "-aa", "x1"]


def make_splits(behavior, invert):
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "-": 2, "--": 3, "a-": 4, "-a": 5, "b": 6, "-b": 7, "b-": 8,
                                            "a--": 9, "--b": 10, "ab": 11, "-a-": 12}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("-", behavior, invert=invert)
    return tokenizer


SPLIT_TEXTS = ["", "-", "--", "---", "a", "ab", "a-b", "-a-b-", "a--b", "--a--b--", "-ab-", "a---a", "b-a--b"]


def kinds():
    yield "llama3", make_llama3(), TEXTS + random_texts(40, 1)
    yield "qwen2", make_qwen2(), TEXTS + random_texts(40, 2)
    yield "gpt4o", make_gpt4o(), TEXTS + random_texts(20, 3)
    yield "gpt2_prefix_space", make_gpt2_prefix_space(), TEXTS + random_texts(20, 4)
    yield "llama2", make_llama2(), TEXTS + random_texts(40, 5)
    yield "gemma", make_gemma(), TEXTS + random_texts(30, 6)
    yield "mistral_metaspace", make_mistral_metaspace(), TEXTS + random_texts(20, 7)
    yield "unigram_charsmap", make_unigram_charsmap(), TEXTS + random_texts(40, 8)
    yield "unigram_bytes", make_unigram_bytes(), TEXTS + random_texts(20, 9)
    yield "word_level", make_word_level(), TEXTS + random_texts(20, 10)
    yield "affixes", make_affixes(), TEXTS + random_texts(20, 11)
    yield "bert", make_bert(), TEXTS + random_texts(20, 12)
    yield "swallowed", make_swallowed(), SWALLOWED_TEXTS
    yield "metaspace_first", make_metaspace_first(), METASPACE_TEXTS
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            yield f"split_{behavior}{'_inverted' if invert else ''}", make_splits(behavior, invert), SPLIT_TEXTS


def golden(tokenizer, text, add_special, parse_special):
    tokenizer.encode_special_tokens = not parse_special
    ids = tokenizer.encode(text, add_special_tokens=add_special).ids
    try:
        decoded = tokenizer.decode(ids, skip_special_tokens=not parse_special)
    except BaseException:  # the library panics where Strip is longer than its token
        decoded = None
    return {"text": text, "add_special": add_special, "parse_special": parse_special,
            "skip_special": not parse_special, "ids": ids, "decoded": decoded}


def write_goldens(folder, tokenizer, tests, refused=None):
    """tokenizer.json and goldens.json; `refused` is the message of a tokenizer that qrun does not open."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.encode_special_tokens = False
    data = json.loads(tokenizer.to_str())
    (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")
    head = f'"refused":{json.dumps(refused)},' if refused else ""
    body = ",\n".join(json.dumps(test, ensure_ascii=True, separators=(",", ":")) for test in tests)
    (folder / "goldens.json").write_text("{" + head + '"tests":[\n' + body + "\n]}\n")


def write(folder, tokenizer, texts):
    tests = [golden(tokenizer, text, True, True) for text in texts]
    tests += [golden(tokenizer, text, False, False) for text in texts if "<" in text]
    write_goldens(folder, tokenizer, tests)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder that gets one folder per tokenizer")
    out = parser.parse_args().out
    for name, tokenizer, texts in kinds():
        write(out / name, tokenizer, texts)


if __name__ == "__main__":
    main()

"""The package generates what the program generates, to the bit, in every way that it has."""

import asyncio
import json
import struct
import time
import types
import unittest

import common
import qrun
from common import MODEL, PIRATE, program

REQUESTS = [
    {"prompt": "The sea is", "max_tokens": 12},
    {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0.8, "seed": 7, "top_k": 40, "top_p": 0.9},
    {"prompt": "The fox", "max_tokens": 8, "temperature": 1.0, "n": 3},
    {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 20},
    {"token_ids": [0, 757, 1085], "max_tokens": 6, "repetition_penalty": 1.3},
    {"prompt": "", "max_tokens": 5, "stop": ["e"]},
    {"prompt": "The sea is", "max_tokens": 30, "min_tokens": 9, "stop_token_ids": [1085, 757, 13]},
    {"prompt": "täglich Brot 面包 🥖", "max_tokens": 9, "min_new_tokens": 4, "presence_penalty": 0.5},
]
TIMES = ("queue_seconds", "first_token_seconds", "total_seconds")


def as_float(text):
    """A number of JSON as the float that was written."""
    return struct.unpack("f", struct.pack("f", text))[0]


def facts(answer):
    """What the program writes of an answer, without its times and what was shared."""
    return [(s.text, list(s.token_ids), s.finish_reason, s.prompt_tokens, s.completion_tokens,
             None if s.logprobs is None else [(p.token_id, p.logprob, list(p.top)) for p in s.logprobs])
            for s in answer.samples]


def facts_of_program(requests, folder, *options):
    path = folder / "requests.jsonl"
    path.write_text("".join(json.dumps(request) + "\n" for request in requests))
    found = [[] for _ in requests]
    for line in sorted(common.lines_of("generate", "--model", MODEL, "--prompts", str(path), "--output", "-", *options),
                       key=lambda line: (line["index"], line["sample"])):
        logprobs = line.get("logprobs")
        found[line["index"]].append(
            (line["text"], line["token_ids"], line["finish_reason"], line["prompt_tokens"], line["completion_tokens"],
             None if logprobs is None else
             [(p["token_id"], as_float(p["logprob"]), [(t["token_id"], as_float(t["logprob"])) for t in p["top"]])
              for p in logprobs]))
    return found


class Generation(common.Case):
    @classmethod
    def setUpClass(cls):
        cls.model = qrun.Model(MODEL)
        cls.addClassCleanup(cls.model.close)

    def test_bits(self):
        """Alone, in a batch, and for asyncio: text, tokens, log-probabilities."""
        expected = facts_of_program(REQUESTS, self.folder, "--logprobs", "3")
        batch = self.model.generate(REQUESTS, logprobs=3)
        self.assertEqual([facts(answer) for answer in batch], expected)
        self.assertEqual([facts(self.model.generate(request, logprobs=3)) for request in REQUESTS], expected)
        self.assertEqual(len(batch[2].samples), 3)

        async def all_at_once():
            return await asyncio.gather(*(self.model.agenerate(request, logprobs=3) for request in REQUESTS))

        self.assertEqual([facts(answer) for answer in asyncio.run(all_at_once())], expected)

    def test_answers_in_a_form(self):
        schema = {"type": "object", "properties": {"mood": {"enum": ["good", "bad"]}, "n": {"type": "integer"}},
                  "required": ["mood", "n"]}
        form = {"type": "json_schema", "json_schema": {"schema": schema}}
        for seed in range(5):
            options = dict(temperature=1, seed=seed, max_tokens=80)
            answer = self.model.generate("The fox", json_schema=schema, **options)
            self.assertEqual(list(json.loads(answer.text)), ["mood", "n"])
            self.assertEqual(self.model.generate("The fox", json_schema=json.dumps(schema), **options).text, answer.text)
            request = {"prompt": "The fox", "response_format": form}
            self.assertEqual(self.model.generate(request, **options).text, answer.text)
        with self.assertRaisesRegex(qrun.UnsupportedError, '`json_schema`: #/properties/a: "not" is not supported'):
            self.model.generate("a", json_schema={"properties": {"a": {"not": {}}}})
        self.assertEqual(self.model.generate("a", json_schema=types.MappingProxyType({"const": 5})).text, "5")
        with self.assertRaisesRegex(qrun.ArgumentError, "zero byte"):
            self.model.generate("a", json_schema='{"const": 5}\0{"const": 6}')
        with self.assertRaisesRegex(qrun.ArgumentError, "zero byte"):
            self.model.generate("a", stop=["b\0c"])

    def test_keywords(self):
        """Keywords are what options are to the program; its defaults are ours."""
        self.assertEqual(self.model.generate("The fox").text, program("generate", "--model", MODEL, "--prompt", "The fox"))
        expected = program("generate", "--model", MODEL, "--prompt", "The fox", "--temperature", "0.7", "--seed", "3",
                           "--max-tokens", "15", "--min-p", "0.05", "--stop", "xyz", "--stop", ".")
        self.assertEqual(str(self.model.generate("The fox", temperature=0.7, seed=3, max_tokens=15, min_p=0.05,
                                                 stop=["xyz", "."])), expected)
        self.assertNotEqual(self.model.generate("The fox", stop="o", max_tokens=9).text[-1:], "o")
        whole = self.model.generate("The fox", temperature=0, max_tokens=12, min_tokens=12)
        self.assertEqual(whole.completion_tokens, 12)
        stop = whole.token_ids[5]
        expected = program("generate", "--model", MODEL, "--prompt", "The fox", "--temperature", "0", "--max-tokens", "12",
                           "--stop-token-ids", f"1,{stop}")
        stopped = self.model.generate("The fox", temperature=0, max_tokens=12, stop_token_ids=[1, stop])
        self.assertEqual((str(stopped), stopped.finish_reason), (expected, "stop"))
        self.assertTrue(0 < stopped.completion_tokens < 6)
        longer = self.model.generate("The fox", temperature=0, max_tokens=12, stop_token_ids=[stop], min_tokens=9)
        self.assertGreaterEqual(longer.completion_tokens, 9)
        expected = program("generate", "--model", MODEL, "--prompt", "The fox", "--temperature", "0", "--max-tokens", "12",
                           "--stop-token-ids", str(stop), "--min-tokens", "9")
        self.assertEqual(str(longer), expected)
        with self.assertRaisesRegex(qrun.ArgumentError, "`min_tokens=9` is more than `max_tokens=3`"):
            self.model.generate("The fox", max_tokens=3, min_tokens=9)
        with self.assertRaisesRegex(qrun.ArgumentError, "`stop_token_ids`: token 999999 is outside the vocabulary"):
            self.model.generate("The fox", stop_token_ids=[999999])
        rules = {"suppress_tokens": [1085], "no_repeat_ngram_size": 2}
        expected = facts_of_program([{"prompt": "Once", "max_tokens": 30, **rules}], self.folder)[0]
        self.assertEqual(facts(self.model.generate("Once", max_tokens=30, generation=rules)), expected)

    def test_prompt_logprobs(self):
        """Of the prompt, as of the answer that says the same."""
        answer = self.model.generate("Once upon", max_tokens=4, temperature=0, logprobs=2)
        ids = [*self.model.tokenize("Once upon"), *answer.token_ids]
        read = self.model.generate({"token_ids": ids}, prompt_logprobs=2, prompt_only=True)
        self.assertIsNone(read.prompt_logprobs[0])
        self.assertEqual(read.prompt_logprobs[-4:], answer.logprobs)
        self.assertEqual([p.token_id for p in read.prompt_logprobs[1:]], ids[1:])
        self.assertIsNone(answer.prompt_logprobs)

    def test_embed(self):
        first, second, again = self.model.embed(["The sea is wide.", "A dog barks.", "The sea is wide."])
        self.assertEqual(len(first), self.model.info.hidden_size)
        self.assertAlmostEqual(sum(x * x for x in first), 1, places=5)
        self.assertEqual(first, again)
        self.assertNotEqual(first, second)
        self.assertNotEqual(self.model.embed(["The sea is wide."], pooling="mean")[0], first)
        with self.assertRaisesRegex(qrun.ArgumentError, "`pooling` is one of"):
            self.model.embed(["x"], pooling="best")
        with self.assertRaisesRegex(TypeError, "takes a list"):
            self.model.embed("x")

    def test_stream(self):
        expected = self.model.generate("Once upon a time", max_tokens=30)
        stream = self.model.stream("Once upon a time", max_tokens=30)
        pieces = list(stream)
        self.assertGreater(len(pieces), 5)
        self.assertEqual("".join(pieces), expected.text)
        self.assertEqual(facts(stream.answer), facts(expected))

        async def read():
            async with self.model.astream("Once upon a time", max_tokens=30) as stream:
                return [piece async for piece in stream], stream.answer

        pieces, answer = asyncio.run(read())
        self.assertEqual(("".join(pieces), facts(answer)), (expected.text, facts(expected)))

    def test_chat(self):
        said = ["Hello!", "What is your name?"]
        expected = program("chat", "--model", MODEL, text="\n".join(said) + "\n").splitlines()
        chat = self.model.chat()
        self.assertEqual([str(chat.say(said[0])), "".join(chat.stream(said[1]))], expected)
        self.assertEqual([m["role"] for m in chat.messages], ["user", "assistant"] * 2)
        expected = program("chat", "--model", MODEL, "--system", "You are brief.", text="Hello!\n").rstrip("\n")
        chat = self.model.chat("You are brief.")
        self.assertEqual(asyncio.run(chat.asay("Hello!")).text, expected)
        before = chat.messages
        with self.assertRaisesRegex(qrun.Error, "context"):
            chat.say("word " * 5000)
        self.assertEqual(chat.messages, before)
        self.assertEqual(self.model.chat(messages=before).say("And then?").text, chat.say("And then?").text)
        chat = self.model.chat(max_tokens=400, ignore_eos=True)
        abandoned = chat.stream("Hello!")
        next(abandoned)
        abandoned.close()
        list(abandoned)
        self.assertEqual((abandoned.answer.finish_reason, chat.messages), ("cancelled", []))
        chat = self.model.chat(max_tokens=4)
        both = chat.stream("a"), chat.stream("b")
        for stream in both:
            list(stream)
        self.assertEqual([m["content"] for m in chat.messages[::2]], ["a", "b"])

    def test_refused(self):
        with self.assertRaisesRegex(qrun.ArgumentError, "top_k must be from -1"):
            self.model.generate(["good", "good"], top_k=-2)
        for keyword, value in (("max_tokens", 2**70), ("top_k", 2**32 + 1), ("seed", -1), ("seed", 2**64)):
            with self.assertRaisesRegex(qrun.ArgumentError, f"`{keyword}` is {value}, outside"):
                self.model.generate("x", **{keyword: value})
        with self.assertRaisesRegex(TypeError, "`top_k`: "):
            self.model.generate("x", top_k=1.5)
        self.assertEqual(self.model.generate("x", max_tokens=1, seed=2**64 - 1).completion_tokens, 1)
        for keyword in ("tokens", "prompt", "token_ids", "user", "on_event", "has_seed", "n_stop", "struct_size"):
            with self.assertRaisesRegex(TypeError, f"unexpected keyword argument '{keyword}'"):
                self.model.generate("x", **{keyword: 1})
        for switch in ("false", "no", 2, 0.5, [True]):
            with self.assertRaisesRegex(TypeError, "`ignore_eos`: expected True or False"):
                self.model.generate("x", ignore_eos=switch)
        self.assertEqual(self.model.generate("x", max_tokens=1, ignore_eos=1).completion_tokens, 1)
        with self.assertRaisesRegex(TypeError, "a request is a str or a mapping, not int"):
            self.model.generate([1])
        with self.assertRaisesRegex(qrun.ArgumentError, "`adapter` 'none' is not loaded"):
            self.model.generate("x", adapter="none")
        bad = {"prompt": "x", "nope": 1}
        with self.assertRaisesRegex(qrun.InputError, '"nope" is not a member'):
            self.model.generate([{"prompt": "x", "max_tokens": 400, "ignore_eos": True}, bad])
        good, failed = self.model.generate(["x", bad], max_tokens=2, return_errors=True)
        self.assertEqual(good.completion_tokens, 2)
        self.assertIsInstance(failed, qrun.InputError)
        all_tokens = {"suppress_tokens": list(range(self.model.info.vocab_size))}
        with self.assertRaises(qrun.Error):
            self.model.generate("x", generation=all_tokens)
        with self.assertRaisesRegex(qrun.NotFoundError, "no such folder"):
            qrun.Model(str(self.folder / "nowhere"))
        with self.assertRaisesRegex(qrun.ArgumentError, "`quant` is one of auto, f32"):
            qrun.Model(MODEL, quant="nf5")
        with self.assertRaisesRegex(TypeError, "'nothreads'"):
            qrun.Model(MODEL, nothreads=1)

    def test_full(self):
        """More requests than may wait: the batch waits with the rest of them."""
        with qrun.Model(MODEL, max_waiting_bytes=2000, max_sequences=1) as model:
            answers = model.generate(["The fox"] * 40, max_tokens=3)
            self.assertEqual({answer.text for answer in answers}, {answers[0].text})

            async def all_at_once():
                return await model.agenerate(["The fox"] * 40, max_tokens=3)

            self.assertEqual([facts(a) for a in asyncio.run(all_at_once())], [facts(a) for a in answers])

    def test_abandoned(self):
        """Streams that are closed, left or forgotten, and tasks that are cancelled, end their requests."""
        long = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True}

        def idle():
            """0 when nothing runs, waits, or holds a page; that takes a step."""
            end, held = time.monotonic() + common.SECONDS, 1
            while held > 0 and time.monotonic() < end:
                stats = self.model.stats
                held = stats.n_running + stats.n_waiting + stats.pages_used
            return held

        with self.model.stream(long) as stream:
            next(stream)
        self.assertEqual(idle(), 0)
        self.assertEqual([list(stream)[-1:], stream.answer.finish_reason][1], "cancelled")
        stream = self.model.stream(long)
        next(stream)
        del stream
        self.assertEqual(idle(), 0)

        async def leave():
            task = asyncio.ensure_future(self.model.agenerate([long, long]))
            await asyncio.sleep(0.01)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        asyncio.run(leave())
        self.assertEqual(idle(), 0)

    def test_tokenizer(self):
        text = "Once upon täglich 面包 🥖<|im_end|>"
        expected = [int(word) for word in program("tokenize", "--model", MODEL, "--ids", text).split()]
        self.assertEqual(self.model.tokenize(text), expected)
        self.assertEqual(self.model.detokenize(self.model.tokenize(text)), text)
        with qrun.Tokenizer(MODEL) as tokenizer:
            self.assertEqual(tokenizer.encode(text), expected)
            self.assertEqual(tokenizer.vocab_size, self.model.tokenizer.vocab_size)
            self.assertTrue(tokenizer.has_chat_template)
            rendered = tokenizer.render([{"role": "user", "content": "Hello!"}])
            self.assertIn("Hello!", rendered)
            self.assertEqual(tokenizer.encode(rendered, add_special=False, parse_special=True),
                             [int(w) for w in program("tokenize", "--model", MODEL, "--chat", "--ids", "Hello!").split()])
            self.assertEqual(tokenizer.token(expected[1]), "Once")
            self.assertIsNone(tokenizer.token(10**6))
            self.assertIsNone(tokenizer.token(2**32 + expected[1]))
            with self.assertRaisesRegex(qrun.ArgumentError, "`ids` is 4294967297"):  # and not the text of token 1
                tokenizer.decode([2**32 + 1])
            self.assertIsInstance(tokenizer.special_id("bos"), int)
            self.assertIsNone(tokenizer.special_id("nothing"))
            self.assertEqual(tokenizer.encode(b"a\0b\xff", add_special=False)[:1], tokenizer.encode("a")[1:2])
        with self.assertRaisesRegex(qrun.ArgumentError, "the tokenizer is closed"):
            tokenizer.encode("x")

    def test_adapters(self):
        out = str(self.folder / "pirate")
        qrun.finetune(MODEL, train_data=PIRATE, out=out, max_steps=2, seq_len=64, learning_rate=5e-2)
        base = self.model.generate("Hello", max_tokens=8).text
        for wrong in ("pirate", ["pirate"]):
            with self.assertRaisesRegex(TypeError, "a mapping of names to folders"):
                qrun.Model(MODEL, adapters=wrong)
        with self.assertRaisesRegex(qrun.ArgumentError, "`name` is empty"):
            self.model.load_adapter(out, "")
        name = self.model.load_adapter(out)
        self.assertEqual((name, tuple(self.model.adapters)), ("pirate", ("pirate",)))
        expected = program("generate", "--model", MODEL, "--adapter", out, "--prompt", "Hello", "--max-tokens", "8")
        both = self.model.generate([{"prompt": "Hello"}, {"prompt": "Hello", "adapter": "pirate"}], max_tokens=8)
        self.assertEqual([answer.text for answer in both], [base, expected])
        self.assertNotEqual(base, expected)
        self.assertEqual(self.model.generate("Hello", max_tokens=8, adapter="pirate").text, expected)
        self.model.unload_adapter("pirate")
        self.assertEqual(tuple(self.model.adapters), ())
        self.assertEqual(self.model.generate("Hello", max_tokens=8).text, base)

    def test_plans(self):
        plan = qrun.plan(MODEL, context_tokens=256, max_sequences=4)
        theirs = json.loads(program("plan", "--model", MODEL, "--context", "256", "--max-sequences", "4", "--json"))
        self.assertEqual({entry.category: entry.bytes for entry in plan.entries},
                         {entry["category"]: entry["bytes"] for entry in theirs["entries"]})
        self.assertEqual((plan.fits, plan.max_sequences, plan.advice), (True, 4, None))
        refused = qrun.plan(MODEL, memory_bytes=1000)
        self.assertFalse(refused.fits)
        self.assertIn("`memory_bytes`", refused.advice)
        training = qrun.plan_finetune(MODEL, seq_len=128, checkpointing="full")
        self.assertEqual((training.fits, training.checkpointing), (True, "full"))
        self.assertGreater(training.total_bytes, 0)
        fitted = qrun.fit(MODEL, "context", memory_bytes=20 << 20)
        self.assertTrue(0 < fitted.largest <= fitted.limit == 512)
        names = qrun.known_models()
        self.assertIn("llama-3.1-8b", names)
        planned = qrun.plan_finetune("llama-3.1-8b", random_weights=True, seq_len=64)
        self.assertEqual(planned.n_parameters, 8030261248)
        largest = qrun.fit_finetune(MODEL, "rank", seq_len=64, memory_bytes=10 << 20).largest
        self.assertTrue(qrun.plan_finetune(MODEL, seq_len=64, rank=largest, memory_bytes=10 << 20).fits)
        self.assertFalse(qrun.plan_finetune(MODEL, seq_len=64, rank=largest + 1, memory_bytes=10 << 20).fits)
        with self.assertRaises(qrun.ArgumentError):
            qrun.fit(MODEL, "rank")
        with self.assertRaises(qrun.NotFoundError):
            qrun.plan(str(self.folder))


if __name__ == "__main__":
    common.main()

"""Target masks of conversations: what chat templates render, which characters the assistant wrote, which ids count."""
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import _compile_jinja_template

from bnb_goldens import fnv1a64

TOKENIZER = "../../examples/model"      # relative to tests/fixtures
GENERATION = ("{% generation %}", "{% endgeneration %}")
_BODY = ("{% if message['content'] is string %}{{ message['content'] }}{% elif message['content'] is not none %}"
         "{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}"
         "{% for call in message['tool_calls'] or [] %}{{ '<call>' + call['function']['name'] + '</call>' }}{% endfor %}"
         "{{ '<|end|>' }}")

# Own templates in the manner of well-known ones. The generation tags mark what the assistant writes; they are taken out
# of the fixtures and serve only to check the masks against transformers' own.
TEMPLATES = {
    "chatml":
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
        "{% if message['role'] == 'assistant' %}"
        "{% generation %}{{ message['content'] + '<|im_end|>\\n' }}{% endgeneration %}"
        "{% else %}{{ message['content'] + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "header":    # as Llama 3
        "{{ bos_token }}{% for message in messages %}"
        "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}"
        "{% if message['role'] == 'assistant' %}"
        "{% generation %}{{ message['content'] | trim + '<|eot_id|>' }}{% endgeneration %}"
        "{% else %}{{ message['content'] | trim + '<|eot_id|>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
    "inst":      # as Llama 2: the answer follows directly, and there is no generation prompt
        "{{ bos_token }}{% for message in messages %}"
        "{% if message['role'] == 'assistant' %}"
        "{% generation %}{{ ' ' + message['content'] | trim + eos_token }}{% endgeneration %}"
        "{% elif message['role'] == 'system' %}{{ '<<SYS>>\\n' + message['content'] + '\\n<</SYS>>\\n\\n' }}"
        "{% else %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% endif %}{% endfor %}",
    "forgetful":  # thoughts stay in the last turn only, so a rendered prefix may not begin the whole
        "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
        "{% if message['role'] == 'assistant' %}"
        "{% generation %}"
        "{{ (message['content'] if loop.last else message['content'].split('</think>')[-1]) + '<|end|>' }}"
        "{% endgeneration %}"
        "{% else %}{{ message['content'] + '<|end|>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
    "parts":    # contents that are lists of parts, or null where there are calls
        "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}{% if message['role'] == 'assistant' %}"
        "{% generation %}" + _BODY + "{% endgeneration %}{% else %}" + _BODY + "{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
    "example": None,    # the template of the example model, from its tokenizer_config.json
}


def _turns(*pairs):
    return [{"role": {"s": "system", "u": "user", "a": "assistant"}[role], "content": text} for role, text in pairs]


def _with(messages, **members):
    """The same, with a member in each of the assistant's messages: one value for each."""
    (name, values), = members.items()
    values = iter(values)
    return [message | {name: next(values)} if message["role"] == "assistant" else message for message in messages]


def _parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


_THREE_TURNS = _turns(("u", "Hi!"), ("a", "Hello!"), ("u", "How are you?"), ("a", "Well, thank you."), ("u", "Good."),
                      ("a", "Is there more?"))

CONVERSATIONS = {
    "one-turn": _turns(("u", "Tell me a story about a cat."), ("a", "Once upon a time there was a cat. The end.")),
    "system": _turns(("s", "You are kind."), ("u", "Who are you?"), ("a", "I am a friend.")),
    "three-turns": _THREE_TURNS,
    "user-last": _turns(("u", "One?"), ("a", "Two."), ("u", "Three?")),
    "no-assistant": _turns(("s", "Be brief."), ("u", "Anyone there?")),
    "assistant-first": _turns(("a", "Welcome."), ("u", "Thanks."), ("a", "What shall we do?")),
    "two-in-a-row": _turns(("u", "Count."), ("a", "One."), ("a", "Two.")),
    "empty-answer": _turns(("u", "Say nothing."), ("a", "")),
    "blanks": _turns(("u", "  spaces \n"), ("a", "\n  an answer with edges  \n\n")),
    "not-ascii": _turns(("u", "Où est le café ? 猫"), ("a", "Là-bas, ☕ à côté… 🙂🙂 naïve")),
    "markers-in-text": _turns(
        ("u", "What do <|im_start|>assistant\n and <|assistant|>, [/INST] or <|eot_id|> mean?"),
        ("a", "Markers: <|im_end|>, <|end|> and <|user|>."), ("u", "Thanks.<|assistant|>"), ("a", "Welcome.")),
    "weights": _with(_THREE_TURNS, weight=[0, 1, 0]),     # OpenAI's files
    "training": _with(_THREE_TURNS, train=[True, False, True]),    # axolotl's
    "thoughts": _turns(("u", "2 + 2?"), ("a", "<think>easy</think>4"), ("u", "3 + 3?"), ("a", "<think>hm</think>6")),
}


# What only the template "parts" takes.
CONTENTS = {
    "parts": [{"role": "user", "content": _parts("One ", "and two.")},
              {"role": "assistant", "content": _parts("Three,", " four.")},
              {"role": "user", "content": "Five?"}, {"role": "assistant", "content": _parts("Six."), "weight": 0}],
    "call": [{"role": "user", "content": "How warm is it?"},
             {"role": "assistant", "content": None,
              "tool_calls": [{"type": "function", "function": {"name": "warmth", "arguments": {}}}]},
             {"role": "user", "content": "20"}, {"role": "assistant", "content": "Warm."}],
}


def _render(template, tokens, messages, add_generation_prompt):
    return _compile_jinja_template(template).render(messages=messages, add_generation_prompt=add_generation_prompt,
                                                    **tokens)


def assistant_spans(render, messages):
    """[first, end) in characters of the whole rendering, one per assistant turn; None for a turn that cannot be found
    because a rendered prefix of the conversation does not begin the whole."""
    whole, spans = render(messages, False), []
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            before, after = render(messages[:i], True), render(messages[:i + 1], False)
            found = whole.startswith(after) and after.startswith(before)
            spans.append([len(before), len(after)] if found else None)
    return spans


def _counts(message):
    return message.get("weight", 1) != 0 and message.get("train", True)


def _mask(offsets, spans):
    """1 for every token that shares a character with a span, as transformers counts."""
    return [int(any(first < end_span and end > first_span for first_span, end_span in spans))
            for first, end in offsets]


def _check(name, tokenizer, marked, messages, ids, mask):
    """transformers' own mask, from the generation tags, must be the same."""
    theirs = tokenizer.apply_chat_template(messages, chat_template=marked, tokenize=True, return_dict=True,
                                           return_assistant_tokens_mask=True)
    if theirs["input_ids"] != ids or theirs["assistant_masks"] != mask:
        raise SystemExit(f"{name}: transformers masks otherwise")


def _entry(tokenizer, template_name, conversation):
    messages, marked = (CONVERSATIONS | CONTENTS)[conversation], TEMPLATES[template_name]
    template = unmarked(marked) if marked else tokenizer.chat_template
    tokens = {"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token}

    def render(part, add_generation_prompt):
        return _render(template, tokens, part, add_generation_prompt)
    text, spans = render(messages, False), assistant_spans(render, messages)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    name = f"{template_name}/{conversation}"
    if marked and all(spans):
        _check(name, tokenizer, marked, messages, encoded["input_ids"], _mask(encoded["offset_mapping"], spans))
    answers = [message for message in messages if message["role"] == "assistant"]
    spans = [span for span, message in zip(spans, answers, strict=True) if _counts(message)]
    mask = _mask(encoded["offset_mapping"], [span for span in spans if span])
    return {
        "name": name,
        "template": None if marked is None else f"training/templates/{template_name}.jinja",
        "messages": messages,
        "text": text,
        "spans": spans,
        "byte_spans": [span and [len(text[:at].encode()) for at in span] for span in spans],
        "ids": encoded["input_ids"],
        "mask": mask,
    }


def unmarked(template):
    for tag in GENERATION:
        template = template.replace(tag, "")
    return template


def make_masks(root):
    """Writes the templates; returns the index entries and the tokenizer they belong to."""
    folder = root / "training" / "templates"
    folder.mkdir(parents=True, exist_ok=True)
    for name, template in TEMPLATES.items():
        if template:
            (folder / f"{name}.jinja").write_text(unmarked(template))
    path = (root / TOKENIZER).resolve()
    tokenizer = AutoTokenizer.from_pretrained(path)
    identity = {"name": "tokenizer", "folder": TOKENIZER,
                "tokenizer_json_fnv1a64": fnv1a64((path / "tokenizer.json").read_bytes()),
                "chat_template_fnv1a64": fnv1a64(tokenizer.chat_template.encode())}
    return [identity], [_entry(tokenizer, template, conversation)
                        for template in TEMPLATES
                        for conversation in [*CONVERSATIONS, *(CONTENTS if template == "parts" else ())]]

"""Text to tokens and back, and the chat template."""

from __future__ import annotations

import json
import os
from ctypes import byref, c_char_p, c_int32, c_int64, c_size_t, c_void_p, pointer, string_at
from typing import Any, List, Mapping, Optional, Sequence, Union

from ._native import Handle, call, encoded, in_range, library, make, switch

Message = Mapping[str, Any]


def made_text(data: c_char_p, n_bytes: int) -> str:
    """What a call allocated for the caller."""
    try:
        return string_at(data, n_bytes).decode("utf-8", "replace")
    finally:
        library().qrun_free(data)


class Tokenizer:
    """A tokenizer and its chat template. Safe from any thread.

    Opens a folder's tokenizer.json; no other file of a model is needed. `Model.tokenizer` is the one of a model.
    """

    def __init__(self, path: Union[str, os.PathLike[str]]) -> None:
        context = make("context", "qrun_context_create", "qrun_context_destroy", (None,))
        with context as opened:
            self._handle = make("tokenizer", "qrun_tokenizer_open", "qrun_tokenizer_destroy", (opened, encoded(path)),
                                context)
        context.close()  # the tokenizer keeps it

    @classmethod
    def _of(cls, handle: Handle) -> Tokenizer:
        tokenizer = cls.__new__(cls)
        tokenizer._handle = handle
        return tokenizer

    def encode(self, text: Union[str, bytes], *, add_special: bool = True, parse_special: bool = True) -> List[int]:
        """The token ids of a text. add_special: with what the model expects around a text, such as BOS.
        parse_special: the text of a special token becomes that token. Any bytes can be encoded."""
        data = text if isinstance(text, bytes) else text.encode()
        ids, n_ids = pointer(c_int32()), c_int64()
        with self._handle as tokenizer:
            call("qrun_tokenize", tokenizer, data, len(data), switch(add_special), switch(parse_special),
                 byref(ids), byref(n_ids))
        try:
            return ids[:n_ids.value]
        finally:
            library().qrun_free(ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of token ids. Bytes that are not UTF-8 become U+FFFD."""
        data, n_bytes = c_char_p(), c_size_t()
        given = (c_int32 * len(ids))(*(in_range("ids", c_int32, number) for number in ids))
        with self._handle as tokenizer:
            call("qrun_detokenize", tokenizer, given, len(ids), switch(skip_special), byref(data), byref(n_bytes))
        return made_text(data, n_bytes.value)

    def token(self, token_id: int) -> Optional[str]:
        """A token as its vocabulary spells it; None for an id outside the vocabulary."""
        n_bytes = c_size_t()
        if not 0 <= token_id < 1 << 31:  # ctypes would keep the low bits
            return None
        with self._handle as tokenizer:
            spelled = library().qrun_token_text(tokenizer, token_id, byref(n_bytes))
            return string_at(spelled, n_bytes.value).decode("utf-8", "replace") if spelled else None

    def special_id(self, role: str) -> Optional[int]:
        """The id of "bos", "eos", "pad" or "unk"; None where there is none."""
        with self._handle as tokenizer:
            number = int(library().qrun_tokenizer_special_id(tokenizer, role.encode()))
        return number if number >= 0 else None

    @property
    def vocab_size(self) -> int:
        with self._handle as tokenizer:
            return int(library().qrun_tokenizer_vocab_size(tokenizer))

    @property
    def has_chat_template(self) -> bool:
        with self._handle as tokenizer:
            return bool(library().qrun_tokenizer_has_chat_template(tokenizer))

    def render(self, messages: Sequence[Message], *, tools: Optional[Sequence[Any]] = None,
               template: Optional[Mapping[str, Any]] = None, add_generation_prompt: bool = True) -> str:
        """A conversation as the chat template writes it. template: further variables for the template, such as
        {"enable_thinking": False}."""
        data, n_bytes = c_char_p(), c_size_t()
        with self._handle as tokenizer:
            call("qrun_chat_render", tokenizer, json.dumps(list(messages)).encode(),
                 None if tools is None else json.dumps(list(tools)).encode(),
                 None if template is None else json.dumps(dict(template)).encode(), switch(add_generation_prompt),
                 byref(data), byref(n_bytes))
        return made_text(data, n_bytes.value)

    def close(self) -> None:
        self._handle.close()

    def __enter__(self) -> Tokenizer:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def lent_tokenizer(model: Handle) -> Optional[Tokenizer]:
    with model as opened:
        lent = library().qrun_model_tokenizer(opened)
        return Tokenizer._of(Handle("tokenizer", c_void_p(lent), lambda _: None, model)) if lent else None


__all__ = ["Message", "Tokenizer"]

"""What a request came to."""

from __future__ import annotations

from ctypes import string_at
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import _api
from ._native import text

TOKEN, DONE, ERROR, PROMPT, EMBEDDING = (
    _api.EVENT_TYPE[name] for name in ("token", "done", "error", "prompt", "embedding"))


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability of a token under the model's own distribution, before temperature and penalties."""

    token_id: int
    logprob: float
    top: Tuple[Tuple[int, float], ...]
    """The most likely tokens at its position and their log-probabilities, best first."""


@dataclass(frozen=True)
class Sample:
    """One answer to a request."""

    text: str
    token_ids: Tuple[int, ...]
    finish_reason: str
    """"stop" (an end-of-text token or a stop text), "length" or "cancelled"."""
    logprobs: Optional[Tuple[TokenLogprob, ...]]
    """Of every token, where the request asked for them."""
    prompt_tokens: int
    cached_tokens: int
    """How many of prompt_tokens were shared with an earlier prompt."""
    completion_tokens: int
    queue_seconds: float
    first_token_seconds: float
    total_seconds: float


@dataclass(frozen=True)
class Answer:
    """What a request came to: `samples`, n of them. What is asked of the answer itself is that of the first."""

    samples: Tuple[Sample, ...]
    prompt_logprobs: Optional[Tuple[Optional[TokenLogprob], ...]] = None
    """Of every token of the prompt, where the request asked for `prompt_logprobs`; the first has none."""
    embedding: Optional[Tuple[float, ...]] = None
    """Of length 1, where the request asked for `pooling`; see Model.embed."""

    @property
    def text(self) -> str:
        return self.samples[0].text

    @property
    def token_ids(self) -> Tuple[int, ...]:
        return self.samples[0].token_ids

    @property
    def finish_reason(self) -> str:
        return self.samples[0].finish_reason

    @property
    def logprobs(self) -> Optional[Tuple[TokenLogprob, ...]]:
        return self.samples[0].logprobs

    @property
    def prompt_tokens(self) -> int:
        return self.samples[0].prompt_tokens

    @property
    def completion_tokens(self) -> int:
        return sum(sample.completion_tokens for sample in self.samples)

    def __str__(self) -> str:
        return self.text


def _logprob_of(event: Any) -> Optional[TokenLogprob]:
    if not event.has_logprob:
        return None
    top = tuple((event.top[i].token_id, event.top[i].logprob) for i in range(event.n_top))
    return TokenLogprob(event.token_id, event.logprob, top)


@dataclass
class _Growing:
    pieces: List[str] = field(default_factory=list)
    token_ids: List[int] = field(default_factory=list)
    logprobs: List[TokenLogprob] = field(default_factory=list)
    done: Optional[Sample] = None


class Growing:
    """An answer while it arrives. Events come from one thread; `answer` is set before the last one is told."""

    def __init__(self, on_text: Callable[[str], Any] = lambda _: None) -> None:
        self._on_text = on_text
        self._samples: Dict[int, _Growing] = {}
        self._prompt: List[Optional[TokenLogprob]] = []
        self._embedding: Optional[Tuple[float, ...]] = None
        self.answer: Optional[Answer] = None
        self.message: Optional[str] = None  # why the request failed

    def take(self, event: Any) -> None:
        if event.type == ERROR:
            self.message = text(event.message) or "the request failed"
            return
        if event.type == PROMPT:
            self._prompt.append(_logprob_of(event))
        elif event.type == EMBEDDING:
            self._embedding = tuple(event.embedding[:event.n_embedding])
        if event.type not in (TOKEN, DONE):
            return
        sample = self._samples.setdefault(event.sample, _Growing())
        if event.text_bytes > 0:
            piece = string_at(event.text, event.text_bytes).decode("utf-8", "replace")
            sample.pieces.append(piece)
            if event.sample == 0:
                self._on_text(piece)
        if event.type == TOKEN:
            sample.token_ids.append(event.token_id)
            logprob = _logprob_of(event)
            if logprob is not None:
                sample.logprobs.append(logprob)
        elif event.type == DONE:
            sample.done = Sample(
                text="".join(sample.pieces), token_ids=tuple(sample.token_ids),
                finish_reason=text(event.finish_reason), logprobs=tuple(sample.logprobs) or None,
                prompt_tokens=event.prompt_tokens, cached_tokens=event.cached_tokens,
                completion_tokens=event.completion_tokens, queue_seconds=event.queue_seconds,
                first_token_seconds=event.first_token_seconds, total_seconds=event.total_seconds)
        if event.is_last:
            samples = tuple(s.done for _, s in sorted(self._samples.items()) if s.done is not None)
            self.answer = Answer(samples, tuple(self._prompt) or None, self._embedding)

"""Conversations."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence

from .answers import Answer
from .generation import AsyncStream, Start, Stream, agenerate_all, generate_all
from .tokenizer import Message


class Chat:
    """A conversation: `messages` is what was said. An answer joins it when it is complete, together with what it
    answers; a failed or abandoned one leaves it as it was."""

    def __init__(self, start: Start, system: Optional[str], messages: Sequence[Message],
                 tools: Optional[Sequence[Any]], template: Optional[Mapping[str, Any]]) -> None:
        self._start = start
        self._extra = {name: value for name, value in (("tools", tools), ("template_args", template))
                       if value is not None}
        self.messages: List[Message] = [{"role": "system", "content": system}] if system is not None else []
        self.messages += messages

    def _request(self, text: str) -> Dict[str, Any]:
        return {"messages": [*self.messages, {"role": "user", "content": text}], **self._extra}

    def _remember(self, request: Dict[str, Any], answer: Answer) -> None:
        if answer.finish_reason != "cancelled":
            self.messages = [*self.messages, request["messages"][-1], {"role": "assistant", "content": answer.text}]

    def say(self, text: str) -> Answer:
        """Says something and waits for the answer."""
        request = self._request(text)
        answer = generate_all(self._start, [request], return_errors=False)[0]
        self._remember(request, answer)
        return answer

    def stream(self, text: str) -> Stream:
        """Says something; the answer is iterated over as it arrives."""
        request = self._request(text)
        return Stream(self._start, request, lambda answer: self._remember(request, answer))

    async def asay(self, text: str) -> Answer:
        """As say, for asyncio."""
        request = self._request(text)
        answer = (await agenerate_all(self._start, [request], return_errors=False))[0]
        self._remember(request, answer)
        return answer

    def astream(self, text: str) -> AsyncStream:
        """As stream, for asyncio."""
        request = self._request(text)
        return AsyncStream(self._start, request, lambda answer: self._remember(request, answer))

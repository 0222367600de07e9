"""Answers: whole, as they arrive, and for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, Future, wait
from typing import Any, AsyncIterator, Callable, Iterator, List, Optional, Sequence, Union

from ._session import Flight
from .answers import Answer, Growing
from .errors import ArgumentError, Error, FullError
from .requests import Request

Start = Callable[[Request, Growing], Flight]
Started = Union[Flight, Error]  # an error where it was refused, and errors are to be returned


# ---- Whole answers ---------------------------------------------------------------------------------------------------


def _futures(started: Sequence[Started]) -> List[Future[Answer]]:
    return [flight.future for flight in started if isinstance(flight, Flight)]


def _running(started: Sequence[Started]) -> List[Future[Answer]]:
    return [future for future in _futures(started) if not future.done()]


def _try_to_start(start: Start, request: Request, started: List[Started], return_errors: bool) -> bool:
    """False: as many requests wait as may, some of these among them."""
    try:
        started.append(start(request, Growing()))
    except FullError:
        if not _running(started):
            raise
        return False
    except Error as failure:
        if not return_errors:
            raise
        started.append(failure)
    return True


def _outcomes(started: Sequence[Started], return_errors: bool) -> List[Any]:
    """Of requests that are over, or one of which has failed."""
    failures = [future.exception() for future in _futures(started) if future.done()]
    for failure in failures:
        if failure is not None and not (return_errors and isinstance(failure, Error)):
            raise failure
    return [flight if isinstance(flight, Error) else flight.future.exception() or flight.future.result()
            for flight in started]


def _has_failed(started: Sequence[Started]) -> bool:
    return any(future.done() and future.exception() is not None for future in _futures(started))


def _cancel(started: Sequence[Started]) -> None:
    for flight in started:
        if isinstance(flight, Flight):
            flight.cancel()


def generate_all(start: Start, requests: Sequence[Request], return_errors: bool) -> List[Answer]:
    started: List[Started] = []
    try:
        for request in requests:
            while not _try_to_start(start, request, started, return_errors):
                wait(_running(started), return_when=FIRST_COMPLETED)
        wait(_futures(started), return_when=ALL_COMPLETED if return_errors else FIRST_EXCEPTION)
        return _outcomes(started, return_errors)
    finally:
        _cancel(started)


def _tell(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *arguments: Any) -> None:
    """In the loop's thread. A loop that is closed is told nothing: nobody waits there any more."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)


async def _until(enough: Callable[[], bool], futures: Sequence[Future[Answer]]) -> None:
    """Waits for futures to end until it is enough. They know the loop, and not the other way round: a task that is
    cancelled leaves them as they are."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    for future in futures:
        future.add_done_callback(lambda _: _tell(loop, changed.set))
    while not enough():
        await changed.wait()
        changed.clear()


async def agenerate_all(start: Start, requests: Sequence[Request], return_errors: bool) -> List[Answer]:
    started: List[Started] = []
    try:
        for request in requests:
            while not _try_to_start(start, request, started, return_errors):
                n_running = len(_running(started))
                await _until(lambda: len(_running(started)) < n_running, _running(started))
        await _until(lambda: not _running(started) or not return_errors and _has_failed(started), _futures(started))
        return _outcomes(started, return_errors)
    finally:
        _cancel(started)


# ---- Text as it arrives ----------------------------------------------------------------------------------------------


class _Streaming:
    """What both kinds of streams have in common. `answer` is there after the end."""

    _over = False

    def __init__(self, start: Start, request: Request, put: Callable[[Optional[str]], Any],
                 on_answer: Callable[[Answer], Any] = lambda _: None) -> None:
        self._on_answer, self._process = on_answer, os.getpid()
        self._flight = start(request, Growing(put))  # knows `put` and not the stream: one that nobody holds is closed
        self._flight.future.add_done_callback(lambda _: put(None))

    @property
    def answer(self) -> Optional[Answer]:
        return self._flight.future.result() if self._over and self._flight.future.exception() is None else None

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ArgumentError("this stream was begun before os.fork(); read it in the process that began it")

    def _end(self) -> None:
        """At the end: raises why there is no answer."""
        if not self._over:
            self._over = True
            self._on_answer(self._flight.future.result())

    def close(self) -> None:
        """Ends the request where it still runs; what has arrived can still be read."""
        self._flight.cancel()

    def __del__(self) -> None:
        if hasattr(self, "_flight"):
            self.close()


class Stream(_Streaming, Iterator[str]):
    """The text of an answer, in pieces of whole characters. Closing it, or leaving its `with`, ends the request."""

    def __init__(self, start: Start, request: Request, on_answer: Callable[[Answer], Any] = lambda _: None) -> None:
        self._pieces: queue.SimpleQueue[Optional[str]] = queue.SimpleQueue()
        super().__init__(start, request, self._pieces.put, on_answer)

    def __next__(self) -> str:
        self._check_process()
        piece = None if self._over else self._pieces.get()
        if piece is None:
            self._end()
            raise StopIteration
        return piece

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class AsyncStream(_Streaming, AsyncIterator[str]):
    """The same for asyncio. It is made and read in one running loop."""

    def __init__(self, start: Start, request: Request, on_answer: Callable[[Answer], Any] = lambda _: None) -> None:
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[Optional[str]] = asyncio.Queue()
        self._pieces = pieces
        super().__init__(start, request, lambda piece: _tell(loop, pieces.put_nowait, piece), on_answer)

    async def __anext__(self) -> str:
        self._check_process()
        piece = None if self._over else await self._pieces.get()
        if piece is None:
            self._end()
            raise StopAsyncIteration
        return piece

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self.close()


__all__ = ["AsyncStream", "Stream"]

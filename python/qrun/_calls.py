"""Long calls that Ctrl-C ends."""

from __future__ import annotations

import queue
import threading
from contextlib import ExitStack
from typing import Any, Callable, Generic, Optional, Sequence, Tuple, TypeVar

from ._native import Handle

Result = TypeVar("Result")
Progress = Callable[[int, int], Any]

WAIT_SECONDS = 0.2


class LongCall(Generic[Result]):
    """Runs a call of the library in a thread of its own, so that Ctrl-C reaches the caller at once.

    What the library tells meanwhile is told to the caller in the caller's thread. An exception there, Ctrl-C included,
    ends the call by `cancel`, and is raised when the call has ended. Nothing is ever raised through the library.
    """

    def __init__(self, cancel: Callable[[], Any] = lambda: None) -> None:
        self._cancel = cancel
        self._mail: queue.SimpleQueue[Optional[Tuple[Callable[[], Any], threading.Event]]] = queue.SimpleQueue()
        self._failure: Optional[BaseException] = None
        self._outcome: Optional[BaseException] = None
        self._result: Optional[Result] = None

    @property
    def goes_on(self) -> bool:
        return self._failure is None

    def tell(self, told: Callable[[], Any]) -> bool:
        """From the thread of the call: runs `told` in the caller's. False: the call is to end."""
        if self._failure is None:
            done = threading.Event()
            self._mail.put((told, done))
            while not done.wait(WAIT_SECONDS) and self._failure is None:
                pass
        return self.goes_on

    def _run(self, work: Callable[[], Result], handles: Sequence[Handle]) -> None:
        try:
            with ExitStack() as lent:
                for handle in handles:
                    lent.enter_context(handle)
                self._result = work()
        except BaseException as outcome:  # raised again in the caller's thread
            self._outcome = outcome
        self._mail.put(None)

    def _serve(self) -> None:
        try:
            mail = self._mail.get(timeout=WAIT_SECONDS)
        except queue.Empty:
            return
        if mail is not None:
            told, done = mail
            if self._failure is None:
                told()
            done.set()

    def _end(self, failure: BaseException) -> None:
        if self._failure is None:
            self._failure = failure
            self._cancel()

    def run(self, work: Callable[[], Result], *handles: Handle) -> Result:
        """What `work` returns. The handles are lent to its thread, so they are not released before it ends, wherever
        a Ctrl-C comes."""
        thread = threading.Thread(target=self._run, args=(work, handles), name="qrun-call")
        try:
            thread.start()
            while thread.is_alive():
                try:
                    self._serve()
                except BaseException as failure:  # the caller's
                    self._end(failure)
            thread.join()
        except BaseException as failure:  # between these lines; the thread ends by itself
            self._end(failure)
            raise
        if self._failure is not None:
            raise self._failure
        if self._outcome is not None:
            raise self._outcome
        return self._result  # type: ignore[return-value]

"""A session and the thread that steps it."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import weakref
from concurrent.futures import Future
from ctypes import byref, c_bool, c_uint64, c_void_p
from typing import Any, Dict, List, Optional

from . import _api
from ._native import Handle, call, library, make
from .answers import Answer, Growing
from .errors import CancelledError, Error, RequestError

_flights: Dict[int, Flight] = {}  # by the `user` of their events
_numbers = itertools.count(1)


class Flight:
    """A request of a session until its last event. `future` gets its answer or its failure; cancelling the future
    cancels the request."""

    def __init__(self, session: Session, growing: Growing) -> None:
        self.session, self.growing = session, growing
        self.future: Future[Answer] = Future()
        self.key = next(_numbers)
        self.request = 0
        self._failure: Optional[BaseException] = None

    def take(self, event: Any) -> None:
        """Nothing may be raised here: the caller is the library."""
        self.request = event.request
        try:
            self.growing.take(event)
        except BaseException as failure:  # of whoever takes the text
            self._failure = self._failure or failure
            self.cancel()
        if event.is_last:
            if self.growing.message is not None:
                self._failure = self._failure or RequestError(self.growing.message)
            self.end(self._failure)

    def cancel(self) -> None:
        """Ends the request soon; its last event still comes. Does nothing to one that is over."""
        if self.key in _flights:
            self.session.cancel(self.request)

    def end(self, failure: Optional[BaseException]) -> None:
        if _flights.pop(self.key, None) is None:
            return
        if self.future.set_running_or_notify_cancel():
            if failure is None and self.growing.answer is not None:
                self.future.set_result(self.growing.answer)
            else:
                self.future.set_exception(failure or RequestError("the request ended without an answer"))


def _take_event(user: Optional[int], event: Any) -> None:
    flight = _flights.get(user or 0)
    if flight is not None:
        flight.take(event.contents)


_on_event = _api.EventFn(_take_event)


class Session:
    """Steps while there is work, in a thread of its own. All calls are safe from any thread."""

    def __init__(self, model: Handle, params: Any) -> None:
        with model as opened:
            self._handle = make("session", "qrun_session_create", "qrun_session_destroy", (opened, byref(params)),
                                model)
        self._lock = threading.Lock()
        self._worker: Optional[threading.Thread] = None
        self._submitted = False  # since the worker looked
        self._closing = False
        self._process = os.getpid()
        self.failure: Optional[BaseException] = None  # of a step: the session is of no use any more
        _open_sessions.add(self)

    def submit(self, flight: Flight, params: Any, json: Optional[bytes] = None) -> None:
        """Submits params, or the JSON of a request whose defaults they are."""
        number = c_uint64()
        params.on_event, params.user = _on_event, c_void_p(flight.key)
        with self._handle as session:
            _flights[flight.key] = flight
            try:
                if json is None:
                    call("qrun_session_submit", session, byref(params), byref(number))
                else:
                    call("qrun_session_submit_json", session, json, len(json), b"the request", byref(params), False,
                         None, byref(number))
            except BaseException:
                _flights.pop(flight.key, None)
                raise
        flight.request = number.value
        with self._lock:
            self._submitted = True
            if self._worker is None and not self._closing:
                self._worker = threading.Thread(target=self._work, name="qrun-session", daemon=True)
                self._worker.start()
        flight.future.add_done_callback(lambda future: flight.cancel() if future.cancelled() else None)
        if self._closing:
            flight.end(self.failure or CancelledError("the model was closed"))

    def cancel(self, request: int) -> None:
        try:
            with self._handle as session:
                library().qrun_session_cancel(session, request, None)
        except Error:
            pass  # closed meanwhile, which cancels all requests; or another process

    def stats(self) -> Any:
        stats = _api.SessionStats()
        with self._handle as session:
            call("qrun_session_get_stats", session, byref(stats))
        return stats

    def _end_all(self, failure: BaseException) -> None:
        for flight in list(_flights.values()):
            if flight.session is self:
                flight.end(failure)

    def _step_all(self) -> None:
        has_work = c_bool(True)
        with self._handle as session:
            while has_work and not self._closing:
                call("qrun_session_step", session, byref(has_work))

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._submitted or self._closing:
                    self._worker = None
                    return
                self._submitted = False
            try:
                self._step_all()
            except BaseException as failure:
                with self._lock:
                    self._closing, self._worker, self.failure = True, None, failure
                self._end_all(failure)
                self._handle.close()
                return

    def close(self) -> None:
        """Cancels what runs, and waits for the step that is computed now."""
        if os.getpid() != self._process:
            return
        with self._lock:
            self._closing = True
            worker = self._worker
        if worker is not None and worker is not threading.current_thread():
            worker.join()
        self._end_all(CancelledError("the model was closed"))
        self._handle.close()

    @property
    def is_idle(self) -> bool:
        return not any(flight.session is self for flight in list(_flights.values()))


_open_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """No thread of ours runs while the interpreter goes away."""
    sessions: List[Session] = list(_open_sessions)
    for session in sessions:
        session.close()

"""The library, its calls, and the objects that it makes."""

from __future__ import annotations

import operator
import os
import pathlib
import threading
from ctypes import (CDLL, Structure, byref, c_bool, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p,
                    sizeof)
from typing import Any, Callable, Collection, Dict, Optional, Tuple

from . import _api
from .errors import ArgumentError, NotFoundError, error_of

FILE = "libqrun.so.0"
_LISTS = {"target_modules", "modules_to_save", "layers_to_transform"}  # with commas, which PEFT takes as lists
_INTEGERS = {c_int, c_int32, c_int64, c_size_t, c_uint64}
_loaded: Optional[CDLL] = None
_loading = threading.Lock()


def _find() -> str:
    """QRUN_LIBRARY, else the library that came with the package, else that of the system."""
    beside = pathlib.Path(__file__).parent / "lib" / FILE
    return os.environ.get("QRUN_LIBRARY") or (str(beside) if beside.exists() else FILE)


def library() -> CDLL:
    global _loaded
    with _loading:
        if _loaded is None:
            try:
                loaded = CDLL(_find())
                for name, result, arguments in _api.FUNCTIONS:
                    function = getattr(loaded, name)
                    function.restype, function.argtypes = result, arguments
            except (OSError, AttributeError) as error:
                raise NotFoundError(f"{error}; QRUN_LIBRARY names the library, such as "
                                    f"build/release/lib/{FILE} after ./demo.sh") from None
            _loaded = loaded
    return _loaded


def check(status: int, error: _api.Error) -> None:
    if status != 0:
        message = error.message.decode("utf-8", "replace")
        raise error_of(status, message or library().qrun_status_message(status).decode())


def call(name: str, *arguments: Any) -> None:
    """Calls what returns a qrun_status and takes a qrun_error last. Raises what it reports."""
    error = _api.Error()
    check(getattr(library(), name)(*arguments, byref(error)), error)


class Handle:
    """An object of the library. It is released when it is closed and nothing uses it any more: neither a call nor an
    object that was made of it. So objects may be closed in any order, and from any thread.

    A process that was forked off has a copy that cannot work, because threads are not copied. There it is refused, and
    never released.

    Parents are lent where a child is made. One that is closed meanwhile stays until the child is released.
    """

    def __init__(self, what: str, pointer: c_void_p, release: Callable[[c_void_p], Any], *parents: Handle) -> None:
        self._what, self._pointer, self._release, self._parents = what, pointer, release, parents
        self._lock = threading.RLock()  # a collector may close a child while its parent is in use
        self._users, self._closed, self._process = 1, False, os.getpid()
        for parent in parents:
            with parent._lock:
                parent._users += 1

    @property
    def closed(self) -> bool:
        return self._closed

    def __enter__(self) -> c_void_p:
        """Lends the pointer until __exit__."""
        if os.getpid() != self._process:
            raise ArgumentError(f"this {self._what} was opened before os.fork(); open it in the process that uses it")
        with self._lock:
            if self._closed:
                raise ArgumentError(f"the {self._what} is closed")
            self._users += 1
        return self._pointer

    def __exit__(self, *_exception: object) -> None:
        if os.getpid() != self._process:
            return
        with self._lock:
            self._users -= 1
            unused = self._users == 0
        if unused:
            self._release(self._pointer)
            for parent in self._parents:
                parent.__exit__()

    def close(self) -> None:
        if os.getpid() != self._process:
            self._closed = True  # without the lock, which a thread of the parent may have held
            return
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            self.__exit__()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()


def make(what: str, create: str, destroy: str, arguments: Tuple[Any, ...], *parents: Handle) -> Handle:
    """What create(*arguments, &object, &error) makes, for destroy(object)."""
    pointer = c_void_p()
    call(create, *arguments, byref(pointer))
    return Handle(what, pointer, getattr(library(), destroy), *parents)


# ---- Keywords into structs, and structs into Python ------------------------------------------------------------------


def encoded(value: Any) -> bytes:
    """A path, a name or a text; a path may have bytes that are not UTF-8. The library would read up to a zero byte."""
    data = os.fsencode(value)
    if 0 in data:
        raise ArgumentError(f"{value!r:.80} has a zero byte (U+0000)")
    return data


def _array(kind: Any, values: Any) -> Any:
    items = [encoded(value) if kind._type_ is c_char_p else value for value in values]
    return (kind._type_ * len(items))(*items)


def in_range(name: str, kind: Any, value: Any) -> Any:
    """ctypes keeps the low bits of a number that does not fit, and says nothing."""
    if kind in _INTEGERS and hasattr(value, "__index__"):
        value = operator.index(value)
        n_bits = 8 * sizeof(kind)
        low, end = (0, 1 << n_bits) if kind(-1).value > 0 else (-1 << n_bits - 1, 1 << n_bits - 1)
        if not low <= value < end:
            raise ArgumentError(f"`{name}` is {value}, outside {low} to {end - 1}")
    return value


def switch(value: Any) -> bool:
    """ctypes takes any object for a switch, and "false" as true."""
    plain = value.item() if hasattr(value, "item") else value  # of numpy
    if not isinstance(plain, int) or plain not in (0, 1):
        raise TypeError(f"expected True or False, not {value!r:.80}")
    return bool(plain)


def _set(struct: Any, name: str, kind: Any, value: Any, is_array: bool) -> None:
    words = getattr(struct, "_enums_", {}).get(name)
    if words is not None:
        if value not in words:
            raise ArgumentError(f"`{name}` is one of {', '.join(words)}, not {value!r}")
        value = words[value]
    elif kind is c_bool:
        value = switch(value)
    elif kind is c_char_p:
        if name in _LISTS and isinstance(value, (list, tuple)):
            value = ",".join(map(str, value))
        value = encoded(value) if value is not None else None
    elif is_array:
        value = _array(kind, [in_range(name, kind._type_, item) for item in value])
        setattr(struct, f"n_{name}", len(value))
    setattr(struct, name, in_range(name, kind, value))


def fill(struct: Any, options: Dict[str, Any]) -> None:
    """Sets fields, also of structs in the struct, by their names; takes what it set out of `options`.

    A choice is set by its word, an array sets its count, and callbacks are the package's.
    """
    names = {name for name, _ in struct._fields_}
    for name, kind in struct._fields_:
        if isinstance(kind, type) and issubclass(kind, Structure):
            fill(getattr(struct, name), options)
        is_ours = name in ("struct_size", "user") or name.startswith(("n_", "has_")) and name.split("_", 1)[1] in names
        if name not in options or is_ours or hasattr(kind, "_flags_"):
            continue
        try:
            _set(struct, name, kind, options.pop(name), f"n_{name}" in names)
        except TypeError as error:
            raise TypeError(f"`{name}`: {error}") from None


def refuse_unknown(options: Collection[str], call_name: str) -> None:
    if options:
        raise TypeError(f"{call_name}() got an unexpected keyword argument {min(options)!r}")


def text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

"""What the library refuses or fails at: one class for each status of qrun.h, with the library's line as its text.

The line says what, where, and what would help. It names keywords in backticks.
"""

from __future__ import annotations

from typing import ClassVar, Dict, Type

from . import _api


class Error(Exception):
    """Base of them all."""

    status: ClassVar[str] = "ERROR_INTERNAL"


class ArgumentError(Error, ValueError):
    """An argument is out of range or does not fit the others; or the object is closed."""

    status = "ERROR_ARGUMENT"


class NotFoundError(Error, FileNotFoundError):
    """A file, folder or object does not exist."""

    status = "ERROR_NOT_FOUND"


class FileError(Error, OSError):
    """Reading or writing failed."""

    status = "ERROR_IO"


class InputError(Error, ValueError):
    """A file or text is malformed."""

    status = "ERROR_INPUT"


class UnsupportedError(Error):
    """Well-formed, but not something this build can handle."""

    status = "ERROR_UNSUPPORTED"


class OutOfMemoryError(Error, MemoryError):
    """Out of memory, or over the memory budget."""

    status = "ERROR_MEMORY"


class CancelledError(Error):
    """Cancelled by the caller."""

    status = "ERROR_CANCELLED"


class DeviceError(Error):
    """The device or its driver failed."""

    status = "ERROR_DEVICE"


class BusyError(Error):
    """The object is in use."""

    status = "ERROR_BUSY"


class InternalError(Error):
    """A mistake in qrun itself; please report it."""

    status = "ERROR_INTERNAL"


class FullError(Error):
    """As many requests wait as may; submit again later."""

    status = "ERROR_FULL"


class RankError(Error):
    """Another rank of the run failed; rank 0 reports why."""

    status = "ERROR_RANK"


class RequestError(Error):
    """A request failed after it was accepted; the others continue."""

    status = "ERROR_ARGUMENT"


_CLASSES: Dict[int, Type[Error]] = {
    _api.STATUS[kind.status]: kind
    for kind in (ArgumentError, NotFoundError, FileError, InputError, UnsupportedError, OutOfMemoryError,
                 CancelledError, DeviceError, BusyError, InternalError, FullError, RankError)
}


def error_of(status: int, message: str) -> Error:
    return _CLASSES.get(status, InternalError)(message)

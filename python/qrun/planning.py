"""Memory, known before it is used."""

from __future__ import annotations

from ctypes import POINTER, byref, c_char_p, c_int32
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

from . import _api
from ._native import Handle, call, library, refuse_unknown, text
from .errors import ArgumentError, OutOfMemoryError
from .info import PlanEntry, PlanInfo, info_of
from .model import Path, make_context, model_params
from .training import train_params

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .model import ModelKeywords
    from .training import TrainKeywords


@dataclass(frozen=True)
class Plan(PlanInfo):
    """The memory of a session or of a training run, and whether there is so much."""

    entries: Tuple[PlanEntry, ...]
    # Of training: as chosen.
    checkpointing: Optional[str]
    # Of a plan that does not fit: why, and what would help.
    advice: Optional[str]


def _made(name: str, context: Handle, arguments: Tuple[Any, ...], checkpointing: Optional[c_char_p]) -> Plan:
    entries, n_entries, info = POINTER(_api.PlanEntry)(), c_int32(), _api.PlanInfo()
    advice: Optional[str] = None
    between = () if checkpointing is None else (byref(checkpointing),)
    with context as opened:
        try:
            call(name, opened, *arguments, byref(entries), byref(n_entries), *between, byref(info))
        except OutOfMemoryError as refused:
            advice = str(refused)
            if not entries:
                raise
    try:
        return Plan(**vars(info_of(PlanInfo, info)),
                    entries=tuple(info_of(PlanEntry, entries[i]) for i in range(n_entries.value)),
                    checkpointing=text(checkpointing.value) if checkpointing is not None else None, advice=advice)
    finally:
        library().qrun_free(entries)
        if checkpointing is not None:
            library().qrun_free(checkpointing)


def plan(path: Path, **options: Unpack[ModelKeywords]) -> Plan:
    """What Model(path, **options) and its session would take. No weights are read."""
    left: Dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    model, session = model_params(path, left)
    context = make_context(left)
    refuse_unknown(left, "plan")
    return _made("qrun_plan_session", context, (byref(model), byref(session)), None)


@dataclass(frozen=True)
class Fit:
    """The largest size that memory allows, and the largest that is possible with any memory."""

    largest: int
    limit: int


def _fitted(name: str, context: Handle, arguments: Tuple[Any, ...], what: _api.Fit) -> Fit:
    result = _api.FitResult()
    if what not in _api.FIT:
        raise ArgumentError(f"{what!r} is none of {', '.join(_api.FIT)}")
    with context as opened:
        call(name, opened, *arguments, _api.FIT[what], byref(result))
    return Fit(largest=result.largest, limit=result.limit)


def fit(path: Path, what: _api.Fit, **options: Unpack[ModelKeywords]) -> Fit:
    """The longest "context" of Model(path, **options) that fits, or the largest "batch" of such sequences, exactly."""
    left: Dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    model, session = model_params(path, left)
    context = make_context(left)
    refuse_unknown(left, "fit")
    return _fitted("qrun_fit_session", context, (byref(model), byref(session)), what)


def fit_finetune(path: Path, what: _api.Fit, **options: Unpack[TrainKeywords]) -> Fit:
    """The largest "context" (seq_len), "batch" (batch_size) or "rank" of finetune(path, …, **options), exactly."""
    left: Dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    model, train = train_params(path, left)
    context = make_context(left)
    refuse_unknown(left, "fit_finetune")
    return _fitted("qrun_fit_training", context, (byref(model), byref(train)), what)


def known_models() -> Tuple[str, ...]:
    """The models whose shape is known by name: with random_weights=True such a name is a path."""
    names: list[str] = []
    while (name := library().qrun_known_model(len(names))) is not None:
        names.append(text(name))
    return tuple(names)


def plan_finetune(path: Path, **options: Unpack[TrainKeywords]) -> Plan:
    """What finetune(path, …, **options) would take. Neither weights nor data are read."""
    left: Dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    model, train = train_params(path, left)
    context = make_context(left)
    refuse_unknown(left, "plan_finetune")
    return _made("qrun_plan_training", context, (byref(model), byref(train)), c_char_p())

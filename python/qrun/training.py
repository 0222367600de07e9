"""Fine-tuning."""

from __future__ import annotations

import os
from ctypes import byref, c_bool, c_char_p, c_double, c_int64
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple, TypeVar, Union

from . import _api
from ._calls import LongCall, Progress
from ._native import Handle, call, encoded, fill, in_range, library, make, switch, text
from .errors import BusyError, InternalError
from .info import TrainFile, TrainInfo, TrainMetrics, info_of
from .model import Model, Path

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._api import TrainAction

    class TrainKeywords(_api.TrainOptions, _api.ModelOptions, _api.ContextOptions, total=False):
        """What a run is made with: the fields of three structs of qrun.h."""

Result = TypeVar("Result")


def train_params(path: Path, options: Dict[str, Any]) -> Tuple[Any, Any]:
    """Of the model and of the run, from the options that are theirs; both have one budget."""
    train = _api.TrainParams()
    random_weights = switch(options.pop("random_weights", False)) or options.get("init_random", False)
    fill(train, options)
    model = _api.ModelParams(path=encoded(path), trainable=train.weights.full, random_weights=random_weights,
                             memory_bytes=train.memory.memory_bytes)
    fill(model, options)
    return model, train


def _files(files: Union[Path, Sequence[Path]]) -> Sequence[Path]:
    return [files] if isinstance(files, (str, os.PathLike)) else list(files)


class Trainer:
    """A run that can be taken step by step: `run` does all of it.

    train_data: a file of examples, or several. out: the folder of the adapter (or of the model, with full=True) and of
    the checkpoints; a run continues from the last of them, to the bit. Other keywords are the fields of
    qrun_train_params, qrun_model_params and qrun_context_params in qrun.h.

    on_step and on_evaluation get TrainMetrics, progress(done, total) bytes of data or of weights that are read, and
    examples of an evaluation. They are called in the thread that called; an exception in them ends `run` as Ctrl-C
    does: with a checkpoint, if a step is done. `step` and `evaluate` are over when they are told of, and just raise it.
    """

    def __init__(self, model: Path, *, train_data: Union[Path, Sequence[Path]], out: Path,
                 on_step: Optional[Callable[[TrainMetrics], Any]] = None,
                 on_evaluation: Optional[Callable[[TrainMetrics], Any]] = None,
                 progress: Optional[Progress] = None, **options: Unpack[TrainKeywords]) -> None:
        left: Dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        left.update(train_data=_files(train_data), out=out)
        if "eval_data" in left:
            left["eval_data"] = _files(left["eval_data"])
        self._on_step, self._on_evaluation, self._progress = on_step, on_evaluation, progress
        self._call: Optional[LongCall[Any]] = None
        self._to_tell: Optional[List[Callable[[], Any]]] = None     # after the call; None: at once
        model_params, params = train_params(model, left)
        self._model = Model._trainable(model_params, left, progress, "Trainer")
        self._callbacks = (_api.ProgressFn(self._tell_progress), _api.TrainMetricsFn(self._tell_metrics))
        params.callbacks.progress, params.callbacks.on_metrics = self._callbacks
        try:
            with self._model._handle as opened:
                self._handle: Handle = self._long(
                    self._model._handle,
                    lambda: make("trainer", "qrun_trainer_create", "qrun_trainer_destroy", (opened, byref(params)),
                                 self._model._handle))
        except BaseException:
            self._model.close()
            raise

    # ---- What the library tells ----

    def _tell_progress(self, _user: Optional[int], done: int, total: int) -> bool:
        long_call, progress = self._call, self._progress
        if long_call is None or progress is None:
            return long_call is None or long_call.goes_on
        return long_call.tell(lambda: progress(done, total))

    def _tell_metrics(self, _user: Optional[int], metrics: Any) -> None:
        told = info_of(TrainMetrics, metrics.contents)
        listener = self._on_evaluation if told.is_evaluation else self._on_step
        if self._call is None or listener is None:
            return
        if self._to_tell is not None:
            self._to_tell.append(lambda: listener(told))
        else:
            self._call.tell(lambda: listener(told))

    def _long(self, handle: Handle, work: Callable[[], Result], cancel: Callable[[], Any] = lambda: None,
              to_tell: Optional[List[Callable[[], Any]]] = None) -> Result:
        if self._call is not None:
            raise BusyError("the trainer is in a call already; a listener may use what it is told, `info` and `cancel`")
        self._call, self._to_tell = LongCall[Result](cancel), to_tell
        long_call = self._call
        try:
            return long_call.run(work, handle)
        finally:
            self._call = None

    def _use(self, work: Callable[[Any], Result]) -> Result:
        """A long call that Ctrl-C and exceptions of the listeners end."""
        with self._handle as trainer:
            return self._long(self._handle, lambda: work(trainer), lambda: library().qrun_trainer_cancel(trainer))

    def _take(self, work: Callable[[Any], Result]) -> Result:
        """One step or evaluation, which is over when it is told of: an exception of its listener has nothing to end. So
        its listener is told afterwards."""
        to_tell: List[Callable[[], Any]] = []
        with self._handle as trainer:
            result = self._long(self._handle, lambda: work(trainer),
                                lambda: library().qrun_trainer_cancel(trainer), to_tell)
        for tell in to_tell:
            tell()
        return result

    # ---- The run ----

    @property
    def info(self) -> TrainInfo:
        info = _api.TrainInfo()
        with self._handle as trainer:
            call("qrun_trainer_get_info", trainer, byref(info))
            return info_of(TrainInfo, info)

    @property
    def files(self) -> Sequence[TrainFile]:
        """What was found in each file of train_data."""
        return self.info.files

    def run(self) -> TrainInfo:
        """Everything that is left: steps, evaluations, checkpoints, and the adapter in `out`.

        Ctrl-C, an exception of a listener and `cancel` end it after a checkpoint: with KeyboardInterrupt, that
        exception, or CancelledError. The same call continues there.
        """
        self._use(lambda trainer: call("qrun_trainer_run", trainer))
        return self.info

    def cancel(self) -> None:
        """Ends the step or evaluation that runs now, or else the next one. Call it from any thread."""
        with self._handle as trainer:
            library().qrun_trainer_cancel(trainer)

    # ---- The run, taken apart ----

    @property
    def next(self) -> TrainAction:
        """What comes next: "step", "evaluate" or "done"."""
        with self._handle as trainer:
            number = library().qrun_trainer_next(trainer)
        word: TrainAction
        for word, value in _api.TRAIN_ACTION.items():  # type: ignore[assignment]
            if value == number:
                return word
        raise InternalError(f"the library has no action {number}")

    def step(self) -> TrainMetrics:
        """Runs one step."""
        def work(trainer: Any) -> TrainMetrics:
            metrics, done = _api.TrainMetrics(), c_bool()
            call("qrun_trainer_step", trainer, byref(metrics), byref(done))
            return info_of(TrainMetrics, metrics)   # texts in it are lent until the next call

        return self._take(work)

    def evaluate(self) -> float:
        """The mean loss for each target token of the evaluation examples."""
        loss = c_double()
        self._take(lambda trainer: call("qrun_trainer_evaluate", trainer, byref(loss)))
        return loss.value

    def save(self) -> None:
        """Writes a checkpoint, whole or not at all."""
        self._use(lambda trainer: call("qrun_trainer_save", trainer))

    def replan(self) -> None:
        """After a MemoryError of a step, an evaluation or a save: goes on with the memory that is left, to the same
        bits. `run` does it by itself; `info` says what was done."""
        self._use(lambda trainer: call("qrun_trainer_replan", trainer))

    def load_best(self) -> None:
        """Takes the parameters of the best evaluation, for export; this ends the run."""
        self._use(lambda trainer: call("qrun_trainer_load_best", trainer))

    def export(self) -> None:
        """Writes the adapter, or the model, to `out`."""
        self._use(lambda trainer: call("qrun_trainer_export", trainer))

    def show_example(self, number: int) -> str:
        """An example as the model is trained on it, with its target tokens between «…»."""
        shown = c_char_p()
        with self._handle as trainer:
            call("qrun_trainer_show_example", trainer, in_range("number", c_int64, number), byref(shown))
        try:
            return str(text(shown.value))
        finally:
            library().qrun_free(shown)

    # ---- The end ----

    def close(self) -> None:
        self._handle.close()
        self._model.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def finetune(model: Path, *, train_data: Union[Path, Sequence[Path]], out: Path,
             on_step: Optional[Callable[[TrainMetrics], Any]] = None,
             on_evaluation: Optional[Callable[[TrainMetrics], Any]] = None,
             progress: Optional[Progress] = None, **options: Unpack[TrainKeywords]) -> TrainInfo:
    """Trains a LoRA adapter on examples (or the whole model, with full=True), and writes it to `out`; see Trainer."""
    with Trainer(model, train_data=train_data, out=out, on_step=on_step, on_evaluation=on_evaluation,
                 progress=progress, **options) as trainer:
        return trainer.run()


__all__ = ["Trainer", "finetune"]

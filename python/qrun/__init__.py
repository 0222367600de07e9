"""qrun: opens an unmodified Hugging Face model folder, holds it in 4 or 8 bits, generates and fine-tunes.

    import qrun

    with qrun.Model("path/to/model") as model:
        print(model.generate("Once upon a time", max_tokens=20))
        for piece in model.stream("The sea is", max_tokens=20):
            print(piece, end="", flush=True)
        chat = model.chat()
        print(chat.say("Hello!"))

    qrun.finetune("path/to/model", train_data="train.jsonl", out="my-adapter", on_step=print)

Everything goes through libqrun, the library of the `qrun` program, so answers are the same to the bit. Keywords are the
fields of the library's header, qrun.h, and its messages name them in backticks.
"""

from ._native import library
from .answers import Answer, Sample, TokenLogprob
from .chat import Chat
from .errors import (ArgumentError, BusyError, CancelledError, DeviceError, Error, FileError, FullError, InputError,
                     InternalError, NotFoundError, OutOfMemoryError, RankError, RequestError,
                     UnsupportedError)
from .generation import AsyncStream, Stream
from .info import DeviceInfo, ModelInfo, PlanEntry, Rewards, SessionStats, TrainFile, TrainInfo, TrainMetrics
from .model import Model
from .planning import Fit, Plan, fit, fit_finetune, known_models, plan, plan_finetune
from .requests import Request
from .tokenizer import Message, Tokenizer
from .training import Trainer, finetune


def version() -> str:
    """Of the library that runs."""
    return str(library().qrun_version().decode())


__all__ = [
    "Answer", "ArgumentError", "AsyncStream", "BusyError", "CancelledError", "Chat", "DeviceError", "DeviceInfo",
    "Error", "FileError", "Fit", "FullError", "InputError", "InternalError", "Message", "Model", "ModelInfo",
    "NotFoundError", "OutOfMemoryError", "RankError", "Plan", "PlanEntry", "Request", "RequestError", "Rewards", "Sample", "SessionStats",
    "Stream", "Tokenizer", "TokenLogprob", "Trainer", "TrainFile", "TrainInfo", "TrainMetrics", "UnsupportedError",
    "finetune", "fit", "fit_finetune", "known_models", "plan", "plan_finetune", "version",
]

"""A model that is open: it generates, converses and tokenises."""

from __future__ import annotations

import os
import threading
from ctypes import byref, c_void_p
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union, overload

from . import _api
from ._calls import LongCall, Progress
from ._native import Handle, call, encoded, fill, library, make, refuse_unknown
from ._session import Flight, Session
from .answers import Answer, Growing
from .chat import Chat
from .errors import ArgumentError
from .generation import AsyncStream, Start, Stream, agenerate_all, generate_all
from .info import DeviceInfo, ModelInfo, SessionStats, info_of
from .requests import DEFAULT_MAX_TOKENS, Request, prepare
from .tokenizer import Message, Tokenizer, lent_tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._api import Pooling, RequestOptions

    class ModelKeywords(_api.ModelOptions, _api.SessionOptions, _api.ContextOptions, total=False):
        """What a model is opened with: the fields of three structs of qrun.h."""

Path = Union[str, "os.PathLike[str]"]


def make_context(options: Dict[str, Any]) -> Handle:
    params = _api.ContextParams()
    fill(params, options)
    return make("context", "qrun_context_create", "qrun_context_destroy", (byref(params),))


def model_params(path: Path, options: Dict[str, Any]) -> Tuple[Any, Any]:
    """Of the model and of its session, from the options that are theirs; both have one budget."""
    session = _api.SessionParams()
    fill(session, options)
    model = _api.ModelParams(path=encoded(path), memory_bytes=session.memory_bytes)
    fill(model, options)
    return model, session


class Model:
    """A model folder of Hugging Face, or the id of one in its cache, opened on a device.

    Keywords are the fields of qrun_model_params, qrun_session_params and qrun_context_params in qrun.h. adapters names
    PEFT LoRA folders, {"name": "folder"}, which a request chooses by `adapter`. progress(done, total) is told bytes
    while weights are read; an exception in it ends the reading.

    Methods may be called from any thread. A model belongs to the process that opened it.
    """

    def __init__(self, path: Path, *, adapters: Optional[Mapping[str, Path]] = None,
                 progress: Optional[Progress] = None, **options: Unpack[ModelKeywords]) -> None:
        if adapters is not None and not isinstance(adapters, Mapping):
            raise TypeError(f'adapters is a mapping of names to folders, such as {{"mine": {adapters!r}}}'
                            if isinstance(adapters, (str, os.PathLike)) else
                            'adapters is a mapping of names to folders, such as {"mine": "my-adapter"}')
        left: Dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        params, session_params = model_params(path, left)
        self._open(params, session_params, left, progress, "Model")
        try:
            for name, folder in (adapters or {}).items():
                self.load_adapter(folder, name)
        except BaseException:
            self.close()
            raise

    @classmethod
    def _trainable(cls, params: Any, options: Dict[str, Any], progress: Optional[Progress], asker: str) -> Model:
        """For a trainer, which has params of its own kind."""
        model = cls.__new__(cls)
        model._open(params, _api.SessionParams(), options, progress, asker)
        return model

    def _open(self, params: Any, session_params: Any, options: Dict[str, Any], progress: Optional[Progress],
              asker: str) -> None:
        self._session_params = session_params
        self._session: Optional[Session] = None
        self._lock = threading.Lock()  # of the session, and of which adapters there are
        self._adapters_lock = threading.Lock()  # one thread at a time opens and closes adapters
        self._adapters: Dict[str, int] = {}
        self._context = make_context(options)
        refuse_unknown(options, asker)
        long_call: LongCall[Handle] = LongCall()

        def on_progress(_user: Optional[int], done: int, total: int) -> bool:
            return long_call.tell(lambda: progress(done, total)) if progress is not None else long_call.goes_on

        params.progress = _api.ProgressFn(on_progress)
        with self._context as context:
            self._handle = long_call.run(lambda: make("model", "qrun_model_open", "qrun_model_destroy",
                                                      (context, byref(params)), self._context), self._context)
        self._tokenizer = lent_tokenizer(self._handle)

    # ---- What it is ----

    @property
    def info(self) -> ModelInfo:
        info = _api.ModelInfo()
        with self._handle as model:
            call("qrun_model_get_info", model, byref(info))
            return info_of(ModelInfo, info)

    @property
    def device(self) -> DeviceInfo:
        info = _api.DeviceInfo()
        with self._context as context:
            call("qrun_context_device_info", context, byref(info))
            return info_of(DeviceInfo, info)

    @property
    def stats(self) -> SessionStats:
        """What the session counts; before the first request, nothing."""
        session = self._session
        return info_of(SessionStats, session.stats() if session is not None else _api.SessionStats())

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise ArgumentError("the model's folder has no tokenizer.json")
        return self._tokenizer

    def tokenize(self, text: Union[str, bytes], *, add_special: bool = True, parse_special: bool = True) -> List[int]:
        """Token ids of a text; see Tokenizer.encode."""
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of token ids; see Tokenizer.decode."""
        return self.tokenizer.decode(ids, skip_special=skip_special)

    # ---- Adapters ----

    @property
    def adapters(self) -> Sequence[str]:
        """The names of the adapters that are loaded."""
        return tuple(self._adapters)

    def load_adapter(self, path: Path, name: Optional[str] = None) -> str:
        """Opens a PEFT LoRA folder, unmerged; returns its name (by default, that of the folder)."""
        adapter = c_void_p()
        with self._adapters_lock, self._handle as model:
            call("qrun_adapter_open", model, encoded(path), None if name is None else encoded(name), byref(adapter))
            chosen: str = library().qrun_adapter_name(adapter).decode()
            with self._lock:
                self._adapters[chosen] = adapter.value or 0
        return chosen

    def unload_adapter(self, name: str) -> None:
        """Closes an adapter. BusyError while requests run."""
        with self._adapters_lock, self._lock:
            if name not in self._adapters:
                raise ArgumentError(f"`adapter` {name!r} is not loaded")
            if self._session is not None and self._session.is_idle:
                self._session.close()
                self._session = None
            with self._handle:
                call("qrun_adapter_close", c_void_p(self._adapters[name]))
            del self._adapters[name]

    # ---- Generating ----

    def _current_session(self) -> Session:
        """The caller holds the lock."""
        if self._session is None or self._session.failure is not None:
            self._session = Session(self._handle, self._session_params)
        return self._session

    def _start(self, request: Request, options: Mapping[str, Any], growing: Growing,
               default_max_tokens: int = DEFAULT_MAX_TOKENS) -> Flight:
        with self._lock:  # until the session has the request, its adapter must not be closed
            prepared = prepare(self._handle, self._adapters, request, options, default_max_tokens)
            flight = Flight(self._current_session(), growing)
            flight.session.submit(flight, prepared.params, prepared.json)
        return flight

    @overload
    def generate(self, requests: Request, *,  # type: ignore[overload-overlap]
                 return_errors: bool = ..., **options: Unpack[RequestOptions]) -> Answer:
        ...

    @overload
    def generate(self, requests: Sequence[Request], *, return_errors: bool = ...,
                 **options: Unpack[RequestOptions]) -> List[Answer]:
        ...

    def generate(self, requests: Union[Request, Sequence[Request]], *, return_errors: bool = False,
                 **options: Unpack[RequestOptions]) -> Union[Answer, List[Answer]]:
        """Answers one request, or many at once, in the order of the requests.

        A request is a text that the model continues, or a mapping with the members of a line of
        `qrun generate --prompts`: "prompt", "messages" or "token_ids", and options that count for it alone. What
        nobody says comes from the model's generation_config.json.

        The first request that fails ends the others, and is raised. With return_errors, its Error stands in the place
        of its answer.
        """
        start = self._starter(options)
        if isinstance(requests, (str, Mapping)):
            return generate_all(start, [requests], return_errors)[0]
        return generate_all(start, requests, return_errors)

    @overload
    async def agenerate(self, requests: Request, *,  # type: ignore[overload-overlap]
                        return_errors: bool = ..., **options: Unpack[RequestOptions]) -> Answer:
        ...

    @overload
    async def agenerate(self, requests: Sequence[Request], *, return_errors: bool = ...,
                        **options: Unpack[RequestOptions]) -> List[Answer]:
        ...

    async def agenerate(self, requests: Union[Request, Sequence[Request]], *, return_errors: bool = False,
                        **options: Unpack[RequestOptions]) -> Union[Answer, List[Answer]]:
        """As generate, for asyncio: whatever is awaited at the same time runs in one batch. Cancelling the task ends
        its requests."""
        start = self._starter(options)
        if isinstance(requests, (str, Mapping)):
            return (await agenerate_all(start, [requests], return_errors))[0]
        return await agenerate_all(start, requests, return_errors)

    def _starter(self, options: Mapping[str, Any], default_max_tokens: int = DEFAULT_MAX_TOKENS) -> Start:
        return lambda request, growing: self._start(request, options, growing, default_max_tokens)

    def stream(self, request: Request, **options: Unpack[RequestOptions]) -> Stream:
        """The text of an answer as it arrives: `for piece in model.stream("Once")`. The request has one sample."""
        return Stream(self._starter(options), request)

    def astream(self, request: Request, **options: Unpack[RequestOptions]) -> AsyncStream:
        """As stream, for asyncio: `async for piece in model.astream("Once")`."""
        return AsyncStream(self._starter(options), request)

    def embed(self, texts: Sequence[Request], *, pooling: Pooling = "last",
              adapter: Optional[str] = None) -> List[Tuple[float, ...]]:
        """A vector of length 1 for each text, many at once: the final hidden state of its last token, or the mean over
        all of its tokens."""
        if isinstance(texts, (str, Mapping)):
            raise TypeError("embed() takes a list of texts")
        options: RequestOptions = {"pooling": pooling, "prompt_only": True}
        if adapter is not None:
            options["adapter"] = adapter
        return [answer.embedding or () for answer in self.generate(texts, **options)]

    def chat(self, system: Optional[str] = None, *, messages: Sequence[Message] = (),
             tools: Optional[Sequence[Any]] = None, template: Optional[Mapping[str, Any]] = None,
             **options: Unpack[RequestOptions]) -> Chat:
        """Begins a conversation, or continues the one of `messages`. The options are those of every answer."""
        if not self.info.has_chat_template:
            raise ArgumentError(f"{self.info.folder!r} has no chat template, so it is not made for conversation")
        return Chat(self._starter(options, default_max_tokens=0), system, messages, tools, template)

    # ---- The end ----

    @property
    def closed(self) -> bool:
        return self._handle.closed

    def close(self) -> None:
        """Ends all requests and releases the memory, once nothing made of the model is in use."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
        if self._tokenizer is not None:
            self._tokenizer.close()
        self._handle.close()
        self._context.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

"""Requests: a text, or a mapping with the members of a line of `qrun generate --prompts`."""

from __future__ import annotations

import json
from ctypes import byref, c_void_p
from typing import TYPE_CHECKING, Any, Dict, Mapping, NamedTuple, Optional, Union

from . import _api
from ._native import Handle, call, fill, refuse_unknown
from .errors import ArgumentError

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

Request: TypeAlias = Union[str, Mapping[str, Any]]

DEFAULT_MAX_TOKENS = 256  # where neither the caller nor generation_config.json says more, as `qrun generate` has it


class Prepared(NamedTuple):
    params: Any
    json: Optional[bytes]  # of a mapping; params are its defaults then
    kept: Any              # what params point at


def _sampling(params: Any, options: Dict[str, Any], default_max_tokens: int) -> None:
    """As the program does: a longest answer that is given counts alone."""
    given = options.get("max_tokens") is not None
    if options.get("seed") is not None:
        params.has_seed = True
    if isinstance(options.get("stop"), str):
        options["stop"] = [options["stop"]]
    if "generation" in options:
        options["generation_json"] = json.dumps(options.pop("generation"))
    if isinstance(options.get("json_schema"), Mapping):
        options["json_schema"] = json.dumps(dict(options["json_schema"]))
    if given and "max_length" not in options:
        params.max_length = 0
    fill(params, options)
    if not given and params.max_tokens == 0 and params.max_length == 0:
        params.max_tokens = default_max_tokens


def _plain(value: Any) -> Any:
    """Arrays and numbers of numpy and torch."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"a request's member is a {type(value).__name__}, which JSON has not")
    return value.tolist()


def prepare(model: Handle, adapters: Mapping[str, Any], request: Request, options: Mapping[str, Any],
            default_max_tokens: int = DEFAULT_MAX_TOKENS) -> Prepared:
    """What the model's generation_config.json says, then the options, then the request."""
    left = {name: value for name, value in options.items() if value is not None}
    params = _api.RequestParams()
    with model as opened:
        call("qrun_request_params_from_model", opened, byref(params))
    adapter = left.pop("adapter", None)
    if adapter:
        if adapter not in adapters:
            raise ArgumentError(f"`adapter` {adapter!r} is not loaded; {', '.join(map(repr, adapters)) or 'none'} is")
        params.adapter = c_void_p(adapters[adapter])
    refuse_unknown([name for name in left if name not in _api.RequestOptions.__annotations__], "generate")
    _sampling(params, left, default_max_tokens)
    if isinstance(request, str):
        prompt = request.encode()
        params.prompt, params.prompt_bytes = prompt, len(prompt)
        return Prepared(params, None, prompt)
    if not isinstance(request, Mapping):
        raise TypeError(f"a request is a str or a mapping, not {type(request).__name__}")
    return Prepared(params, json.dumps(dict(request), default=_plain).encode(), None)

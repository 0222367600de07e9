"""Several prompts at once through libqrun, from Python's standard library alone.

    python3 qrun_generate.py path/to/model "Once upon a time" "The sea is"

The structs below are those of qrun.h, field for field. QRUN_LIBRARY names the library where the loader does not find
libqrun.so.0 by itself.
"""

import ctypes
import os
import sys
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_bool, c_char_p, c_double, c_float, c_int, c_int32, c_int64
from ctypes import c_size_t, c_uint64, c_void_p

EVENT_TOKEN, EVENT_DONE, EVENT_ERROR = 0, 1, 2


class Error(Structure):
    _fields_ = [("status", c_int), ("message", ctypes.c_char * 1024)]


class ModelParams(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("path", c_char_p), ("quant", c_int), ("quant_head_int8", c_bool), ("dtype", c_int),
        ("random_weights", c_bool), ("memory_bytes", c_int64), ("progress", c_void_p), ("progress_user", c_void_p),
        ("trainable", c_bool),
    ]


class SessionParams(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("memory_bytes", c_int64), ("max_sequences", c_int32), ("max_step_tokens", c_int32),
        ("context_tokens", c_int32), ("kv_tokens", c_int64), ("kv", c_int), ("no_prefix_sharing", c_bool),
    ]


class Event(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("type", c_int), ("request", c_uint64), ("sample", c_int32), ("is_last", c_bool),
        ("token_id", c_int32), ("text", c_void_p), ("text_bytes", c_size_t), ("has_logprob", c_bool),
        ("logprob", c_float), ("top", c_void_p), ("n_top", c_int32), ("finish_reason", c_char_p),
        ("message", c_char_p), ("prompt_tokens", c_int32), ("cached_tokens", c_int32), ("completion_tokens", c_int32),
        ("queue_seconds", c_double), ("first_token_seconds", c_double), ("total_seconds", c_double),
    ]


EventFunction = CFUNCTYPE(None, c_void_p, POINTER(Event))


class RequestParams(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("prompt", c_char_p), ("prompt_bytes", c_size_t), ("token_ids", c_void_p),
        ("n_token_ids", c_int64), ("messages_json", c_char_p), ("tools_json", c_char_p), ("template_json", c_char_p),
        ("no_special", c_bool), ("parse_special", c_bool), ("adapter", c_void_p), ("temperature", c_float),
        ("top_k", c_int32), ("top_p", c_float), ("min_p", c_float), ("repetition_penalty", c_float),
        ("presence_penalty", c_float), ("frequency_penalty", c_float), ("has_seed", c_bool), ("seed", c_uint64),
        ("stop", c_void_p), ("n_stop", c_int32), ("max_tokens", c_int32), ("n", c_int32), ("logprobs", c_int32),
        ("ignore_eos", c_bool), ("on_event", EventFunction), ("user", c_void_p),
    ]


def open_library():
    try:
        lib = ctypes.CDLL(os.environ.get("QRUN_LIBRARY", "libqrun.so.0"))
    except OSError as error:
        sys.exit(f"{error}\nQRUN_LIBRARY names the library: build/release/lib/libqrun.so after ./demo.sh")
    error = POINTER(Error)
    lib.qrun_context_create.argtypes = [c_void_p, POINTER(c_void_p), error]
    lib.qrun_model_open.argtypes = [c_void_p, POINTER(ModelParams), POINTER(c_void_p), error]
    lib.qrun_session_create.argtypes = [c_void_p, POINTER(SessionParams), POINTER(c_void_p), error]
    lib.qrun_session_submit.argtypes = [c_void_p, POINTER(RequestParams), POINTER(c_uint64), error]
    lib.qrun_session_run.argtypes = [c_void_p, error]
    for destroy in (lib.qrun_session_destroy, lib.qrun_model_destroy, lib.qrun_context_destroy):
        destroy.argtypes, destroy.restype = [c_void_p], None
    return lib


def check(status, error):
    if status != 0:
        raise RuntimeError(error.message.decode())


def answer_all(lib, session, prompts):
    """Submits every prompt, runs them as one batch, and returns the answers in the order of the prompts."""
    texts, failures, error = {}, [], Error()

    @EventFunction
    def on_event(_user, event):
        event = event.contents
        if event.type == EVENT_ERROR:
            failures.append(event.message.decode())
        elif event.text_bytes > 0:  # whole characters, lent for the duration of this call
            texts[event.request] += ctypes.string_at(event.text, event.text_bytes).decode()

    for prompt in prompts:
        number = c_uint64()
        request = RequestParams(struct_size=ctypes.sizeof(RequestParams), prompt=prompt.encode(), top_p=1.0,
                                repetition_penalty=1.0, n=1, logprobs=-1, max_tokens=40, on_event=on_event)
        check(lib.qrun_session_submit(session, byref(request), byref(number), byref(error)), error)
        texts[number.value] = ""
    check(lib.qrun_session_run(session, byref(error)), error)
    if failures:
        raise RuntimeError(failures[0])
    return [texts[number] for number in sorted(texts)]


def main():
    if len(sys.argv) < 3:
        sys.exit("usage: qrun_generate.py MODEL PROMPT...")
    lib, error = open_library(), Error()
    context, model, session = c_void_p(), c_void_p(), c_void_p()
    model_params = ModelParams(struct_size=ctypes.sizeof(ModelParams), path=sys.argv[1].encode())
    session_params = SessionParams(struct_size=ctypes.sizeof(SessionParams))
    try:
        check(lib.qrun_context_create(None, byref(context), byref(error)), error)
        check(lib.qrun_model_open(context, byref(model_params), byref(model), byref(error)), error)
        check(lib.qrun_session_create(model, byref(session_params), byref(session), byref(error)), error)
        for prompt, text in zip(sys.argv[2:], answer_all(lib, session, sys.argv[2:])):
            print(f"{prompt}|{text}")
    except RuntimeError as failure:
        sys.exit(f"qrun_generate.py: {failure}")
    finally:
        lib.qrun_session_destroy(session)
        lib.qrun_model_destroy(model)
        lib.qrun_context_destroy(context)


if __name__ == "__main__":
    main()

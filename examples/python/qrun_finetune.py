"""Fine-tuning through libqrun, from Python's standard library alone.

    python3 qrun_finetune.py path/to/model train.jsonl my-adapter 200

Ctrl-C ends the step, saves a checkpoint and stops; the same command then goes on from there, to the bit. The structs
below are those of qrun.h, field for field. QRUN_LIBRARY names the library where the loader does not find libqrun.so.0 by
itself.
"""

import ctypes
import os
import signal
import sys
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_bool, c_char_p, c_double, c_float, c_int, c_int32, c_int64
from ctypes import c_size_t, c_uint64, c_void_p

CANCELLED = -7


class Error(Structure):
    _fields_ = [("status", c_int), ("message", ctypes.c_char * 1024)]


class ModelParams(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("path", c_char_p), ("quant", c_int), ("quant_head_int8", c_bool),
        ("dtype", c_int), ("random_weights", c_bool), ("memory_bytes", c_int64), ("progress", c_void_p),
        ("progress_user", c_void_p), ("trainable", c_bool),
    ]


class TrainMetrics(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("is_evaluation", c_bool), ("step", c_int64), ("epoch", c_double),
        ("loss", c_double), ("learning_rate", c_double), ("grad_norm", c_double), ("loss_scale", c_double),
        ("skipped", c_bool), ("nonfinite", c_char_p), ("overflowed", c_bool), ("n_tokens", c_int64),
        ("n_target_tokens", c_int64), ("seconds", c_double),
    ]


MetricsFunction = CFUNCTYPE(None, c_void_p, POINTER(TrainMetrics))


class TrainData(Structure):
    _fields_ = [
        ("train_data", c_char_p), ("eval_data", c_char_p), ("eval_split", c_double), ("skip_bad", c_bool),
        ("cache_folder", c_char_p), ("random_tokens", c_bool),
    ]


class TrainLora(Structure):
    _fields_ = [
        ("target_modules", c_char_p), ("rank", c_int32), ("alpha", c_float), ("rslora", c_bool), ("dora", c_bool),
        ("lora_dropout", c_double), ("adapter", c_char_p), ("modules_to_save", c_char_p),
    ]


class TrainWeights(Structure):
    _fields_ = [("full", c_bool), ("init_random", c_bool), ("init_embedding_std", c_double)]


class TrainOptimization(Structure):
    _fields_ = [
        ("optimizer", c_int), ("schedule", c_int), ("learning_rate", c_double), ("warmup", c_double),
        ("weight_decay", c_double), ("decay_all", c_bool), ("loraplus_lr_ratio", c_double),
        ("max_grad_norm", c_double),
    ]


class TrainBatches(Structure):
    _fields_ = [
        ("seq_len", c_int32), ("batching", c_int), ("batch_size", c_int32), ("batch_tokens", c_int64),
        ("grad_accum", c_int32), ("epochs", c_double), ("max_steps", c_int64), ("seed", c_uint64),
    ]


class TrainMemory(Structure):
    _fields_ = [
        ("memory_bytes", c_int64), ("checkpointing", c_char_p), ("offload_optimizer", c_bool),
        ("offload_activations", c_bool),
    ]


class TrainEvaluation(Structure):
    _fields_ = [
        ("eval_every", c_int64), ("early_stopping_patience", c_int32), ("early_stopping_threshold", c_double),
        ("load_best", c_bool),
    ]


class TrainSaving(Structure):
    _fields_ = [("out", c_char_p), ("save_every", c_int64), ("keep", c_int32), ("restart", c_bool)]


class TrainCallbacks(Structure):
    _fields_ = [
        ("progress", c_void_p), ("progress_user", c_void_p), ("on_metrics", MetricsFunction),
        ("metrics_user", c_void_p),
    ]


class TrainParams(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("data", TrainData), ("lora", TrainLora), ("weights", TrainWeights),
        ("optimization", TrainOptimization), ("batches", TrainBatches), ("memory", TrainMemory),
        ("evaluation", TrainEvaluation), ("saving", TrainSaving), ("callbacks", TrainCallbacks),
    ]


class TrainInfo(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("data_format", c_char_p), ("n_examples", c_int64), ("n_eval_examples", c_int64),
        ("n_dropped", c_int64), ("n_truncated", c_int64), ("n_bad_lines", c_int64), ("first_bad", c_char_p),
        ("n_tokens", c_int64), ("n_target_tokens", c_int64), ("n_trainable", c_int64), ("total_steps", c_int64),
        ("first_step", c_int64), ("best_step", c_int64), ("best_loss", c_double), ("n_not_better", c_int32),
        ("stopped_early", c_bool), ("checkpointing", c_char_p), ("planned_bytes", c_int64), ("peak_bytes", c_int64),
        ("planned_host_bytes", c_int64), ("peak_host_bytes", c_int64),
        ("flops_per_token", c_double),
    ]


def open_library():
    try:
        lib = ctypes.CDLL(os.environ.get("QRUN_LIBRARY", "libqrun.so.0"))
    except OSError as error:
        sys.exit(f"{error}\nQRUN_LIBRARY names the library: build/release/lib/libqrun.so after ./demo.sh")
    error = POINTER(Error)
    lib.qrun_context_create.argtypes = [c_void_p, POINTER(c_void_p), error]
    lib.qrun_model_open.argtypes = [c_void_p, POINTER(ModelParams), POINTER(c_void_p), error]
    lib.qrun_trainer_create.argtypes = [c_void_p, POINTER(TrainParams), POINTER(c_void_p), error]
    lib.qrun_trainer_get_info.argtypes = [c_void_p, POINTER(TrainInfo), error]
    lib.qrun_trainer_run.argtypes = [c_void_p, error]
    for function in (lib.qrun_trainer_cancel, lib.qrun_trainer_destroy, lib.qrun_model_destroy,
                     lib.qrun_context_destroy):
        function.argtypes, function.restype = [c_void_p], None
    return lib


def check(status, error):
    if status != 0:
        raise RuntimeError(error.message.decode())


@MetricsFunction
def print_metrics(_user, metrics):
    m = metrics.contents
    if m.is_evaluation:
        print(f"step {m.step:4}  evaluation loss {m.loss:.4f}", flush=True)
    else:
        print(f"step {m.step:4}  loss {m.loss:.4f}  learning rate {m.learning_rate:.2e}  "
              f"{m.n_tokens / m.seconds:.0f} tokens/s", flush=True)


def finetune(lib, trainer, out):
    """Runs to the end, or to Ctrl-C; returns the exit code."""
    error, info = Error(), TrainInfo(struct_size=ctypes.sizeof(TrainInfo))
    check(lib.qrun_trainer_get_info(trainer, byref(info), byref(error)), error)
    print(f"{info.n_examples} examples, {info.total_steps} steps from step {info.first_step}, "
          f"{info.planned_bytes / 2**20:.1f} MiB")
    # Python runs the handler in print_metrics, the next time that it runs at all.
    signal.signal(signal.SIGINT, lambda *_: lib.qrun_trainer_cancel(trainer))
    status = lib.qrun_trainer_run(trainer, byref(error))
    if status == CANCELLED:
        print(f"stopped; the same command goes on from the checkpoint in {out}")
        return 130
    check(status, error)
    print(f"the adapter is in {out}")
    return 0


def main():
    if len(sys.argv) < 4:
        sys.exit("usage: qrun_finetune.py MODEL DATA.jsonl OUT [STEPS]")
    lib, error = open_library(), Error()
    context, model, trainer = c_void_p(), c_void_p(), c_void_p()
    model_params = ModelParams(struct_size=ctypes.sizeof(ModelParams), path=sys.argv[1].encode())
    params = TrainParams(
        struct_size=ctypes.sizeof(TrainParams),
        data=TrainData(train_data=sys.argv[2].encode(), eval_split=0.1),
        batches=TrainBatches(seq_len=256, max_steps=int(sys.argv[4]) if len(sys.argv) > 4 else 0),
        optimization=TrainOptimization(learning_rate=2e-3),
        saving=TrainSaving(out=sys.argv[3].encode()),
        callbacks=TrainCallbacks(on_metrics=print_metrics))
    try:
        check(lib.qrun_context_create(None, byref(context), byref(error)), error)
        check(lib.qrun_model_open(context, byref(model_params), byref(model), byref(error)), error)
        check(lib.qrun_trainer_create(model, byref(params), byref(trainer), byref(error)), error)
        sys.exit(finetune(lib, trainer, sys.argv[3]))
    except RuntimeError as failure:
        sys.exit(f"qrun_finetune.py: {failure}")
    finally:
        lib.qrun_trainer_destroy(trainer)
        lib.qrun_model_destroy(model)
        lib.qrun_context_destroy(context)


if __name__ == "__main__":
    main()

"""What qrun.h declares, in the words of ctypes. Written by generate_api.py; not to be edited."""

from __future__ import annotations

from ctypes import CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64
from ctypes import c_size_t, c_uint64, c_void_p, sizeof
from typing import Any, ClassVar, Dict, List, Literal, Mapping, Sequence, Tuple, TypedDict, Union


class Sized(Structure):
    """A struct that begins with struct_size, as its _INIT macro of qrun.h makes it."""

    _defaults_: ClassVar[Dict[str, Any]] = {}

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{"struct_size": sizeof(self), **self._defaults_, **fields})


STATUS = {"OK": 0, "ERROR_ARGUMENT": -1, "ERROR_NOT_FOUND": -2, "ERROR_IO": -3, "ERROR_INPUT": -4,
    "ERROR_UNSUPPORTED": -5, "ERROR_MEMORY": -6, "ERROR_CANCELLED": -7, "ERROR_DEVICE": -8, "ERROR_BUSY": -9,
    "ERROR_INTERNAL": -10, "ERROR_FULL": -11, "ERROR_RANK": -12}

NUMERICS = {"fastest": 0, "portable": 1}
Numerics = Literal["fastest", "portable"]

QUANT = {"auto": 0, "f32": 1, "bf16": 2, "int8": 3, "nf4": 4, "nf4-dq": 5, "f16": 6, "mixed": 7, "mxfp4": 8}
Quant = Literal["auto", "f32", "bf16", "int8", "nf4", "nf4-dq", "f16", "mixed", "mxfp4"]

DTYPE = {"bf16": 0, "f32": 1, "f16": 2}
Dtype = Literal["bf16", "f32", "f16"]

OFFLOAD = {"none": 0, "all": 1, "auto": 2}
Offload = Literal["none", "all", "auto"]

EXPERT_COMPUTE = {"device": 0, "auto": 1, "host": 2}
ExpertCompute = Literal["device", "auto", "host"]

KV = {"auto": 0, "bf16": 1, "int8": 2, "f32": 3, "f16": 4}
Kv = Literal["auto", "bf16", "int8", "f32", "f16"]

FIT = {"context": 0, "batch": 1, "rank": 2}
Fit = Literal["context", "batch", "rank"]

EVENT_TYPE = {"token": 0, "done": 1, "error": 2, "prompt": 3, "embedding": 4}
EventType = Literal["token", "done", "error", "prompt", "embedding"]

POOLING = {"none": 0, "last": 1, "mean": 2}
Pooling = Literal["none", "last", "mean"]

FORM_VALUE = {"json": 0, "tagged": 1}
FormValue = Literal["json", "tagged"]

OPTIMIZER = {"adamw": 0, "adamw8bit": 1, "adafactor": 2, "sgd": 3}
Optimizer = Literal["adamw", "adamw8bit", "adafactor", "sgd"]

SCHEDULE = {"linear": 0, "cosine": 1, "constant": 2}
Schedule = Literal["linear", "cosine", "constant"]

BATCHING = {"pack": 0, "group": 1}
Batching = Literal["pack", "group"]

OBJECTIVE = {"sft": 0, "dpo": 1, "orpo": 2, "simpo": 3}
Objective = Literal["sft", "dpo", "orpo", "simpo"]

FILE_FORMAT = {"auto": 0, "json": 1, "csv": 2, "tsv": 3, "text": 4, "paragraphs": 5}
FileFormat = Literal["auto", "json", "csv", "tsv", "text", "paragraphs"]

TRAIN_ACTION = {"step": 0, "evaluate": 1, "done": 2}
TrainAction = Literal["step", "evaluate", "done"]

MERGE_ONTO = {"auto": 0, "original": 1, "quantized": 2}
MergeOnto = Literal["auto", "original", "quantized"]

EXPORT_FORMAT = {"gguf": 0, "gguf-lora": 1}
ExportFormat = Literal["gguf", "gguf-lora"]

GGUF_TYPE = {"auto": 0, "f32": 1, "f16": 2, "bf16": 3, "q8-0": 4, "q4-0": 5}
GgufType = Literal["auto", "f32", "f16", "bf16", "q8-0", "q4-0"]


class Error(Structure):
    _fields_ = [
        ("status", c_int),
        ("message", c_char * 1024),
    ]


class ContextParams(Sized):
    _enums_ = {"numerics": NUMERICS}
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_threads", c_int32),
        ("device", c_char_p),
        ("numerics", c_int),
        ("device_memory", c_char_p),
        ("ranks", c_bool),
        ("collective_timeout", c_double),
    ]


class DeviceInfo(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("backend", c_char_p),
        ("isa", c_char_p),
        ("n_threads", c_int32),
        ("memory_bytes", c_int64),
        ("memory_available_bytes", c_int64),
        ("context_bytes", c_int64),
        ("note", c_char_p),
        ("numerics", c_char_p),
        ("rank", c_int32),
        ("n_ranks", c_int32),
        ("features", c_char * 384),
    ]


class Peaks(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("read_bytes_per_second", c_double),
        ("bf16_flops", c_double),
        ("f32_flops", c_double),
        ("f16_flops", c_double),
    ]


class OpTime(Structure):
    _fields_ = [
        ("op", c_char_p),
        ("shape", c_char * 48),
        ("n_calls", c_int64),
        ("seconds", c_double),
        ("bytes", c_double),
        ("flops", c_double),
    ]


class Phases(Structure):
    _fields_ = [
        ("data", c_double),
        ("forward", c_double),
        ("loss", c_double),
        ("backward", c_double),
        ("recompute", c_double),
        ("optimizer", c_double),
        ("prefill", c_double),
        ("decode", c_double),
        ("sample", c_double),
        ("copies", c_double),
        ("waiting", c_double),
        ("other", c_double),
    ]


class TimelineEvent(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("shape", c_char * 48),
        ("phase", c_char_p),
        ("spent_on", c_char_p),
        ("part", c_char_p),
        ("layer", c_int32),
        ("begin", c_double),
        ("seconds", c_double),
        ("bytes", c_int64),
        ("workspace_bytes", c_int64),
    ]


class TimelineMemory(Structure):
    _fields_ = [
        ("category", c_char_p),
        ("bytes", c_int64),
        ("lives", c_bool),
        ("is_apart", c_bool),
    ]


class TimelineTensor(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("category", c_int32),
        ("layer", c_int32),
        ("bytes", c_int64),
        ("offset", c_int64),
        ("lives", c_bool),
    ]


class TimelineLife(Structure):
    _fields_ = [
        ("tensor", c_int32),
        ("layer", c_int32),
        ("first", c_int64),
        ("last", c_int64),
        ("kept", c_bool),
    ]


class Timeline(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("events", POINTER(TimelineEvent)),
        ("n_events", c_int64),
        ("n_dropped", c_int64),
        ("memory", POINTER(TimelineMemory)),
        ("n_memory", c_int32),
        ("tensors", POINTER(TimelineTensor)),
        ("n_tensors", c_int32),
        ("n_unnamed", c_int32),
        ("lives", POINTER(TimelineLife)),
        ("n_lives", c_int64),
        ("seconds", c_double),
        ("phases", Phases),
    ]


ProgressFn = CFUNCTYPE(c_bool, c_void_p, c_int64, c_int64)


class ModelParams(Sized):
    _enums_ = {"quant": QUANT, "dtype": DTYPE, "offload_parameters": OFFLOAD, "offload_experts": OFFLOAD, "expert_compute": EXPERT_COMPUTE}
    _fields_ = [
        ("struct_size", c_size_t),
        ("path", c_char_p),
        ("quant", c_int),
        ("quant_head_int8", c_bool),
        ("dtype", c_int),
        ("random_weights", c_bool),
        ("memory_bytes", c_int64),
        ("progress", ProgressFn),
        ("progress_user", c_void_p),
        ("trainable", c_bool),
        ("offload_parameters", c_int),
        ("quant_embedding_int8", c_bool),
        ("shard_parameters", c_bool),
        ("tensor_parallel", c_int32),
        ("tensor_rank", c_int32),
        ("offload_experts", c_int),
        ("expert_compute", c_int),
    ]


class ModelInfo(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("folder", c_char_p),
        ("hub_name", c_char_p),
        ("family", c_char_p),
        ("quant", c_char_p),
        ("head_format", c_char_p),
        ("dtype", c_char_p),
        ("n_parameters", c_int64),
        ("n_quantized_parameters", c_int64),
        ("n_linear_parameters", c_int64),
        ("weight_bytes", c_int64),
        ("step_weight_bytes", c_int64),
        ("n_layers", c_int32),
        ("hidden_size", c_int32),
        ("intermediate_size", c_int32),
        ("n_heads", c_int32),
        ("n_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("vocab_size", c_int32),
        ("context_tokens", c_int32),
        ("sliding_window", c_int32),
        ("load_seconds", c_double),
        ("has_tokenizer", c_bool),
        ("has_chat_template", c_bool),
        ("offloads_parameters", c_bool),
        ("shards_parameters", c_bool),
        ("not_obeyed", c_char_p),
        ("n_active_parameters", c_int64),
        ("n_experts", c_int32),
        ("n_experts_per_token", c_int32),
        ("expert_intermediate_size", c_int32),
        ("left_out", c_char_p),
        ("packed_as", c_char_p),
        ("embedding_format", c_char_p),
        ("offloads_experts", c_bool),
        ("computes_experts", c_bool),
        ("expert_note", c_char_p),
    ]


class PlanEntry(Structure):
    _fields_ = [
        ("category", c_char_p),
        ("bytes", c_int64),
        ("is_apart", c_bool),
    ]


class PlanInfo(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("fits", c_bool),
        ("total_bytes", c_int64),
        ("budget_bytes", c_int64),
        ("available_bytes", c_int64),
        ("context_tokens", c_int32),
        ("max_sequences", c_int32),
        ("pool_tokens", c_int64),
        ("full_sequences", c_int32),
        ("flops", c_double),
        ("copied_bytes", c_int64),
        ("update_copied_bytes", c_int64),
        ("tile_rows", c_int32),
        ("rank", c_int32),
        ("sent_bytes", c_int64),
        ("ring_bytes", c_int64),
        ("n_parameters", c_int64),
        ("expert_note", c_char * 192),
    ]


class SessionParams(Sized):
    _enums_ = {"kv": KV}
    _fields_ = [
        ("struct_size", c_size_t),
        ("memory_bytes", c_int64),
        ("max_sequences", c_int32),
        ("max_step_tokens", c_int32),
        ("context_tokens", c_int32),
        ("kv_tokens", c_int64),
        ("kv", c_int),
        ("no_prefix_sharing", c_bool),
        ("sequence_tokens", c_int64),
        ("max_waiting_bytes", c_int64),
        ("speculate", c_char_p),
        ("prefix_cache_bytes", c_int64),
        ("cache_dir", c_char_p),
        ("cache_dir_bytes", c_int64),
    ]


class FitResult(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("largest", c_int64),
        ("limit", c_int64),
    ]


class TopLogprob(Structure):
    _fields_ = [
        ("token_id", c_int32),
        ("logprob", c_float),
    ]


class Event(Sized):
    _enums_ = {"type": EVENT_TYPE}
    _fields_ = [
        ("struct_size", c_size_t),
        ("type", c_int),
        ("request", c_uint64),
        ("sample", c_int32),
        ("is_last", c_bool),
        ("token_id", c_int32),
        ("text", c_void_p),
        ("text_bytes", c_size_t),
        ("has_logprob", c_bool),
        ("logprob", c_float),
        ("top", POINTER(TopLogprob)),
        ("n_top", c_int32),
        ("finish_reason", c_char_p),
        ("stop_text", c_char_p),
        ("message", c_char_p),
        ("prompt_tokens", c_int32),
        ("cached_tokens", c_int32),
        ("completion_tokens", c_int32),
        ("queue_seconds", c_double),
        ("first_token_seconds", c_double),
        ("total_seconds", c_double),
        ("embedding", POINTER(c_float)),
        ("n_embedding", c_int32),
        ("status", c_int),
    ]


class AnswerForm(Structure):
    _enums_ = {"value": FORM_VALUE}
    _fields_ = [
        ("name", c_char_p),
        ("before", c_char_p),
        ("schema", c_char_p),
        ("after", c_char_p),
        ("value", c_int),
        ("before_name", c_char_p),
        ("after_name", c_char_p),
        ("after_value", c_char_p),
    ]


EventFn = CFUNCTYPE(None, c_void_p, POINTER(Event))


class RequestParams(Sized):
    _enums_ = {"pooling": POOLING}
    _defaults_ = {"top_p": 1.0, "repetition_penalty": 1.0, "n": 1, "logprobs": -1, "prompt_logprobs": -1}
    _fields_ = [
        ("struct_size", c_size_t),
        ("prompt", c_char_p),
        ("prompt_bytes", c_size_t),
        ("token_ids", POINTER(c_int32)),
        ("n_token_ids", c_int64),
        ("messages_json", c_char_p),
        ("tools_json", c_char_p),
        ("template_json", c_char_p),
        ("no_special", c_bool),
        ("plain_text", c_bool),
        ("adapter", c_void_p),
        ("temperature", c_float),
        ("top_k", c_int32),
        ("top_p", c_float),
        ("min_p", c_float),
        ("repetition_penalty", c_float),
        ("presence_penalty", c_float),
        ("frequency_penalty", c_float),
        ("generation_json", c_char_p),
        ("json_schema", c_char_p),
        ("answer_forms", POINTER(AnswerForm)),
        ("n_answer_forms", c_int32),
        ("has_seed", c_bool),
        ("seed", c_uint64),
        ("stop", POINTER(c_char_p)),
        ("n_stop", c_int32),
        ("stop_token_ids", POINTER(c_int32)),
        ("n_stop_token_ids", c_int32),
        ("min_tokens", c_int32),
        ("max_tokens", c_int32),
        ("max_length", c_int32),
        ("n", c_int32),
        ("logprobs", c_int32),
        ("ignore_eos", c_bool),
        ("prompt_logprobs", c_int32),
        ("prompt_only", c_bool),
        ("pooling", c_int),
        ("on_event", EventFn),
        ("user", c_void_p),
    ]


class RequestSize(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("prompt_tokens", c_int64),
        ("sequence_tokens", c_int64),
        ("n_sequences", c_int32),
    ]


class SessionStats(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_waiting", c_int32),
        ("n_running", c_int32),
        ("waiting_bytes", c_int64),
        ("n_finished", c_int64),
        ("n_preemptions", c_int64),
        ("page_tokens", c_int64),
        ("pages_total", c_int64),
        ("pages_used", c_int64),
        ("pages_shared", c_int64),
        ("pages_cached", c_int64),
        ("pages_peak", c_int64),
        ("prompt_tokens", c_int64),
        ("cached_prompt_tokens", c_int64),
        ("completion_tokens", c_int64),
        ("restored_prompt_tokens", c_int64),
        ("draft_tokens", c_int64),
        ("accepted_draft_tokens", c_int64),
        ("steps", c_int64),
        ("replayed_steps", c_int64),
        ("ahead_steps", c_int64),
        ("replay_failure", c_char * 128),
        ("cache_note", c_char * 192),
        ("step_seconds", c_double),
        ("prefill_seconds", c_double),
        ("context_tokens", c_int64),
        ("planned_bytes", c_int64),
        ("peak_bytes", c_int64),
        ("max_sequences", c_int32),
    ]


class EvalParams(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("window_tokens", c_int32),
        ("max_tokens", c_int64),
        ("adapter", c_void_p),
        ("progress", ProgressFn),
        ("progress_user", c_void_p),
    ]


class EvalResult(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_tokens", c_int64),
        ("mean_nll", c_double),
        ("perplexity", c_double),
        ("seconds", c_double),
    ]


class TrainData(Structure):
    _enums_ = {"format": FILE_FORMAT}
    _fields_ = [
        ("train_data", POINTER(c_char_p)),
        ("n_train_data", c_int32),
        ("format", c_int),
        ("columns", c_char_p),
        ("date", c_char_p),
        ("data_weights", POINTER(c_double)),
        ("n_data_weights", c_int32),
        ("eval_data", POINTER(c_char_p)),
        ("n_eval_data", c_int32),
        ("eval_split", c_double),
        ("skip_bad", c_bool),
        ("cache_folder", c_char_p),
        ("random_tokens", c_bool),
    ]


class TrainLora(Structure):
    _fields_ = [
        ("target_modules", c_char_p),
        ("rank", c_int32),
        ("alpha", c_float),
        ("rslora", c_bool),
        ("dora", c_bool),
        ("lora_dropout", c_double),
        ("adapter", c_char_p),
        ("modules_to_save", c_char_p),
        ("target_parameters", c_char_p),
        ("layers_to_transform", c_char_p),
    ]


class TrainWeights(Structure):
    _fields_ = [
        ("full", c_bool),
        ("init_random", c_bool),
        ("init_embedding_std", c_double),
    ]


class TrainPreference(Structure):
    _enums_ = {"objective": OBJECTIVE}
    _fields_ = [
        ("objective", c_int),
        ("beta", c_double),
        ("target_margin", c_double),
    ]


class TrainOptimization(Structure):
    _enums_ = {"optimizer": OPTIMIZER, "schedule": SCHEDULE}
    _fields_ = [
        ("optimizer", c_int),
        ("schedule", c_int),
        ("learning_rate", c_double),
        ("warmup", c_double),
        ("weight_decay", c_double),
        ("decay_all", c_bool),
        ("loraplus_lr_ratio", c_double),
        ("max_grad_norm", c_double),
        ("loss_scale", c_int64),
        ("loss_scale_initial", c_int64),
        ("loss_scale_growth", c_double),
        ("loss_scale_backoff", c_double),
        ("loss_scale_window", c_int32),
    ]


class TrainBatches(Structure):
    _enums_ = {"batching": BATCHING}
    _fields_ = [
        ("seq_len", c_int32),
        ("batching", c_int),
        ("batch_size", c_int32),
        ("batch_tokens", c_int64),
        ("grad_accum", c_int32),
        ("grad_sums", c_int32),
        ("epochs", c_double),
        ("max_steps", c_int64),
        ("seed", c_uint64),
    ]


class TrainMemory(Structure):
    _fields_ = [
        ("memory_bytes", c_int64),
        ("checkpointing", c_char_p),
        ("offload_optimizer", c_bool),
        ("offload_gradients", c_bool),
        ("offload_activations", c_bool),
        ("tile_rows", c_int32),
    ]


class TrainEvaluation(Structure):
    _fields_ = [
        ("eval_every", c_int64),
        ("early_stopping_patience", c_int32),
        ("early_stopping_threshold", c_double),
        ("load_best", c_bool),
    ]


class TrainSaving(Structure):
    _fields_ = [
        ("out", c_char_p),
        ("save_every", c_int64),
        ("keep", c_int32),
        ("restart", c_bool),
    ]


class Rewards(Structure):
    _fields_ = [
        ("n_pairs", c_int64),
        ("chosen", c_double),
        ("rejected", c_double),
        ("margin", c_double),
        ("accuracy", c_double),
    ]


class TrainMetrics(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("is_evaluation", c_bool),
        ("step", c_int64),
        ("epoch", c_double),
        ("loss", c_double),
        ("learning_rate", c_double),
        ("grad_norm", c_double),
        ("loss_scale", c_double),
        ("skipped", c_bool),
        ("nonfinite", c_char_p),
        ("overflowed", c_bool),
        ("n_tokens", c_int64),
        ("n_target_tokens", c_int64),
        ("rewards", Rewards),
        ("seconds", c_double),
        ("phases", Phases),
        ("n_skipped", c_int64),
    ]


TrainMetricsFn = CFUNCTYPE(None, c_void_p, POINTER(TrainMetrics))


class TrainCallbacks(Structure):
    _fields_ = [
        ("progress", ProgressFn),
        ("progress_user", c_void_p),
        ("on_metrics", TrainMetricsFn),
        ("metrics_user", c_void_p),
    ]


class TrainRanks(Structure):
    _fields_ = [
        ("zero", c_int32),
        ("n_ranks", c_int32),
        ("plan_rank", c_int32),
    ]


class TrainParams(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("data", TrainData),
        ("lora", TrainLora),
        ("weights", TrainWeights),
        ("preference", TrainPreference),
        ("optimization", TrainOptimization),
        ("batches", TrainBatches),
        ("memory", TrainMemory),
        ("evaluation", TrainEvaluation),
        ("saving", TrainSaving),
        ("callbacks", TrainCallbacks),
        ("ranks", TrainRanks),
    ]


class TrainFile(Structure):
    _fields_ = [
        ("path", c_char_p),
        ("data_format", c_char_p),
        ("n_examples", c_int64),
        ("n_epoch_examples", c_int64),
        ("unknown_members", c_char_p),
        ("unknown_line", c_int64),
    ]


class TrainInfo(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("files", POINTER(TrainFile)),
        ("n_files", c_int32),
        ("data_format", c_char_p),
        ("n_examples", c_int64),
        ("n_eval_examples", c_int64),
        ("n_dropped", c_int64),
        ("n_truncated", c_int64),
        ("n_bad_lines", c_int64),
        ("first_bad", c_char_p),
        ("n_tokens", c_int64),
        ("n_target_tokens", c_int64),
        ("n_trainable", c_int64),
        ("total_steps", c_int64),
        ("first_step", c_int64),
        ("earlier_total_steps", c_int64),
        ("earlier_learning_rate", c_double),
        ("next_learning_rate", c_double),
        ("best_step", c_int64),
        ("best_loss", c_double),
        ("n_not_better", c_int32),
        ("stopped_early", c_bool),
        ("checkpointing", c_char_p),
        ("tile_rows", c_int32),
        ("planned_bytes", c_int64),
        ("peak_bytes", c_int64),
        ("planned_host_bytes", c_int64),
        ("peak_host_bytes", c_int64),
        ("flops_per_token", c_double),
        ("step_sent_bytes", c_int64),
        ("sent_bytes", c_int64),
        ("n_replans", c_int64),
        ("replanned", c_char_p),
    ]


class MixedParams(Sized):
    _enums_ = {"raise_to": QUANT, "dtype": DTYPE}
    _fields_ = [
        ("struct_size", c_size_t),
        ("path", c_char_p),
        ("text", c_char_p),
        ("text_bytes", c_size_t),
        ("token_ids", POINTER(c_int32)),
        ("n_token_ids", c_int64),
        ("max_tokens", c_int32),
        ("budget_bytes", c_int64),
        ("raise_to", c_int),
        ("dtype", c_int),
        ("progress", ProgressFn),
        ("progress_user", c_void_p),
    ]


class MixedInfo(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_matrices", c_int32),
        ("n_raised", c_int32),
        ("n_tokens", c_int32),
        ("loss", c_double),
        ("nf4_loss", c_double),
        ("nf4_kl", c_double),
        ("left_kl", c_double),
        ("weight_bytes", c_int64),
        ("least_bytes", c_int64),
        ("all_bytes", c_int64),
        ("budget_bytes", c_int64),
    ]


class MixedMatrix(Structure):
    _enums_ = {"quant": QUANT}
    _fields_ = [
        ("name", c_char_p),
        ("quant", c_int),
        ("n_alike", c_int32),
        ("n_parameters", c_int64),
        ("weight_bytes", c_int64),
        ("kl", c_double),
        ("loss_difference", c_double),
    ]


class QuantizeParams(Sized):
    _enums_ = {"quant": QUANT}
    _fields_ = [
        ("struct_size", c_size_t),
        ("path", c_char_p),
        ("out", c_char_p),
        ("quant", c_int),
        ("max_shard_bytes", c_int64),
        ("progress", ProgressFn),
        ("progress_user", c_void_p),
        ("mixed", c_void_p),
        ("quant_embedding_int8", c_bool),
    ]


class CompareParams(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("model", POINTER(ModelParams)),
        ("other", POINTER(ModelParams)),
        ("adapter", c_char_p),
        ("other_adapter", c_char_p),
        ("text", c_char_p),
        ("text_bytes", c_size_t),
        ("max_tokens", c_int32),
        ("progress", ProgressFn),
        ("progress_user", c_void_p),
    ]


class Difference(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_tokens", c_int64),
        ("max_abs_logit", c_double),
        ("mean_logit_difference", c_double),
        ("max_logit_difference", c_double),
        ("mean_kl", c_double),
        ("max_kl", c_double),
        ("n_same_greedy", c_int64),
    ]


class MergeParams(Sized):
    _enums_ = {"onto": MERGE_ONTO, "quant": QUANT, "dtype": QUANT}
    _fields_ = [
        ("struct_size", c_size_t),
        ("path", c_char_p),
        ("adapter", c_char_p),
        ("out", c_char_p),
        ("onto", c_int),
        ("quant", c_int),
        ("dtype", c_int),
        ("max_shard_bytes", c_int64),
        ("progress", ProgressFn),
        ("progress_user", c_void_p),
    ]


class MergeResult(Sized):
    _enums_ = {"onto": MERGE_ONTO, "base_quant": QUANT, "dtype": QUANT, "expert_quant": QUANT}
    _fields_ = [
        ("struct_size", c_size_t),
        ("onto", c_int),
        ("base_quant", c_int),
        ("dtype", c_int),
        ("n_merged", c_int64),
        ("n_replaced", c_int64),
        ("head_untied", c_bool),
        ("n_tensors", c_int64),
        ("n_bytes", c_int64),
        ("expert_quant", c_int),
    ]


class ExportParams(Sized):
    _enums_ = {"format": EXPORT_FORMAT, "type": GGUF_TYPE}
    _fields_ = [
        ("struct_size", c_size_t),
        ("path", c_char_p),
        ("adapter", c_char_p),
        ("out", c_char_p),
        ("format", c_int),
        ("type", c_int),
        ("progress", ProgressFn),
        ("progress_user", c_void_p),
        ("check_only", c_bool),
    ]


class ExportResult(Sized):
    _enums_ = {"type": GGUF_TYPE}
    _fields_ = [
        ("struct_size", c_size_t),
        ("type", c_int),
        ("n_tensors", c_int64),
        ("n_bytes", c_int64),
        ("context_tokens", c_int64),
    ]


class ContextOptions(TypedDict, total=False):
    """The fields of qrun_context_params in qrun.h that are keywords here."""

    # 0: one for each CPU this process may use
    n_threads: int
    # "auto" (a GPU that can be used, else the CPU), "cpu", "cuda", or "cuda:1", the GPU that CUDA numbers so
    # (from 0, of those that CUDA_VISIBLE_DEVICES leaves), whichever rank this is. NULL is "auto".
    device: str
    # PORTABLE: "auto" is the CPU, and "cuda" is refused
    numerics: Numerics
    # For plans alone: "rtx-4090", "h100" … Plans are then for the memory of that GPU, which need not be there,
    # with host memory apart; the ops' workspace is that of the context's own device. Models cannot be opened. A
    # name that is not known is refused with the list. NULL: the memory there is.
    device_memory: str
    # Join the ranks that mpirun, srun or torchrun started, by the variables that they set. Ranks are processes
    # that run the same program, each with a device of its own, and train one model together. A process that was
    # started alone is the only rank. One context of a process may. Until their run has ended, all create the
    # context and open models alike, and where one of them fails, all do (QRUN_ERROR_RANK). One that destroys
    # its context before has left, and the others fail.
    ranks: bool
    # seconds that a rank may be silent while another waits for it, up to 1e6; 0: 1800
    collective_timeout: float


class ModelOptions(TypedDict, total=False):
    """The fields of qrun_model_params in qrun.h that are keywords here."""

    # of the linear layers
    quant: Quant
    # hold the output head (and a tied embedding) in INT8; else they keep their own type
    quant_head_int8: bool
    # compute type; F32 is for exact comparison
    dtype: Dtype
    # for measuring: only config.json has to exist
    random_weights: bool
    # refuse a model whose weights need more; 0: what the device has free
    memory_bytes: int
    # every matrix in the compute type, as full fine-tuning needs; quant AUTO, or that type
    trainable: bool
    offload_parameters: Offload
    # hold the embeddings of tokens (and a tied head) in INT8, a scale for each token; else they keep their own
    # type. Not with trainable
    quant_embedding_int8: bool
    # on several ranks (qrun_context_params): each holds a share of every layer's matrices. A layer is gathered
    # from all of them when it is due, the next one while it computes. For trainers with `zero` 3 alone: results
    # are the same to the bit
    shard_parameters: bool
    # Tensor parallelism: so many ranks (qrun_context_params, all of them) share every layer for generating.
    # Each has a part of the heads, with their K/V pages, and of the rows of every other matrix but the
    # embedding; answers are one rank's to the bit. All open the model and create a session alike. Rank 0
    # submits requests and gets events; the others call qrun_session_run, which follows rank 0 until it destroys
    # its session. 0 and 1: not shared.
    tensor_parallel: int
    # of plans alone: whose plan it is
    tensor_rank: int
    # Of a mixture of experts on a GPU: the experts' matrices are in host memory, and computed as expert_compute
    # says. AUTO: where the weights do not fit otherwise. Refused on a processor, and with trainable,
    # shard_parameters and offload_parameters.
    offload_experts: Offload
    # HOST needs offload_experts, and is not for tensor_parallel
    expert_compute: ExpertCompute


class SessionOptions(TypedDict, total=False):
    """The fields of qrun_session_params in qrun.h that are keywords here."""

    # run at once; 0: 64
    max_sequences: int
    # tokens of one step, prompt chunks included; 0: 512
    max_step_tokens: int
    # of a prompt, and of the tokens that are read; the pool has room for them, or the session is refused; 0:
    # the model's own, as far as memory allows. The last token of an answer is not read: it may be one more
    context_tokens: int
    # size of the K/V pool in tokens; 0: decided by the budget
    kv_tokens: int
    kv: Kv
    no_prefix_sharing: bool
    # how long sequences become, where that is known (qrun_request_measure): the pool gets pages for
    # max_sequences of them and no more; 0: not known
    sequence_tokens: int
    # host memory of the requests that wait for their start: about 400 bytes each, 4 a token of the prompt, and
    # the grammar of a schema; 0: 1 GiB. QRUN_ERROR_FULL beyond it, but one may always wait
    max_waiting_bytes: int
    # Drafts of the next tokens, which one step then checks: fewer steps, and the same answers to the bit.
    # "ngram" (NULL): from the text so far, where a step has room for them and they are right often enough. The
    # folder of a smaller model with the same tokenizer (QRUN_ERROR_ARGUMENT for another one): from that. "off":
    # none.
    speculate: str
    # Kept prefixes: full K/V pages that leave the pool go to host memory, from there to files, and come back
    # instead of being computed, with the same bits. of host memory; QRUN_PREFIX_CACHE_RAM; 0: none
    prefix_cache_bytes: int
    # a folder for the files, made where it is missing, which other sessions may use at the same time; NULL:
    # none
    cache_dir: str
    # of all files there at most; those not used for longest go first; 0: 8 GiB
    cache_dir_bytes: int


class RequestOptions(TypedDict, total=False):
    """The fields of qrun_request_params in qrun.h that are keywords here."""

    # prompt: do not add BOS and the like
    no_special: bool
    # prompt: the text of special tokens stays text, and does not become these tokens
    plain_text: bool
    # NULL: the base model
    adapter: str
    # Sampling. Penalties see prompt and answer (repetition) or the answer alone (presence, frequency). 0:
    # greedy
    temperature: float
    # 0, or -1: all
    top_k: int
    top_p: float
    # 1 and 0: off
    min_p: float
    # 1: off
    repetition_penalty: float
    presence_penalty: float
    # 0: off
    frequency_penalty: float
    # A JSON object of further rules for the next token, with the members and the meaning of
    # generation_config.json: suppress_tokens, begin_suppress_tokens, bad_words_ids, sequence_bias,
    # no_repeat_ngram_size, min_length, min_new_tokens, forced_bos_token_id, forced_eos_token_id,
    # exponential_decay_length_penalty, encoder_no_repeat_ngram_size and encoder_repetition_penalty (of the
    # prompt), typical_p, epsilon_cutoff and eta_cutoff. NULL: none. An id that is outside the vocabulary is
    # refused, but suppress_tokens and begin_suppress_tokens of the model's own file may have some. A request
    # whose rules leave no token fails.
    generation: Mapping[str, Any]
    # A JSON Schema, as text: every token keeps the answer the beginning of a JSON value that the schema
    # accepts, and the answer ends when the value does, whatever min_tokens says. One that max_tokens or a text
    # of `stop` cuts short ends with "length" or "stop" before. {"type": "object"} is any object. What cannot be
    # held is refused with its place. Not with ignore_eos. docs/generate.md lists the keywords. NULL: free text.
    json_schema: Union[str, Mapping[str, Any]]
    seed: int
    # [n_stop] texts that end the answer
    stop: Sequence[str]
    # [n_stop_token_ids] tokens that end the answer, as the model's end tokens do, and with ignore_eos too. The
    # answer does not have them
    stop_token_ids: Sequence[int]
    # of the answer, before which no end token and none of stop_token_ids comes, as min_new_tokens of
    # generation_json; the larger of both counts. A text of `stop` may end it before. 0: none
    min_tokens: int
    # 0: as far as max_length and the context allow
    max_tokens: int
    # of prompt and answer together, where max_tokens is 0; 0: as far as the context allows
    max_length: int
    # samples; 0 and 1: one
    n: int
    # −1: none; k ≥ 0: of the token and of the k best (at most 20)
    logprobs: int
    ignore_eos: bool
    # Of the prompt: −1: none; k ≥ 0: a PROMPT event for every token, with the k best of its place. All of the
    # prompt is computed, nothing of it is taken from an earlier one
    prompt_logprobs: int
    # generate nothing: DONE ("length") follows the prompt. Without n
    prompt_only: bool
    # an EMBEDDING event; needs prompt_only, and no prompt_logprobs
    pooling: Pooling


class TrainOptions(TypedDict, total=False):
    """The fields of qrun_train_params in qrun.h that are keywords here."""

    # of these files and of eval_data
    format: FileFormat
    # Names that the members of examples, or the columns of a table, have in all these files:
    # "prompt=question,completion=answer", ours first. Only what is named is read then. NULL: none.
    columns: str
    # the day that chat templates write, such as "2026-11-22"; NULL: that on which the run begins
    date: str
    # Weights of the files, in their order: a file's share of an epoch's examples is its weight over their sum.
    # An epoch is then as short as it can be with every example in it: the file with the most examples for its
    # weight gives each once, the others repeat theirs. NULL: none. n_data_weights: 0, or n_train_data. Each
    # above 0, up to 1e6.
    data_weights: Sequence[float]
    # [n_eval_data]: files of examples to evaluate on, in the same formats; NULL: none, or eval_split
    eval_data: Sequence[str]
    # without eval_data: the share of train_data set aside for evaluation; 0 to 0.9
    eval_split: float
    # skip and count lines that are not valid examples, instead of refusing the file
    skip_bad: bool
    # for tokenised data; NULL: inside out
    cache_folder: str
    # "all" (NULL), "attn", "mlp", "none", or module names: "q_proj,v_proj"
    target_modules: str
    # 1 to 512; 0: 16
    rank: int
    # the update is scaled by alpha / rank; up to 1e6; 0: twice the rank
    alpha: float
    # scale by alpha / sqrt(rank) instead
    rslora: bool
    # DoRA: a trained magnitude for every output of an adapted layer
    dora: bool
    # share of the adapters' inputs dropped in training; 0 (none) to 0.99
    lora_dropout: float
    # a PEFT LoRA folder to start from instead of a new adapter; rank, alpha, rslora, dora and target_modules
    # default to the adapter's. NULL: none
    adapter: str
    # Trained whole in addition to LoRA: "lm_head,embed_tokens"; NULL: none. Data may have tokens of the
    # tokenizer that the model has no row for. If both tables are named here, or with `full`, the tables then
    # get rows for all of the tokenizer's tokens; otherwise such data is refused. qrun_model_info's vocab_size
    # counts the new rows while the trainer lives, and for good after full training.
    modules_to_save: str
    # LoRA on the experts of a mixture too, as PEFT's target_parameters: "experts" (both), or their names, such
    # as "mlp.experts.gate_up_proj,mlp.experts.down_proj". Without lora_dropout and dora, as in PEFT. NULL:
    # none, or the adapter's.
    target_parameters: str
    # LoRA on these layers alone, counted from 0, as PEFT's layers_to_transform: "0,1,8-15". NULL: all, or the
    # adapter's.
    layers_to_transform: str
    # train every weight instead of an adapter, of a model opened as trainable
    full: bool
    # full: start from random weights, as the model family initialises them
    init_random: bool
    # init_random: standard deviation of the embeddings, up to 100; 0: that of a matrix
    init_embedding_std: float
    objective: Objective
    # DPO, SIMPO: the factor of differences in the logistic function; ORPO: the weight of the odds; up to 1e6;
    # 0: 0.1, and 2 with SIMPO
    beta: float
    # SIMPO: what the chosen answer's beta-fold mean should be ahead by; up to 1e6; 0: half of beta
    target_margin: float
    optimizer: Optimizer
    # of the learning rate, after warmup
    schedule: Schedule
    # the highest, up to 100; 0: 2e-4; full 2e-5, and with init_random 1e-3; with pairs of answers 1e-5; full
    # 1e-6
    learning_rate: float
    # below 1: share of all steps; else steps; up to 1e9
    warmup: float
    # of everything but norms and biases, as the Hugging Face Trainer does it; 0 to 1
    weight_decay: float
    # of norms and biases too
    decay_all: bool
    # LoRA+: rate of B and of vectors (DoRA's magnitudes) over that of A; up to 1e6; 0: 1
    loraplus_lr_ratio: float
    # scale gradients with a larger norm; 0: 1.0; negative: no clipping
    max_grad_norm: float
    # The factor of the loss, which gradients are divided by again in F32: small ones do not become zero on
    # their way. 1 to 2^32: constant, where 1 is none. QRUN_AUTO: dynamic, by the rule of torch's GradScaler,
    # but never below 1. 0: dynamic where the model computes in F16, else 1. A step whose gradients overflow at
    # a factor above 1 is skipped, and is no error.
    loss_scale: int
    # dynamic: that it begins with, 1 to 2^32; 0: 65536
    loss_scale_initial: int
    # dynamic: what it is multiplied by after a window of steps, 1 to 1024; 0: 2
    loss_scale_growth: float
    # dynamic: what an overflow multiplies it by, below 1; 0: 0.5
    loss_scale_backoff: float
    # dynamic: steps in a row without an overflow; up to 1e9; 0: 2000
    loss_scale_window: int
    # tokens of the longest example (a pair: of both answers with their prompts together), and of a packed row;
    # 2 (a pair: 4) to the model's context; 0: 1,024, or the model's context where that is smaller; QRUN_AUTO:
    # the longest example, as far as memory allows
    seq_len: int
    # how examples share a micro-batch; an example never attends to another
    batching: Batching
    # rows of seq_len in a micro-batch, examples packed into them; 1 to 4,096; 0: 1; QRUN_AUTO: as many as
    # memory allows, and no more than an epoch has for a micro-batch
    batch_size: int
    # GROUP: the most tokens of a micro-batch; 0: batch_size times seq_len
    batch_tokens: int
    # micro-batches of a step; 1 to 2^20; 0: 1
    grad_accum: int
    # sums that a step's gradients are added up in, each of micro-batches that are neighbours, before these are
    # added in a tree; a power of two, at most 1,024 and grad_accum; 0: 1. The result's bits depend on it. Where
    # the number of ranks divides it, each rank sends one sum in a step
    grad_sums: int
    # up to 1e6; 0: 1; max_steps wins
    epochs: float
    # up to 1e12; 0: by epochs
    max_steps: int
    # of the order of the data, the new weights and dropout
    seed: int
    # of activations: "auto" (NULL), "none", "full", "every:N", "attn", "mlp"
    checkpointing: str
    # optimizer states in host memory, copied to the device in pieces during the update
    offload_optimizer: bool
    # of `full`: gradients leave for host memory layer by layer of the backward pass. F32 weights and optimizer
    # states are there too: the processor updates, and sends back what the model computes with. Needed for
    # offload_parameters with `full`
    offload_gradients: bool
    # the inputs of recomputed layers (checkpointing full, every:N, auto) in host memory: copied there after the
    # forward pass, fetched ahead of the backward pass
    offload_activations: bool
    # rows that recomputed layers (checkpointing full or auto) have of all but attention at a time; 1 to 2^20. 0
    # or QRUN_AUTO: all, or where that does not fit the most that do, of 128, 256 … 8,192
    tile_rows: int
    # steps, up to 1e12; 0: only at the end. Needs examples to evaluate on
    eval_every: int
    # stop after this many evaluations in a row that did not improve on the best by more than the threshold; 0:
    # never. Needs eval_every
    early_stopping_patience: int
    # 0 to 1e9, in units of the loss
    early_stopping_threshold: float
    # qrun_trainer_run exports the parameters of the best evaluation, not the last ones; early stopping implies
    # it. As load_best_model_at_end of the Hugging Face Trainer
    load_best: bool
    # steps between checkpoints, up to 1e12; 0: only at the end
    save_every: int
    # how many of the last checkpoints stay, up to 1e6; 0: 2. That of the best evaluation stays too
    keep: int
    # begin again: the first checkpoint replaces those in out; otherwise training resumes from the last one.
    # Folders there that are not qrun's stay in either case
    restart: bool
    # ZeRO: 1: each rank holds the optimizer states of a share of the parameters, updates it and sends it to the
    # others. 2: gradients too go to the rank whose share they are of, layer by layer of the backward pass, and
    # no rank holds those of all layers. 3: the weights too are shared out, for which the model is opened with
    # shard_parameters. 0: each has all
    zero: int
    # for qrun_plan_training: how many ranks to plan for, up to 1,024; 0: one. A trainer has those that were
    # launched, and refuses another number
    n_ranks: int
    # of these, whose plan it is; QRUN_AUTO: that of the one that needs the most
    plan_rank: int


FUNCTIONS: List[Tuple[str, Any, List[Any]]] = [
    ("qrun_version", c_char_p, []),
    ("qrun_status_name", c_char_p, [c_int]),
    ("qrun_status_message", c_char_p, [c_int]),
    ("qrun_free", None, [c_void_p]),
    ("qrun_context_create", c_int, [POINTER(ContextParams), POINTER(c_void_p), POINTER(Error)]),
    ("qrun_context_destroy", None, [c_void_p]),
    ("qrun_context_device_info", c_int, [c_void_p, POINTER(DeviceInfo), POINTER(Error)]),
    ("qrun_context_measure_peaks", c_int, [c_void_p, c_double, POINTER(Peaks), POINTER(Error)]),
    ("qrun_context_profile_begin", c_int, [c_void_p, POINTER(Error)]),
    ("qrun_context_profile_end", c_int, [c_void_p, POINTER(POINTER(OpTime)), POINTER(c_int32), POINTER(Error)]),
    ("qrun_context_timeline_begin", c_int, [c_void_p, c_int64, POINTER(Error)]),
    ("qrun_context_timeline_end", None, [c_void_p]),
    ("qrun_context_timeline_get", c_int, [c_void_p, POINTER(Timeline), POINTER(Error)]),
    ("qrun_model_open", c_int, [c_void_p, POINTER(ModelParams), POINTER(c_void_p), POINTER(Error)]),
    ("qrun_model_destroy", None, [c_void_p]),
    ("qrun_model_get_info", c_int, [c_void_p, POINTER(ModelInfo), POINTER(Error)]),
    ("qrun_tokenizer_open", c_int, [c_void_p, c_char_p, POINTER(c_void_p), POINTER(Error)]),
    ("qrun_tokenizer_destroy", None, [c_void_p]),
    ("qrun_model_tokenizer", c_void_p, [c_void_p]),
    ("qrun_tokenize", c_int, [c_void_p, c_char_p, c_size_t, c_bool, c_bool, POINTER(POINTER(c_int32)),
     POINTER(c_int64), POINTER(Error)]),
    ("qrun_detokenize", c_int, [c_void_p, POINTER(c_int32), c_int64, c_bool, POINTER(c_char_p),
     POINTER(c_size_t), POINTER(Error)]),
    ("qrun_token_text", c_void_p, [c_void_p, c_int32, POINTER(c_size_t)]),
    ("qrun_token_bytes", c_int, [c_void_p, c_int32, POINTER(c_char_p), POINTER(c_size_t), POINTER(Error)]),
    ("qrun_tokenizer_vocab_size", c_int32, [c_void_p]),
    ("qrun_tokenizer_special_id", c_int32, [c_void_p, c_char_p]),
    ("qrun_tokenizer_has_chat_template", c_bool, [c_void_p]),
    ("qrun_chat_render", c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_bool, POINTER(c_char_p),
     POINTER(c_size_t), POINTER(Error)]),
    ("qrun_adapter_open", c_int, [c_void_p, c_char_p, c_char_p, POINTER(c_void_p), POINTER(Error)]),
    ("qrun_adapter_close", c_int, [c_void_p, POINTER(Error)]),
    ("qrun_adapter_name", c_char_p, [c_void_p]),
    ("qrun_known_model", c_char_p, [c_int32]),
    ("qrun_plan_session", c_int, [c_void_p, POINTER(ModelParams), POINTER(SessionParams),
     POINTER(POINTER(PlanEntry)), POINTER(c_int32), POINTER(PlanInfo), POINTER(Error)]),
    ("qrun_fit_session", c_int, [c_void_p, POINTER(ModelParams), POINTER(SessionParams), c_int,
     POINTER(FitResult), POINTER(Error)]),
    ("qrun_folder_inspect", c_int, [c_void_p, c_char_p, c_bool, POINTER(c_char_p), POINTER(Error)]),
    ("qrun_session_create", c_int, [c_void_p, POINTER(SessionParams), POINTER(c_void_p), POINTER(Error)]),
    ("qrun_session_destroy", None, [c_void_p]),
    ("qrun_request_params_from_model", c_int, [c_void_p, POINTER(RequestParams), POINTER(Error)]),
    ("qrun_session_submit", c_int, [c_void_p, POINTER(RequestParams), POINTER(c_uint64), POINTER(Error)]),
    ("qrun_session_submit_json", c_int, [c_void_p, c_char_p, c_size_t, c_char_p, POINTER(RequestParams), c_bool,
     c_char_p, POINTER(c_uint64), POINTER(Error)]),
    ("qrun_session_cancel", c_int, [c_void_p, c_uint64, POINTER(Error)]),
    ("qrun_session_step", c_int, [c_void_p, POINTER(c_bool), POINTER(Error)]),
    ("qrun_session_run", c_int, [c_void_p, POINTER(Error)]),
    ("qrun_session_event_descriptor", c_int, [c_void_p]),
    ("qrun_request_measure", c_int, [c_void_p, POINTER(RequestParams), POINTER(RequestSize), POINTER(Error)]),
    ("qrun_request_measure_json", c_int, [c_void_p, c_char_p, c_size_t, c_char_p, POINTER(RequestParams),
     c_bool, c_char_p, POINTER(RequestSize), POINTER(Error)]),
    ("qrun_session_get_stats", c_int, [c_void_p, POINTER(SessionStats), POINTER(Error)]),
    ("qrun_session_keep_prefixes", c_int, [c_void_p, POINTER(Error)]),
    ("qrun_session_plan", POINTER(PlanEntry), [c_void_p, POINTER(c_int32)]),
    ("qrun_session_eval", c_int, [c_void_p, c_char_p, c_size_t, POINTER(EvalParams), POINTER(EvalResult),
     POINTER(Error)]),
    ("qrun_session_eval_tokens", c_int, [c_void_p, POINTER(c_int32), c_int64, POINTER(EvalParams),
     POINTER(EvalResult), POINTER(Error)]),
    ("qrun_train_params_check", c_int, [POINTER(TrainParams), POINTER(Error)]),
    ("qrun_trainer_create", c_int, [c_void_p, POINTER(TrainParams), POINTER(c_void_p), POINTER(Error)]),
    ("qrun_trainer_destroy", None, [c_void_p]),
    ("qrun_trainer_get_info", c_int, [c_void_p, POINTER(TrainInfo), POINTER(Error)]),
    ("qrun_trainer_settle", c_int, [c_void_p, POINTER(TrainParams), POINTER(Error)]),
    ("qrun_trainer_plan", POINTER(PlanEntry), [c_void_p, POINTER(c_int32)]),
    ("qrun_plan_training", c_int, [c_void_p, POINTER(ModelParams), POINTER(TrainParams),
     POINTER(POINTER(PlanEntry)), POINTER(c_int32), POINTER(c_char_p), POINTER(PlanInfo), POINTER(Error)]),
    ("qrun_fit_training", c_int, [c_void_p, POINTER(ModelParams), POINTER(TrainParams), c_int,
     POINTER(FitResult), POINTER(Error)]),
    ("qrun_trainer_show_example", c_int, [c_void_p, c_int64, POINTER(c_char_p), POINTER(Error)]),
    ("qrun_trainer_run", c_int, [c_void_p, POINTER(Error)]),
    ("qrun_trainer_cancel", None, [c_void_p]),
    ("qrun_trainer_next", c_int, [c_void_p]),
    ("qrun_trainer_step", c_int, [c_void_p, POINTER(TrainMetrics), POINTER(c_bool), POINTER(Error)]),
    ("qrun_trainer_evaluate", c_int, [c_void_p, POINTER(c_double), POINTER(Error)]),
    ("qrun_trainer_save", c_int, [c_void_p, POINTER(Error)]),
    ("qrun_trainer_replan", c_int, [c_void_p, POINTER(Error)]),
    ("qrun_trainer_load_best", c_int, [c_void_p, POINTER(Error)]),
    ("qrun_trainer_export", c_int, [c_void_p, POINTER(Error)]),
    ("qrun_mixed_measure", c_int, [c_void_p, POINTER(MixedParams), POINTER(c_void_p), POINTER(Error)]),
    ("qrun_mixed_destroy", None, [c_void_p]),
    ("qrun_mixed_get_info", c_int, [c_void_p, POINTER(MixedInfo), POINTER(Error)]),
    ("qrun_mixed_get_matrix", POINTER(MixedMatrix), [c_void_p, c_int32]),
    ("qrun_mixed_json", c_char_p, [c_void_p]),
    ("qrun_quantize_folder", c_int, [c_void_p, POINTER(QuantizeParams), POINTER(Error)]),
    ("qrun_compare_outputs", c_int, [c_void_p, POINTER(CompareParams), POINTER(Difference), POINTER(Error)]),
    ("qrun_merge_folder", c_int, [c_void_p, POINTER(MergeParams), POINTER(MergeResult), POINTER(Error)]),
    ("qrun_export", c_int, [c_void_p, POINTER(ExportParams), POINTER(ExportResult), POINTER(Error)]),
]

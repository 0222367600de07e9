"""What the library reports, as structs of qrun.h. Written by generate_api.py; not to be edited."""

from __future__ import annotations

from ctypes import Structure
from dataclasses import dataclass
from typing import Any, Optional, Tuple, Type, TypeVar

Info = TypeVar("Info")


def info_of(kind: Type[Info], struct: Any) -> Info:
    """A copy, which does not live in the library."""
    found = {name: getattr(struct, name) for name in kind.__dataclass_fields__}  # type: ignore[attr-defined]
    return kind(**{name: _value_of(value, found.get("n_" + name, 0)) for name, value in found.items()})


def _value_of(value: Any, n_items: int) -> Any:
    if hasattr(value, "contents"):  # a pointer: to an array
        return tuple(_value_of(value[i], 0) for i in range(n_items))
    if isinstance(value, Structure):
        return info_of(globals()[type(value).__name__], value)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


@dataclass(frozen=True)
class DeviceInfo:
    """qrun_device_info of qrun.h."""

    # "cpu", "cuda"
    backend: str
    # "avx512-bf16", "sm_90" …
    isa: str
    n_threads: int
    # the GPU's, or the machine's (the container's, where that is smaller)
    memory_bytes: int
    # now
    memory_available_bytes: int
    # what the GPU's driver took of it for this process: 0 on the CPU, −1: not known (it is measured with
    # libnvidia-ml.so, which comes with the driver)
    context_bytes: int
    # Why "auto" took no GPU, one line; NULL: it took one, or was not asked to. Lives as long as the context.
    note: Optional[str]
    # "fastest", "portable"
    numerics: str
    # of n_ranks, from 0
    rank: int
    # 1: this process is the only one
    n_ranks: int
    # of a GPU: what of it is used now, and what not and why, one line; else empty
    features: str


@dataclass(frozen=True)
class ModelInfo:
    """qrun_model_info of qrun.h."""

    # resolved
    folder: str
    # "org/name@commit" where that is in the Hugging Face cache; else NULL
    hub_name: Optional[str]
    # "llama", "gemma3" …
    family: str
    # of the linear layers as held: "nf4-dq" …
    quant: str
    # "bf16", "int8" …
    head_format: str
    # "bf16", "f16" or "f32"
    dtype: str
    n_parameters: int
    # in linear layers held in 4 or 8 bits
    n_quantized_parameters: int
    # what every prompt token is multiplied by: linear layers but the head; of experts, those that a token goes
    # to
    n_linear_parameters: int
    weight_bytes: int
    # what a decode step of one sequence reads: not an embedding table that is not also the head, nor the
    # experts that the token does not go to
    step_weight_bytes: int
    n_layers: int
    hidden_size: int
    intermediate_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    # the longest sequence the model is made for
    context_tokens: int
    # of its windowed layers; 0: none
    sliding_window: int
    load_seconds: float
    has_tokenizer: bool
    has_chat_template: bool
    # weight_bytes are then those of tables, norms and stages
    offloads_parameters: bool
    # the same; this rank's share is in host memory
    shards_parameters: bool
    # The members of generation_config.json that transformers obeys and qrun does not, as "num_beams,
    # guidance_scale"; NULL: none.
    not_obeyed: Optional[str]
    # all but the experts that a token does not go to
    n_active_parameters: int
    n_experts: int
    n_experts_per_token: int
    # of layers with experts; 0: there are none
    expert_intermediate_size: int
    # parts of the folder that text needs none of, as "model.visual, mtp"; NULL: none
    left_out: Optional[str]
    # what linear layers are decoded from while they are read: "gptq", "Q8_0" …; NULL: none are
    packed_as: Optional[str]
    # "bf16", "int8" …
    embedding_format: str
    # weight_bytes are then without experts, but for the room of a layer's
    offloads_experts: bool
    # they are in host memory, and the processor computes them: without that room too
    computes_experts: bool
    # of experts in host memory, which way and why, as "fetched: as `expert_compute` says"; NULL: there are none
    expert_note: Optional[str]


@dataclass(frozen=True)
class PlanEntry:
    """qrun_plan_entry of qrun.h."""

    # "weights", "adapters", "kv pages", "activations", "workspace", "tables" or "logits"; of a training run
    # also "gradients" and "optimizer". "states": of sequences, where layers carry one along. "context": what a
    # GPU's driver takes for the process. "host": kept in host memory, or on its way from there to the device.
    category: str
    # of the context −1: not known
    bytes: int
    # of "host" on a GPU: it is in the machine's memory and does not count against memory_bytes
    is_apart: bool


@dataclass(frozen=True)
class PlanInfo:
    """qrun_plan_info of qrun.h."""

    fits: bool
    # of device memory, by the plan; if it does not fit, the least that is needed
    total_bytes: int
    # what that may be: memory_bytes, or a share of what is free, the context included
    budget_bytes: int
    # device memory that is free now, before the weights are loaded
    available_bytes: int
    # Of a session; 0 of a training run: the longest sequence
    context_tokens: int
    # that run at once
    max_sequences: int
    # that the K/V pool holds, of all sequences together
    pool_tokens: int
    # that run at once where each is as long as context_tokens
    full_sequences: int
    # Of a training run, for one micro-batch of full rows; 0 of a session: of matrix products and attention:
    # forward, recomputed and backward
    flops: float
    # to and from what is offloaded
    copied_bytes: int
    # the same in the update that ends a step
    update_copied_bytes: int
    # of recomputed layers, as chosen; 0: all rows at a time
    tile_rows: int
    # Of a training run on several ranks (qrun_train_ranks), or of a session of a model that they share: whose
    # plan this is
    rank: int
    # that it sends to others in a step of grad_accum micro-batches, or for each token that a session computes,
    # with its logits
    sent_bytes: int
    # that it would send if gradients were summed and parameters gathered around a ring
    ring_bytes: int
    # of the model, with any adapter's left out
    n_parameters: int
    # Of a session, as qrun_model_info.expert_note; empty: there is nothing to say.
    expert_note: str


@dataclass(frozen=True)
class SessionStats:
    """qrun_session_stats of qrun.h."""

    n_waiting: int
    # samples
    n_running: int
    # now, of max_waiting_bytes
    waiting_bytes: int
    n_finished: int
    n_preemptions: int
    # tokens a page holds
    page_tokens: int
    pages_total: int
    # used: referenced by a sequence; the rest is free or kept for reuse
    pages_used: int
    # of those used: by several sequences
    pages_shared: int
    # of the rest: kept for reuse
    pages_cached: int
    pages_peak: int
    prompt_tokens: int
    cached_prompt_tokens: int
    # so far
    completion_tokens: int
    # that came back from prefix_cache_bytes or cache_dir, after preemption too
    restored_prompt_tokens: int
    draft_tokens: int
    # speculate: computed, and found to be right
    accepted_draft_tokens: int
    steps: int
    # replayed: decode steps that a GPU replayed from a recording
    replayed_steps: int
    # of the steps: given to a GPU before the tokens of the one before were read
    ahead_steps: int
    # why steps are no longer recorded, if recording failed; else empty
    replay_failure: str
    # the first file of cache_dir that was not used or written, and why; else empty
    cache_note: str
    # spent inside steps
    step_seconds: float
    # of these, in steps that carried prompt tokens
    prefill_seconds: float
    # longest sequence this session accepts
    context_tokens: int
    planned_bytes: int
    # device memory of context, model and session: by the plan, and as measured
    peak_bytes: int
    # samples that run at once
    max_sequences: int


@dataclass(frozen=True)
class TrainFile:
    """qrun_train_file of qrun.h."""

    path: str
    # "messages", "prompt/completion", "prompt/completion messages", "alpaca", "text", "question/answer",
    # "input/output", "sharegpt", "preference", "preference messages"
    data_format: str
    # to train on, without those set aside for evaluation
    n_examples: int
    # of an epoch; more than n_examples where data_weights repeat them
    n_epoch_examples: int
    # Names of members that are not read, unless the chat template reads them, and of tools, calls and thoughts
    # that it leaves out: "mood", "likes"; "": there are none. unknown_line: of the first.
    unknown_members: str
    unknown_line: int


@dataclass(frozen=True)
class TrainInfo:
    """qrun_train_info of qrun.h."""

    # [n_files]: the train_data. Lent
    files: Tuple[TrainFile, ...]
    n_files: int
    # of the first file
    data_format: str
    n_examples: int
    n_eval_examples: int
    n_dropped: int
    n_truncated: int
    n_bad_lines: int
    # why the first of n_bad_lines was skipped, with its position; "": no line was
    first_bad: str
    n_tokens: int
    # of an epoch; with data_weights, of the first one
    n_target_tokens: int
    # parameters
    n_trainable: int
    total_steps: int
    # first_step > 1 after a resume
    first_step: int
    # Where a resumed run had fewer steps in all, it is extended, and the schedule is that of the longer run.
    # The two rates are that of the last step as it was, and that of the next one. Steps 0: it is not extended.
    earlier_total_steps: int
    earlier_learning_rate: float
    next_learning_rate: float
    # the step after which the evaluation was best; 0: no evaluation yet
    best_step: int
    # of it
    best_loss: float
    # evaluations in a row, up to now, without an improvement; early stopping counts them
    n_not_better: int
    stopped_early: bool
    # as chosen
    checkpointing: str
    # of recomputed layers, as chosen; 0: all rows at a time
    tile_rows: int
    planned_bytes: int
    # device memory, the context's included
    peak_bytes: int
    planned_host_bytes: int
    # host memory where it is separate (on a GPU); else 0
    peak_host_bytes: int
    # operations of matrix products and attention for a token of a full row: forward, recomputed and backward. A
    # multiply-add counts 2; frozen weights have no gradient
    flops_per_token: float
    # that this rank sends to others in a step with grad_accum micro-batches, by the plan
    step_sent_bytes: int
    # that it has sent so far, as counted, whatever for
    sent_bytes: int
    # by qrun_trainer_replan
    n_replans: int
    # a line about the last of them: what the run takes since, and where it continued; "": none. Lent
    replanned: str


@dataclass(frozen=True)
class Rewards:
    """qrun_rewards of qrun.h."""

    n_pairs: int
    # of the chosen answers: beta times what the objective compares
    chosen: float
    # of the rejected answers
    rejected: float
    # chosen − rejected
    margin: float
    # share of pairs whose chosen answer has the higher reward
    accuracy: float


@dataclass(frozen=True)
class TrainMetrics:
    """qrun_train_metrics of qrun.h."""

    # for on_metrics: loss, seconds and the tokens are those of an evaluation after the step
    is_evaluation: bool
    # 1 …
    step: int
    epoch: float
    # mean over the step's target tokens, or its pairs, before the update
    loss: float
    learning_rate: float
    # before clipping
    grad_norm: float
    # the factor on the loss for this step's gradients; 0: the run has none
    loss_scale: float
    # loss or gradient was not finite: parameters unchanged
    skipped: bool
    # if skipped, the first tensor whose gradient was not finite; NULL: none, or overflowed. Lent until the next
    # step
    nonfinite: Optional[str]
    # skipped because the loss scale may have been too large; a dynamic one is lower now. Not an error
    overflowed: bool
    n_tokens: int
    # of this step
    n_target_tokens: int
    # with pairs of answers; else all 0
    rewards: Rewards
    seconds: float
    # steps of the run so far that were skipped, for whatever reason, this one included
    n_skipped: int

"""Losses, rewards and gradients of pairs of answers: DPO, ORPO and SimPO through PEFT's adapters."""
import contextlib
from dataclasses import dataclass

import torch
from safetensors.torch import save_file
from torch.nn.functional import logsigmoid

import training_cases as cases
from training_goldens import _relative

RUNS = ("f32", "f64", "bf16")


@dataclass(frozen=True)
class Preference:
    name: str
    base: str
    adapter: str | None     # None: full fine-tuning
    objective: str
    covers: str
    beta: float
    target_margin: float = 0.0
    kept: tuple = ()        # parts of the names of the tensors to store; () stores all
    from_adapter: bool = False  # the reference has an adapter too: the same, with half of each value


PREFERENCES = [
    Preference("llama-dpo", "llama", "llama", "dpo", "an adapter on every linear layer", 0.1),
    Preference("llama-orpo", "llama", "llama", "orpo", "the same", 0.2),
    Preference("llama-simpo", "llama", "llama", "simpo", "the same", 2.0, 1.0),
    Preference("llama-dora-dpo", "llama", "llama-dora", "dpo", "a reference without magnitudes", 0.3),
    Preference("llama-dpo-from-adapter", "llama", "llama", "dpo", "a reference that has an adapter", 0.1, from_adapter=True),
    Preference("llama-dora-dpo-from-adapter", "llama", "llama-dora", "dpo", "the same of DoRA", 0.3, from_adapter=True),
    Preference("gemma3-dpo", "gemma3", "gemma3", "dpo", "windows", 0.1),
    Preference("qwen3-moe-experts-dpo", "qwen3-moe", "qwen3-moe-experts", "dpo", "adapters on experts", 0.1),
    Preference("llama-full-simpo", "llama", None, "simpo", "every weight; those of norms and of the first layer's attention "
               "are stored", 2.0, 0.5, kept=("norm", "layers.0.self_attn")),
]


def add_reference(model):
    """An adapter "ref" with half of each value of the one that is trained."""
    model.add_adapter("ref", model.peft_config["default"])
    values = dict(model.named_parameters())
    for name, value in values.items():
        if ".default" in name:
            values[name.replace(".default", ".ref")].data = value.detach() * 0.5
    model.set_adapter("default")


@contextlib.contextmanager
def as_reference(model):
    """The model with that adapter or, where there is none, without any."""
    if "ref" not in model.peft_config:
        with model.disable_adapter():
            yield
        return
    model.set_adapter("ref")
    yield
    model.set_adapter("default")


def answer(model, example, reference=False):
    """Sum of log p over the targets, and their number; by the reference, or by the model."""
    ids, labels = torch.tensor([example["ids"]]), torch.tensor(example["labels"])
    with as_reference(model) if reference else contextlib.nullcontext(), torch.set_grad_enabled(not reference):
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
    logits = logits if logits.dtype == torch.float64 else logits.float()
    nll = torch.nn.functional.cross_entropy(logits, labels[1:], ignore_index=cases.IGNORED, reduction="sum")
    return -nll, int((labels[1:] != cases.IGNORED).sum())


def log1mexp(x):
    return torch.log(-torch.expm1(x))


def pair_loss(case, model, chosen, rejected):
    """The loss of one pair, and the rewards of its answers, as TRL 1.16 has them."""
    (c, n_c), (r, n_r) = answer(model, chosen), answer(model, rejected)
    if case.objective == "dpo":     # trl/trainer/dpo_trainer.py, "sigmoid"
        rewards = [case.beta * (log_p - answer(model, example, reference=True)[0])
                   for log_p, example in ((c, chosen), (r, rejected))]
        return -logsigmoid(rewards[0] - rewards[1]), rewards
    c, r = c / n_c, r / n_r
    rewards = [case.beta * c, case.beta * r]
    if case.objective == "simpo":   # trl/experimental/cpo/cpo_trainer.py, with cpo_alpha 0
        return -logsigmoid(rewards[0] - rewards[1] - case.target_margin), rewards
    log_odds = (c - r) - (log1mexp(c) - log1mexp(r))    # trl/experimental/orpo/orpo_trainer.py; −log p of the answer
    return -c - case.beta * logsigmoid(log_odds), rewards


def _run(root, case, run):
    if case.adapter is None:
        model = cases.full_model(root, case.base, run)
    else:
        model = cases.adapted_model(root, case.base, case.adapter, run)
    if case.from_adapter:
        add_reference(model)
    examples = cases.micro_batch("pairs")
    losses, rewards = [], []
    for chosen, rejected in zip(examples[::2], examples[1::2]):
        with torch.autocast("cpu", torch.bfloat16) if run == "bf16-autocast" else contextlib.nullcontext():
            loss, pair = pair_loss(case, model, chosen, rejected)
        (loss / (len(examples) // 2)).backward()
        losses.append(loss.item())
        rewards.append([reward.item() for reward in pair])
    gradients = {name: p.grad.clone() for name, p in cases.trainable(model).items()}
    if case.adapter is None:
        gradients = cases.by_matrix(case.base, gradients)
    kept = {name: grad for name, grad in gradients.items() if not case.kept or any(k in name for k in case.kept)}
    return kept, losses, rewards


def make_preference(case, root):
    """Writes the F32 gradients of the mean loss; returns the index entry."""
    runs = ("f32", "f64", "bf16-autocast") if case.adapter is None else RUNS
    results = {run: _run(root, case, run) for run in runs}
    gradients, losses, rewards = results["f32"]
    gradients = {name: grad.float() for name, grad in gradients.items()}
    path = f"training/gradients/{case.name}.safetensors"
    save_file({f"{name}.grad": grad.contiguous() for name, grad in gradients.items()}, root / path)
    entry = {
        "name": case.name,
        "covers": case.covers,
        "base_folder": f"models/{case.base}",
        "adapter_folder": f"training/adapters/{case.adapter}" if case.adapter else None,
        "batch": "pairs",
        "objective": case.objective,
        "beta": case.beta,
        "target_margin": case.target_margin,
        "gradients": path,
        "losses": losses,
        "chosen": [pair[0] for pair in rewards],
        "rejected": [pair[1] for pair in rewards],
    }
    for run in runs[1:]:
        together, largest = _relative(results[run][0], gradients)
        entry[run] = {"loss": sum(results[run][1]) / len(losses), "gradient_error": together,
                      "max_tensor_error": largest}
    return entry

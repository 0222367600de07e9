#!/usr/bin/env python3
"""Makes the goldens of fine-tuning: see "Training" in README.md beside this file.

    python3 tests/golden/make_training_goldens.py [--only NAME ...] [--out FOLDER]

Needs what make_model_goldens.py needs, and its fixtures. A second run on the same machine writes identical files.
"""
import argparse
import pathlib
from functools import partial

from make_model_goldens import FIXTURES, merged, write_index   # sets the environment before torch is imported

import torch
import transformers

import adamw8bit_goldens
import mask_goldens
import preference_goldens
import training_cases
import training_goldens


def _tasks():
    """{section: {name: maker}}; a maker takes the root of the fixtures and returns an index entry."""
    return {
        "adapters": {name: partial(training_cases.make_adapter, adapter)
                     for name, adapter in training_cases.ADAPTERS.items()},
        "gradients": {case.name: partial(training_goldens.make_gradients, case)
                      for case in training_goldens.GRADIENTS},
        "preferences": {case.name: partial(preference_goldens.make_preference, case)
                        for case in preference_goldens.PREFERENCES},
        "curves": {case.name: partial(training_goldens.make_curve, case) for case in training_goldens.CURVES},
        "schedules": {f"{kind}-{warmup}": lambda root, kind=kind, warmup=warmup:
                      training_goldens.make_schedule(kind, warmup) for kind, warmup in training_goldens.SCHEDULES},
        "loss_scale": {name: lambda root, name=name: training_goldens.make_loss_scale(name)
                       for name in training_goldens.LOSS_SCALES},
        "adamw8bit": {case.name: partial(adamw8bit_goldens.make_adamw8bit, case)
                      for case in adamw8bit_goldens.CASES},
    }


def _data_entries():
    """The token ids of everything trained, one entry per batch."""
    entries = [{"name": name, "examples": training_cases.micro_batch(name)} for name in training_cases.MICRO_BATCHES]
    entries += [{"name": f"curve-{i}", "examples": batch} for i, batch in enumerate(training_cases.curve_batches())]
    return [entry | {"n_targets": training_cases.n_targets(entry["examples"])} for entry in entries]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME",
                        help="make the entries of these names in every section (masks: all of them)")
    parser.add_argument("--out", type=pathlib.Path, default=FIXTURES, help="where to write (default: %(default)s)")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for folder in ("adapters", "gradients", "curves", "adamw8bit"):
        (options.out / "training" / folder).mkdir(parents=True, exist_ok=True)

    sections = {"batches": _data_entries()}
    for section, makers in _tasks().items():
        sections[section] = []
        for name, make in makers.items():
            if options.only is None or name in options.only:
                print(f"{section}: {name}", flush=True)
                sections[section].append(make(options.out))
    if options.only is None or "masks" in options.only:
        print("masks")
        sections["mask_tokenizer"], sections["masks"] = mask_goldens.make_masks(options.out)
    index = options.out / "training" / "index.json"
    write_index(index, merged(index, sections) if options.only else sections)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Makes the golden fixtures that the C tests compare with: see README.md beside this file.

    python3 tests/golden/make_model_goldens.py [--only NAME ...] [--out FOLDER]

Needs torch, transformers, safetensors, peft and bitsandbytes (versions in README.md). A second run on the same
machine writes identical files.
"""
import argparse
import json
import os
import pathlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import torch  # noqa: E402  (the environment must be set first)
import transformers  # noqa: E402

from families import FAMILIES  # noqa: E402
from model_goldens import make_model_golden  # noqa: E402

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"


def write_index(path, sections):
    """One entry per line: readable diffs, and still small."""
    lines = ["{", ' "format": 1']
    for section, entries in sections.items():
        lines[-1] += ","
        rows = ",\n".join("  " + json.dumps(entry) for entry in entries)
        lines.append(f' "{section}": [\n{rows}\n ]')
    path.write_text("\n".join(lines + ["}"]) + "\n")


def merged(path, section, entries):
    """The entries of the index, with those just made replaced: --only leaves the others as they are."""
    old = json.loads(path.read_text()).get(section, []) if path.exists() else []
    made = {entry["name"]: entry for entry in entries}
    kept = [made.pop(entry["name"], entry) for entry in old]
    return kept + list(made.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="make these entries only")
    parser.add_argument("--out", type=pathlib.Path, default=FIXTURES, help="where to write (default: %(default)s)")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    (options.out / "goldens").mkdir(parents=True, exist_ok=True)

    def wanted(name):
        return options.only is None or name in options.only

    index = options.out / "goldens" / "index.json"
    models = []
    for family in FAMILIES:
        if wanted(family.name):
            models.append(make_model_golden(family, options.out))
            print(f"{family.name}: {len(models[-1]['prompts'])} prompts")
    write_index(index, {"models": merged(index, "models", models)})


if __name__ == "__main__":
    main()

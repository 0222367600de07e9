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
from functools import partial

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

import torch  # noqa: E402  (the environment must be set first)
import transformers  # noqa: E402

import bnb_goldens  # noqa: E402
import packed_goldens  # noqa: E402
import peft_goldens  # noqa: E402
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


def merged(path, sections):
    """The index on disk with the entries just made replaced: --only leaves the others as they are."""
    index = json.loads(path.read_text()) if path.exists() else {}
    result = {}
    for section in [key for key in index if key != "format"] + [key for key in sections if key not in index]:
        made = {entry["name"]: entry for entry in sections.get(section, [])}
        kept = [made.pop(entry["name"], entry) for entry in index.get(section, [])]
        result[section] = kept + list(made.values())
    return result


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

    tasks = {
        "models": {family.name: partial(make_model_golden, family) for family in FAMILIES},
        "quantised_folders": {name: partial(bnb_goldens.make_quantised_folder_golden, name)
                              for name in bnb_goldens.FOLDERS},
        "packed_folders": {name: partial(packed_goldens.make_packed_folder_golden, name)
                           for name in packed_goldens.FOLDERS},
        "adapters": {adapter.name: partial(peft_goldens.make_adapter_golden, adapter)
                     for adapter in peft_goldens.ADAPTERS}
        | {name: partial(peft_goldens.make_quantised_adapter_golden, name) for name in peft_goldens.QUANTISED},
    }
    sections = {}
    for section, makers in tasks.items():
        sections[section] = []
        for name, make in makers.items():
            if options.only is None or name in options.only:
                print(f"{section}: {name}", flush=True)
                sections[section].append(make(options.out))
    if options.only is None or "bitsandbytes" in options.only:
        print("bitsandbytes matrices")
        sections["bitsandbytes_matrices"] = bnb_goldens.make_matrix_goldens(options.out)
    index = options.out / "goldens" / "index.json"
    write_index(index, merged(index, sections) if options.only else sections)


if __name__ == "__main__":
    main()

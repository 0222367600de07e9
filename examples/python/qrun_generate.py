"""Several prompts at once, each answer as one line.

    python3 qrun_generate.py path/to/model "Once upon a time" "The sea is"

From a clone without `pip install ./python`: PYTHONPATH=python QRUN_LIBRARY=build/release/lib/libqrun.so.0.
"""

import sys

import qrun


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit("usage: qrun_generate.py MODEL PROMPT...")
    path, *prompts = sys.argv[1:]
    try:
        with qrun.Model(path) as model:
            for prompt, answer in zip(prompts, model.generate(prompts, max_tokens=40, temperature=0)):
                print(f"{prompt}|{answer}")
    except qrun.Error as error:
        sys.exit(f"qrun_generate.py: {error}")


if __name__ == "__main__":
    main()

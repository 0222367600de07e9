"""The `qrun` program, which comes with the package."""

from __future__ import annotations

import os
import pathlib
import sys


def main() -> None:
    """Becomes the program."""
    program = pathlib.Path(__file__).parent / "bin" / "qrun"
    if not program.exists():
        sys.exit(f"qrun: there is no {program}; the program comes with an installed package")
    os.execv(program, ["qrun", *sys.argv[1:]])


if __name__ == "__main__":
    main()

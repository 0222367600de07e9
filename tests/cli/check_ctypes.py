"""Compares the ctypes structures of the Python examples with the C structs of qrun.h: names, types and order of every
field. The size alone would not show a field that fell into padding.

    python3 check_ctypes.py path/to/qrun.h example.py ...
"""

import ctypes
import importlib.util
import pathlib
import re
import sys

# By type of C, and by ctypes' own letter of a type.
C_KINDS = {"bool": "bool", "int32_t": "signed 4", "int64_t": "signed 8", "uint64_t": "unsigned 8",
           "size_t": "unsigned 8", "float": "float 4", "double": "float 8"}
LETTERS = {"?": "bool", "i": "signed", "l": "signed", "q": "signed", "I": "unsigned", "L": "unsigned",
           "Q": "unsigned", "f": "float", "d": "float", "z": "pointer", "P": "pointer"}


def kind_of_c(text, is_pointer, header):
    if is_pointer or text.endswith("_fn"):
        return "pointer"
    if re.search(rf"typedef enum {text} ", header):
        return "signed 4"
    return C_KINDS.get(text, text)


def struct_of(kind):
    """TrainData is qrun_train_data."""
    return "qrun" + re.sub("([A-Z])", r"_\1", kind.__name__).lower()


def kind_of_ctypes(kind):
    if issubclass(kind, ctypes.Structure):
        return struct_of(kind)
    letter = getattr(kind, "_type_", "P")       # a function or a pointer to a struct has none, or a class
    name = LETTERS.get(letter, "pointer") if isinstance(letter, str) else "pointer"
    return name if name in ("bool", "pointer") else f"{name} {ctypes.sizeof(kind)}"


def fields_of(header, name):
    """[(field, kind)] of a struct of the header."""
    body = re.search(rf"struct {name} {{(.*?)\n}}", header, re.S)
    if body is None:
        sys.exit(f"qrun.h has no struct {name}")
    fields = []
    for declaration in body.group(1).split(";"):
        words = declaration.split()
        if not words:
            continue
        kind, names = re.match(r"(?:const )?(?:struct )?(\w+)\b(.*)", " ".join(words)).groups()
        for field in names.split(","):
            bare = field.replace("*", " ").replace("const", " ").split("[")[0].strip()
            fields.append((bare, kind_of_c(kind, "*" in names.split(",")[0] or "*" in field, header)))
    return fields


def check(header, path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for value in vars(module).values():
        if not (isinstance(value, type) and issubclass(value, ctypes.Structure)) or value.__module__ != path.stem:
            continue
        name = struct_of(value)
        if name == "qrun_error":    # has an array
            continue
        ours = [(field, kind_of_ctypes(kind)) for field, kind in value._fields_]
        theirs = fields_of(header, name)
        for place, (mine, c) in enumerate(zip(ours, theirs)):
            if mine != c:
                sys.exit(f"{path.name}: field {place} of {value.__name__} is {mine}, in qrun.h it is {c}")
        if len(ours) != len(theirs):
            sys.exit(f"{path.name}: {value.__name__} has {len(ours)} fields, {name} has {len(theirs)}")


def main():
    header = re.sub(r"/\*.*?\*/", "", pathlib.Path(sys.argv[1]).read_text(), flags=re.S)
    header = "\n".join(line for line in header.splitlines() if not line.startswith("#"))
    for path in sys.argv[2:]:
        check(header, pathlib.Path(path))


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    main()

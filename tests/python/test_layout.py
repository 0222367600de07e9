"""The package's declarations are those of qrun.h: the file is what generate_api.py writes, and a C compiler gives every
struct, field, choice and _INIT macro the same size, place and bytes."""

import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["QRUN_SOURCE"])
sys.path.insert(0, str(SOURCE / "python"))

import generate_api  # noqa: E402
from qrun import _api  # noqa: E402

HEADER = generate_api.parse((SOURCE / "include" / "qrun.h").read_text())


def filled(struct, begin=0):
    """The offsets of a struct's bytes that are not padding, which may have any value in C."""
    for name, kind in struct._fields_:
        first = begin + getattr(struct, name).offset
        if issubclass(kind, ctypes.Structure):
            yield from filled(kind, first)
        else:
            yield from range(first, first + ctypes.sizeof(kind))


def ours():
    """[(what a C program prints, what we expect it to be)]"""
    rows = []
    text = (SOURCE / "include" / "qrun.h").read_text()
    for name, fields in HEADER.structs.items():
        struct = getattr(_api, generate_api.class_name(name))
        rows.append((f"sizeof(struct {name})", ctypes.sizeof(struct)))
        for field in fields:
            place = getattr(struct, field.name)
            rows.append((f"offsetof(struct {name}, {field.name})", place.offset))
            rows.append((f"sizeof(((struct {name} *)0)->{field.name})", place.size))
        if f"#define {name.upper()}_INIT" in text and name != "qrun_error":
            made = bytes(struct())
            rows += [(f"((const unsigned char *)&(struct {name}){name.upper()}_INIT)[{i}]", made[i])
                     for i in filled(struct)]
    for enum, members in HEADER.enums.items():
        words = getattr(_api, enum.upper()[5:])
        rows += [(member, value) for (member, _), value in zip(members, words.values())]
    rows += [(f"QRUN_{name}", value) for name, value in _api.STATUS.items()]
    return rows


class Layout(unittest.TestCase):
    def test_generated(self):
        for name, wanted in generate_api.generate(HEADER).items():
            self.assertEqual((SOURCE / "python/qrun" / name).read_text(), wanted, "python3 python/generate_api.py")

    def test_compiled(self):
        rows = ours()
        self.assertGreater(len(rows), 1000)
        with tempfile.TemporaryDirectory() as folder:
            source, program = os.path.join(folder, "layout.c"), os.path.join(folder, "layout")
            prints = "\n".join(f'    printf("%lld\\n", (long long)({what}));' for what, _ in rows)
            pathlib.Path(source).write_text("#include <stddef.h>\n#include <stdio.h>\n#include \"qrun.h\"\n"
                                            f"int main(void) {{\n{prints}\n    return 0;\n}}\n")
            subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-I", str(SOURCE / "include"), source, "-o",
                            program], check=True)
            printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
        for (what, value), theirs in zip(rows, printed):
            self.assertEqual(value, int(theirs), what)
        self.assertEqual(len(rows), len(printed))

    def test_everything_is_declared(self):
        """Every line of the header that declares something was understood."""
        text = (SOURCE / "include" / "qrun.h").read_text()
        self.assertEqual({name for name, _, _ in _api.FUNCTIONS},
                         {line.split("(")[0].split()[-1].lstrip("*") for line in text.splitlines()
                          if line.startswith("QRUN_API")})
        self.assertEqual(len(HEADER.structs), sum(
            1 for line in text.splitlines() if line.startswith(("typedef struct", "struct")) and line.endswith("{")))
        self.assertEqual({kind.status for kind in _api_classes()} - {"ERROR_INTERNAL"},
                         set(_api.STATUS) - {"OK", "ERROR_INTERNAL"})


def _api_classes():
    from qrun import errors
    return [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.Error)]


if __name__ == "__main__":
    unittest.main()

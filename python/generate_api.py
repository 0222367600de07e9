"""Writes what include/qrun.h declares: qrun/_api.py in the words of ctypes, and qrun/info.py, what the library reports,
in those of Python.

    python3 generate_api.py            writes them
    python3 generate_api.py --check    exit code 1 if they differ from what would be written

Run it after a change of qrun.h. A test compares the results, and every size and offset, with what a C compiler says.
"""

from __future__ import annotations

import pathlib
import re
import sys
import textwrap
from typing import Dict, List, NamedTuple, Tuple

HERE = pathlib.Path(__file__).resolve().parent
HEADER = HERE.parent / "include" / "qrun.h"
PACKAGE = HERE / "qrun"

SCALARS = {"bool": ("c_bool", "bool"), "int": ("c_int", "int"), "int32_t": ("c_int32", "int"),
           "int64_t": ("c_int64", "int"), "uint64_t": ("c_uint64", "int"), "size_t": ("c_size_t", "int"),
           "float": ("c_float", "float"), "double": ("c_double", "float")}
# Text that has a length and no NUL at its end: ctypes would read on.
NOT_TERMINATED = {("qrun_event", "text"), ("qrun_token_text", "")}
# Structs whose fields become keywords of Python, and fields of them that the package sets itself.
OPTIONS = {"qrun_context_params": "", "qrun_model_params": "path", "qrun_session_params": "memory_bytes",
           "qrun_request_params": "prompt token_ids messages_json tools_json template_json answer_forms n_answer_forms",
           "qrun_train_params": "train_data out random_tokens memory_bytes"}
# Structs that the library fills, as dataclasses of Python.
INFOS = ["qrun_device_info", "qrun_model_info", "qrun_plan_entry", "qrun_plan_info", "qrun_session_stats",
         "qrun_train_file", "qrun_train_info", "qrun_rewards", "qrun_train_metrics"]


class Field(NamedTuple):
    name: str
    base: str       # "char", "int32_t", "qrun_quant", "qrun_train_data" …
    stars: int
    length: str     # of an array in the struct; "": none
    comment: str


class Function(NamedTuple):
    name: str
    result: Field
    arguments: List[Field]


class Header(NamedTuple):
    statuses: List[Tuple[str, int]]
    enums: Dict[str, List[Tuple[str, int]]]
    callbacks: Dict[str, Function]
    structs: Dict[str, List[Field]]
    defaults: Dict[str, Dict[str, str]]     # of the _INIT macros, what is not zero
    functions: List[Function]


def plain(comment: str) -> str:
    lines = [re.sub(r"^\s*\*(?!/) ?", "", line) for line in comment.split("\n")]
    return " ".join(" ".join(lines).split())


def declaration(text: str, comment: str = "") -> List[Field]:
    """The fields of "const char *a, *b" or "int32_t x[4]"."""
    words = " ".join(re.sub(r"\b(const|struct)\b", " ", text).split())
    match = re.match(r"(\w+)\s*(.*)", words)
    assert match is not None, text
    fields = []
    for part in match.group(2).split(",") if match.group(2) else [""]:
        name, _, length = part.replace(" ", "").partition("[")
        fields.append(Field(name.lstrip("*"), match.group(1), name.count("*"), length.rstrip("]"), comment))
    return fields


def struct_fields(body: str) -> List[Field]:
    """A comment after a field belongs to it; one before it too, where the line begins with it."""
    fields: List[Field] = []
    before = ""
    for match in re.finditer(r"/\*(.*?)\*/|([^;/]+);", body, re.S):
        comment, field = match.groups()
        if field is not None:
            fields += declaration(field, before)
            before = ""
        elif fields and "\n" not in body[body.rfind(";", 0, match.start()):match.start()]:
            fields[-1] = fields[-1]._replace(comment=plain(fields[-1].comment + " " + comment))
        else:
            before = plain(comment)
    return fields


def arguments_of(text: str) -> List[Field]:
    return [] if text.strip() in ("", "void") else [declaration(part)[0] for part in text.split(",")]


def parse(text: str) -> Header:
    bare = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    statuses = [(name, int(value)) for name, value in re.findall(r"X\((\w+), (-?\d+), \"", bare)]
    enums = {}
    for name, body in re.findall(r"typedef enum (\w+) \{(.*?)\} \1;", bare, re.S):
        members = re.findall(r"(\w+) = (-?\d+)", body)
        if members:
            enums[name] = [(member, int(value)) for member, value in members]
    callbacks = {}
    for result, name, arguments in re.findall(r"typedef (\w+) \(\*(\w+)\)\((.*?)\);", bare, re.S):
        callbacks[name] = Function(name, declaration(result)[0], arguments_of(arguments))
    structs = {name: struct_fields(body)
               for name, body in re.findall(r"\bstruct (\w+) \{\n(.*?)\n\}", text, re.S)}
    defaults = {}
    for macro, body in re.findall(r"#define (QRUN_\w+)_INIT((?:.*\\\n)*.*)\n", bare):
        pairs = [(name, value.rstrip("F")) for name, value in re.findall(r"\.(\w+) = (-?[\d.]+F?)", body)]
        defaults[macro.lower()] = {name: value for name, value in pairs if float(value) != 0}
    functions = []
    for result, name, arguments in re.findall(r"QRUN_API ([\w *]+?)(qrun_\w+)\((.*?)\);", bare, re.S):
        functions.append(Function(name, declaration(result)[0], arguments_of(arguments)))
    return Header(statuses, enums, callbacks, structs, defaults, functions)


def class_name(struct: str) -> str:
    """TrainData is qrun_train_data."""
    return "".join(part.capitalize() for part in struct.split("_")[1:])


def choices(members: List[Tuple[str, int]]) -> Dict[str, int]:
    """{"nf4-dq": 5}: what QRUN_QUANT_NF4_DQ is called in Python, as in the options of the program."""
    first, last = min(members)[0], max(members)[0]
    n_same = next((i for i, (a, b) in enumerate(zip(first, last)) if a != b), min(len(first), len(last)))
    prefix = first[:n_same].rfind("_") + 1
    return {name[prefix:].lower().replace("_", "-"): value for name, value in members}


class Writer:
    def __init__(self, header: Header) -> None:
        self.header = header
        self.lines: List[str] = []
        self.written: List[str] = []

    def kind(self, owner: str, field: Field) -> str:
        """The type of ctypes; what it is made of is written before."""
        base, stars, header = field.base, field.stars, self.header
        if (owner, field.name) in NOT_TERMINATED or base == "void" and stars == 1:
            made, stars = "c_void_p", 0
        elif base == "char" and stars > 0:
            made, stars = "c_char_p", stars - 1
        elif base == "char":
            made = "c_char"
        elif base in SCALARS:
            made = SCALARS[base][0]
        elif base in header.enums or base == "qrun_status":
            made = "c_int"
        elif base in header.structs:
            self.struct(base)
            made = class_name(base)
        elif base in header.callbacks:
            self.callback(base)
            made = class_name(base)
        elif base == "void":
            return "None"
        else:
            made, stars = "c_void_p", stars - 1     # an object of the library
        for _ in range(stars):
            made = f"POINTER({made})"
        return f"{made} * {field.length}" if field.length else made

    def callback(self, name: str) -> None:
        if name in self.written:
            return
        self.written.append(name)
        function = self.header.callbacks[name]
        kinds = [self.kind(name, function.result), *(self.kind(name, a) for a in function.arguments)]
        self.lines += [f"{class_name(name)} = CFUNCTYPE({', '.join(kinds)})", "", ""]

    def struct(self, name: str) -> None:
        if name in self.written:
            return
        self.written.append(name)
        fields = self.header.structs[name]
        kinds = [(field.name, self.kind(name, field)) for field in fields]
        base = "Sized" if fields[0].name == "struct_size" else "Structure"
        self.lines += [f"class {class_name(name)}({base}):"]
        enums = {field.name: field.base for field in fields if field.base in self.header.enums}
        if enums:
            pairs = ", ".join(f'"{field}": {enum.upper()[5:]}' for field, enum in enums.items())
            self.lines += [f"    _enums_ = {{{pairs}}}"]
        if self.header.defaults.get(name):
            pairs = ", ".join(f'"{field}": {value}' for field, value in self.header.defaults[name].items())
            self.lines += [f"    _defaults_ = {{{pairs}}}"]
        self.lines += ["    _fields_ = [", *(f'        ("{field}", {kind}),' for field, kind in kinds), "    ]", "", ""]

    def enum(self, name: str) -> None:
        members = choices(self.header.enums[name])
        pairs = ", ".join(f'"{word}": {value}' for word, value in members.items())
        words = ", ".join(f'"{word}"' for word in members)
        self.lines += [f"{name.upper()[5:]} = {{{pairs}}}", f"{class_name(name)} = Literal[{words}]", ""]

    def option_fields(self, struct: str, without: List[str]) -> List[Tuple[Field, str]]:
        """The fields of a struct, and of the structs in it, that are keywords, with their types in Python."""
        fields = self.header.structs[struct]
        names = {field.name for field in fields}
        found: List[Tuple[Field, str]] = []
        for field in fields:
            name, base = field.name, field.base
            if base in self.header.structs and field.stars == 0:
                found += self.option_fields(base, without)
                continue
            companion = re.sub("^(n|has)_", "", re.sub("_bytes$", "", name) if base == "size_t" else name)
            if name in ("struct_size", *without) or base in ("void", *self.header.callbacks) or \
                    companion != name and companion in names:
                continue
            if name.endswith("_json"):
                kind = "Mapping[str, Any]"
                field = field._replace(name=name[:-5])
            elif name == "json_schema":
                kind = "Union[str, Mapping[str, Any]]"
            elif base == "char":
                kind = "str" if field.stars == 1 else "Sequence[str]"
            elif base in SCALARS:
                kind = SCALARS[base][1] if field.stars == 0 else f"Sequence[{SCALARS[base][1]}]"
            elif base in self.header.enums:
                kind = class_name(base)
            else:
                kind = "str"                        # the name of an object: an adapter
            found.append((field, kind))
        return found

    def options(self, struct: str, without: str) -> None:
        name = class_name(struct).replace("Params", "Options")
        self.lines += [f"class {name}(TypedDict, total=False):",
                       f'    """The fields of {struct} in qrun.h that are keywords here."""', ""]
        for field, kind in self.option_fields(struct, without.split()):
            self.lines += textwrap.wrap(field.comment, 112, initial_indent="    # ", subsequent_indent="    # ")
            self.lines += [f"    {field.name}: {kind}"]
        self.lines += ["", ""]

    def functions(self) -> None:
        rows = []
        for function in self.header.functions:
            result = self.kind(function.name, function.result._replace(name=""))
            kinds = ", ".join(self.kind(function.name, argument) for argument in function.arguments)
            rows += textwrap.wrap(f'("{function.name}", {result}, [{kinds}]),', 112, initial_indent="    ",
                                  subsequent_indent="     ", break_long_words=False)
        self.lines += ["FUNCTIONS: List[Tuple[str, Any, List[Any]]] = [", *rows, "]"]


HEAD = '''"""What qrun.h declares, in the words of ctypes. Written by generate_api.py; not to be edited."""

from __future__ import annotations

from ctypes import CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64
from ctypes import c_size_t, c_uint64, c_void_p, sizeof
from typing import Any, ClassVar, Dict, List, Literal, Mapping, Sequence, Tuple, TypedDict, Union


class Sized(Structure):
    """A struct that begins with struct_size, as its _INIT macro of qrun.h makes it."""

    _defaults_: ClassVar[Dict[str, Any]] = {}

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{"struct_size": sizeof(self), **self._defaults_, **fields})

'''


INFO_HEAD = '''"""What the library reports, as structs of qrun.h. Written by generate_api.py; not to be edited."""

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
'''


def dataclass_lines(name: str, fields: List[Field]) -> List[str]:
    lines = ["", "", "@dataclass(frozen=True)", f"class {class_name(name)}:", f'    """{name} of qrun.h."""', ""]
    names = {field.name for field in fields}
    for field in fields:
        if field.name == "struct_size" or field.base not in ("char", *SCALARS, *INFOS):
            continue
        kind = (SCALARS[field.base][1] if field.base in SCALARS else class_name(field.base) if field.base in INFOS
                else "str")
        if field.stars and f"n_{field.name}" in names:
            kind = f"Tuple[{kind}, ...]"
        elif field.stars and "NULL" in field.comment:
            kind = f"Optional[{kind}]"
        lines += textwrap.wrap(field.comment, 112, initial_indent="    # ", subsequent_indent="    # ")
        lines += [f"    {field.name}: {kind}"]
    return lines


def generate(header: Header) -> Dict[str, str]:
    """The text of each file of the package."""
    writer = Writer(header)
    pairs = ", ".join(f'"{name}": {value}' for name, value in header.statuses)
    writer.lines += textwrap.wrap(f"STATUS = {{{pairs}}}", 112, subsequent_indent="    ") + [""]
    for name in header.enums:
        writer.enum(name)
    writer.lines += [""]
    for name in header.structs:
        writer.struct(name)
    for name, without in OPTIONS.items():
        writer.options(name, without)
    writer.functions()
    infos = [line for name in INFOS for line in dataclass_lines(name, header.structs[name])]
    return {"_api.py": HEAD + "\n" + "\n".join(writer.lines) + "\n", "info.py": INFO_HEAD + "\n".join(infos) + "\n"}


def main() -> int:
    for name, wanted in generate(parse(HEADER.read_text())).items():
        path = PACKAGE / name
        if "--check" not in sys.argv[1:]:
            path.write_text(wanted)
        elif path.read_text() != wanted:
            print(f"{path} is not that of qrun.h; python3 python/generate_api.py writes it")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

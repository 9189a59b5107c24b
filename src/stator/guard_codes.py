"""What origins and guards are made of, as one list of numbers for Python and C: `_native/guard_codes.h` is written from
it, by this file alone, since the package needs the extension that is made of that:

    python src/stator/guard_codes.py > src/stator/_native/guard_codes.h

`Edge` and `Fact` are what recordings speak of. FETCHES and CHECKS are what guards in C do; which edge becomes which
fetch, and which fact which check, is in the rows of `replay/guard_edges.py` and `replay/guard_facts.py`.
"""

from __future__ import annotations

import enum


class Edge(enum.IntEnum):
    """How a value is reached from its parent's value."""

    LOCAL = 0  # argument slot `key = (index, name)` of the root; no parent
    CONST = 1  # the object `key` itself (a class, a globals dict, a module); no parent
    ATTR = 2  # getattr(parent, key), used only for names that run no user code (`__dict__`, `cell_contents`, …)
    ITEM = 3  # parent[key] of a builtin container (or of the container base of a subclass)
    MRO = 4  # the entry `key` in the class dicts of parent's MRO, no descriptor invoked
    SUPER = 5  # likewise, behind class key[0] in the MRO; name key[1]
    SLOT = 6  # key.__get__(parent) of a C descriptor `key`
    CALL = 7  # parent(*key): cached functions, weak references, state readers
    KEYED = 8  # parent[k] of a dict, where k is the value of the origin `key`: an object, found by its identity
    COMPUTED = 9  # key(values): a number, computed from those of earlier origins; the parent is a constant


class Fact(enum.IntEnum):
    """What a check asks of a value."""

    TYPE = 0  # type(v) is expected
    EQUAL = 1  # same type and value, deep for tuples
    IS = 2  # v is expected
    TENSOR = 3  # TensorFacts hold
    LEN = 4  # len(v) == expected
    KEYS = 5  # tuple(v) == expected (dict or set, in order)
    HAS = 6  # expected in v
    LACKS = 7  # expected not in v
    CODE = 8  # v.__code__, v.__globals__ are expected[0], expected[1]
    SAME = 9  # v is the value of the origin with index `expected`
    OTHER = 10  # v is not the value of the origin with index `expected`
    SPECIALS = 11  # the special methods of class v are as in expected (version, {name: object})
    NO_ENTRY = 12  # the MRO of class v has no entry `expected`
    UNSET = 13  # cell v is empty
    VALUE = 16  # the number or text that v is, as an instance of a subclass of expected[0], is expected[1]
    UNHOOKED = 15  # a call of module v comes to `forward` at once
    NO_SLOT = 14  # the slot whose descriptor is expected is empty
    HAS_KEYED = 17  # expected: two origins, a dict and an object, of which v is the later; the object is a key of it
    LACKS_KEYED = 18  # it is none
    OWN_ENTRY = 19  # class v itself has an entry expected[0], or has none, as expected[1] says


# How C code reaches a value.
FETCHES = {
    "LOCAL": "argument slot `number`",
    "CONST": "the object `key`",
    "NAMESPACE": "the instance dict",
    "KEY": "item `key`, a str or int, of a dict",
    "INDEX": "item `number` of a list or tuple",
    "MEMBER": "what the member descriptor `key` finds",
    "FUNCTION": "part `number` of a Python function",
    "SELF": "what a builtin function is bound to",
    "CELL": "contents of a cell",
    "MRO": "entry `key` of a class",
    "SUPER": "entry key[1] of a class, behind class key[0]",
    "CALL": "key(), of a C function that runs no Python code",
    "GRAD": "the gradient of a leaf tensor",
    "KEYED": "item of a dict: its key is the very object that node `number` gave",
}

# What C code asks of a value.
CHECKS = {
    "TYPE": "its type is `expected`",
    "EQUAL": "a constant of the same type and value",
    "IS": "it is `expected`",
    "TENSOR": "the facts of a tensor",
    "LEN": "a container's length",
    "KEYS": "keys or items, in order",
    "HAS": "a dict has this key",
    "LACKS": "a dict lacks this key",
    "CODE": "a function's code and globals",
    "SPECIALS": "a class's version, for special methods; Python decides if it has moved",
    "NO_ENTRY": "no class in the MRO has this entry",
    "UNSET": "a cell is empty",
    "NO_SLOT": "a member is unset",
    "UNHOOKED": "of the instance dict of a module: a call comes to `forward` at once",
    "ASK": "only Python can tell",
}

# When a check need not be made again.
LASTING = {
    "LIVE": "never",
    "OWN": "if the version of the value itself has not moved",
    "FIXED": "if the value is the very object that was checked before",
}

# Which kind of version a value has.
VERSIONS = {"NONE": "none", "DICT": "that of a dict", "TYPE": "that of a class"}

PARTS = {
    "CODE": "`__code__`",
    "DEFAULTS": "`__defaults__`",
    "KWDEFAULTS": "`__kwdefaults__`",
    "CLOSURE": "`__closure__`",
    "GLOBALS": "`__globals__`",
    "NAME": "`__name__`",
    "QUALNAME": "`__qualname__`",
    "ANNOTATIONS": "`__annotations__`",
}


def header() -> str:
    """The text of `_native/guard_codes.h`."""
    parts = [
        "/* Written from `src/stator/guard_codes.py`, which says how: change it there. */",
        "/* clang-format off */",
        "#ifndef STATOR_GUARD_CODES_H",
        "#define STATOR_GUARD_CODES_H",
        "",
        *_members("Origins: how a value is reached from its parent's, `Edge` in Python.", Edge),
        *_members("Their checks: `Fact` in Python.", Fact),
        *_list("Guards: how a value is reached.", "FETCH", FETCHES),
        *_list("What is asked of it.", "CHECK", CHECKS),
        *_list("When a check need not be made again.", "LASTING", LASTING),
        *_list("Which kind of version a value has.", "VERSION", VERSIONS),
        *_list("Parts of a Python function.", "PART", PARTS),
        "#endif",
    ]
    return "\n".join(parts) + "\n"


def _members(words: str, kind: type[enum.IntEnum]) -> list[str]:
    prefix = kind.__name__.upper()
    rows = [f"    {prefix}_{member.name} = {member.value}," for member in sorted(kind)]
    return [f"/* {words} */", "enum {", *rows, f"    {prefix}_COUNT = {max(kind) + 1},", "};", ""]


def _list(words: str, prefix: str, codes: dict[str, str]) -> list[str]:
    """The members of an enum, and a macro that names each of them once."""
    rows = [f"    {prefix}_{name}, /* {meaning} */" for name, meaning in codes.items()]
    each = [f"    X({name})" for name in codes]
    macro = [f"{line:<40}\\" for line in (f"#define EACH_{prefix}(X)", *each[:-1])]
    return [f"/* {words} */", "enum {", *rows, f"    {prefix}_COUNT,", "};", *macro, each[-1], ""]


if __name__ == "__main__":
    print(header(), end="")

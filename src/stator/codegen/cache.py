"""Machine code that was made before: in this process, or by another one, and kept on disk.

What enters: a key, and a function that writes the LLVM IR which belongs to it. What leaves: `jit.Code`.
What holds: equal keys mean equal text. So the key must say everything that the text depends on, and the text may hold
nothing of this process (no addresses); what the machine code depends on besides is added here: the target, the
versions of llvmlite, LLVM and torch, and the sources of the generator. In memory, code is freed with its last user.
On disk it lies in `options.cache_dir`, at most `options.code_cache_mib` of it, checked by `store` before it is run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..options import code_cache_folder, options
from ..support.by_identity import WeakValues
from . import jit
from .store import Store


class Source(NamedTuple):
    """A module to compile: LLVM IR, the functions to be called, and plain data (JSON) that travels with the code."""

    text: str
    names: list[str]
    facts: Any = None


@dataclass
class Counts:
    """Where code came from, since the process began."""

    in_memory: int = 0
    on_disk: int = 0
    compiled: int = 0


counts = Counts()
_alive: WeakValues[str, jit.Code] = WeakValues()


def compile_cached(
    key: str, make_text: Callable[[], tuple[str, list[str]] | Source], target: jit.Target | None = None
) -> jit.Code:
    """The machine code of `make_text()`, which is called only if nobody has made the code of this key before."""
    with jit.lock:
        address = _address(key, target)
        if (code := _in_memory(address) or _on_disk(address)) is not None:
            return code
    made = Source(*make_text())  # not under the lock: it is Python that may take locks of its own
    with jit.lock:
        if (code := _in_memory(address)) is not None:
            return code
        code = jit.compile_ir(made.text, made.names, target)
        code.facts = made.facts
        counts.compiled += 1
        _alive[address] = code
        if (store := disk()) is not None and _sources() == _IMPORTED:
            store.put(address, json.dumps([made.names, made.facts]).encode() + b"\n" + code.object_bytes)
        return code


def assembly_cached(text: str, target: jit.Target) -> str:
    """The assembly of a module for a target whose driver takes that (PTX); kept on disk as machine code is."""
    with jit.lock:
        address = _address(f"assembly {text}", target)
        store = disk()
        if store is not None and (data := store.get(address)) is not None:
            counts.on_disk += 1
            return data.decode()
        made = jit.assembly(text, target)
        counts.compiled += 1
        if store is not None and _sources() == _IMPORTED:
            store.put(address, made.encode())
        return made


def _in_memory(address: str) -> jit.Code | None:
    code = _alive.get(address)
    counts.in_memory += code is not None
    return code


def _on_disk(address: str) -> jit.Code | None:
    store = disk()
    data = None if store is None else store.get(address)
    if data is None:
        return None
    header, _, object_bytes = data.partition(b"\n")
    names, facts = json.loads(header)
    try:
        code = jit.load_object(object_bytes, names)
    except jit.Unavailable:  # what it calls is not here; compiling it again says so, or helps
        return None
    code.facts = facts
    counts.on_disk += 1
    _alive[address] = code
    return code


# ------------------------------------------------------------------------------------------------------ addresses


def _address(key: str, target: jit.Target | None) -> str:
    """The name of the code of a key: a digest of everything that it depends on."""
    about = target or jit.host_target()
    parts = (key, about.triple, about.cpu, about.features, jit.version(), torch.__version__, _IMPORTED or "")
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _sources() -> str | None:
    """A digest of the files that decide about the text of a key; None where they cannot be read."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    try:
        for path in [*sorted(here.glob("*.py")), here.parent / "fuse" / "loops.py"]:
            data = path.read_bytes()
            digest.update(f"{path.name} {len(data)}\n".encode() + data)
    except OSError:
        return None
    return digest.hexdigest()


# As it was when this module was imported. Sources that have changed since then are not those that run here: what is
# made here would be found by those who run the new ones, so it is not stored.
_IMPORTED = _sources()


# ----------------------------------------------------------------------------------------------------------- disk


_disk: Store | None = None


def why_no_disk() -> str | None:
    """Why nothing is kept on disk at all; None if it is."""
    if options.code_cache_mib == 0:
        return "option code_cache_mib is 0"
    if code_cache_folder() is None:
        return "the user has no home, and option cache_dir is not set"
    return "the sources of the code generator cannot be read" if _IMPORTED is None else None


def disk() -> Store | None:
    """Where code is kept between runs, as the options say now; None if it is not."""
    global _disk
    folder, limit = code_cache_folder(), options.code_cache_mib << 20
    if folder is None or why_no_disk() is not None:
        return None
    if _disk is None or (_disk.folder, _disk.limit) != (folder, limit):
        _disk = Store(folder, limit)
    return _disk

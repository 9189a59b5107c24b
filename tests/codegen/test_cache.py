"""Machine code that was made before: found in memory and on disk, and never run when somebody tampered with it."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch

from stator.codegen import cache, jit, kernels
from stator.codegen.store import MAGIC, Store
from stator.fuse.builder import KernelBuilder
from stator.fuse.loops import Buffer, Index, Kernel, concrete
from stator.options import code_cache_folder, options

Maker = Callable[[], tuple[str, list[str]]]


def returning(number: int, calls: list[int] | None = None) -> Maker:
    """Writes a module with one function, which gives this number; notes that it was asked to."""

    def make_text() -> tuple[str, list[str]]:
        if calls is not None:
            calls.append(number)
        return f"define i64 @f() {{ ret i64 {number} }}", ["f"]

    return make_text


def result(code: jit.Code) -> int:
    value: int = ctypes.CFUNCTYPE(ctypes.c_int64)(code.address("f"))()
    return value


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty cache on disk; the folder that its files will be in."""
    with options.patch(cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache" / "code"


def sources() -> tuple[int, int, int]:
    return cache.counts.in_memory, cache.counts.on_disk, cache.counts.compiled


def added(before: tuple[int, int, int]) -> tuple[int, int, int]:
    memory, disk, compiled = (now - then for now, then in zip(sources(), before, strict=True))
    return memory, disk, compiled


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


# --------------------------------------------------------------------------------------------------- found again


def test_equal_keys_compile_once_in_memory_and_once_for_all_processes(folder: Path) -> None:
    before, calls = sources(), list[int]()
    first = cache.compile_cached("k", returning(7, calls))
    layers = [cache.compile_cached("k", returning(7, calls)) for _ in range(12)]
    assert all(code is first for code in layers) and added(before) == (12, 0, 1)
    del first, layers
    again = cache.compile_cached("k", returning(8, calls))  # text that is not asked for
    assert (result(again), calls, added(before)) == (7, [7], (12, 1, 1))
    other = cache.compile_cached("other", returning(9, calls))
    assert (result(other), calls) == (9, [7, 9])


def test_code_in_memory_is_freed_with_its_last_user() -> None:
    with options.patch(code_cache_mib=0):
        code = cache.compile_cached("freed", returning(1))
        known = len(cache._alive)
        del code
        assert len(cache._alive) == known - 1
        assert result(cache.compile_cached("freed", returning(2))) == 2


def test_facts_travel_with_the_code(folder: Path) -> None:
    facts = {"sizes": [3, "s0"], "align": 64}
    for _ in range(3):
        code = cache.compile_cached("k", lambda: cache.Source("define void @f() { ret void }", ["f"], facts))
        assert code.facts == facts
        del code
    assert len(list(folder.iterdir())) == 1


def copying(size: Any, offset: Any, step: Any = 1) -> Kernel:
    """y[i] = x[offset + i * step], for as many as `size` says."""
    b = KernelBuilder()
    value = b.load(0, Index(offset, ((0, step),)), torch.float32)
    b.add("store", (value.id,), value.dtype, (1, Index.axis(0)))
    return Kernel("kernel", [size], [0], [], [Buffer(name, torch.float32) for name in "xy"], b.values)


def test_kernels_of_one_text_that_take_other_sizes(folder: Path) -> None:
    """An offset of 0 as an expression has the text of none, and was a size that the code reads."""
    n, m = (sympy.Symbol(name, positive=True, integer=True) for name in "nm")
    assert copying(n, 0).key() == copying(n, sympy.Integer(0)).key()
    before, x, y = sources(), torch.arange(8.0), torch.zeros(5)
    for size, offset in ((n, sympy.Integer(0)), (n, 0), (m, 0), (n, m * 0), (m, m - 3)):
        (made,) = kernels.compile_kernels([copying(size, offset)])
        given = (ctypes.c_int64 * 2)(*[concrete(number, {n: 5, m: 5}) for number in made.sizes], 1)
        buffers = (ctypes.c_void_p * 2)(x.data_ptr(), y.zero_().data_ptr())
        kinds = [*[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2, *[ctypes.c_void_p] * 2]
        ctypes.CFUNCTYPE(None, *kinds)(made.address)(buffers, given, 0, 5, None, None)
        assert torch.equal(y, x[concrete(offset, {m: 5}) :][:5]), (size, offset)
        del made
    assert added(before)[2] == 2, "names of symbols are no part of the code"


def test_kernels_of_one_text_that_go_over_other_lengths(folder: Path) -> None:
    """How many elements there are is told to the code: a kernel of 4 and one of n may have the same."""
    n = sympy.Symbol("n", positive=True, integer=True)
    before = sources()
    for size, step in ((4, sympy.Integer(1)), (n, 1), (4, sympy.Integer(1)), (5, sympy.Integer(1))):
        (made,) = kernels.compile_kernels([copying(size, 0, step)])
        assert made.count == size
        del made
    assert added(before) == (0, 3, 1)


def test_several_functions_in_one_module(folder: Path) -> None:
    text = "define i64 @f() { ret i64 1 }\ndefine i64 @g() { ret i64 2 }"
    for _ in range(2):
        code = cache.compile_cached("k", lambda: (text, ["f", "g"]))
        assert [ctypes.CFUNCTYPE(ctypes.c_int64)(code.address(name))() for name in "fg"] == [1, 2]
        del code


def test_nothing_is_kept_when_switched_off(folder: Path) -> None:
    with options.patch(code_cache_mib=0):
        assert cache.disk() is None
        assert result(cache.compile_cached("k", returning(7))) == 7
    assert not folder.exists()


@pytest.mark.parametrize("what", ["key", "target", "llvmlite", "torch", "generator"])
def test_the_address_says_what_the_code_depends_on(what: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.compile_cached("k", returning(7))
    key, target = "k", jit.host_target()
    if what == "key":
        key = "k "
    elif what == "target":
        target = (
            jit.Target(target.triple, "x86-64", "") if "x86" in target.triple else jit.Target(target.triple, "", "")
        )
    elif what == "llvmlite":
        monkeypatch.setattr(jit, "version", lambda: "llvmlite 0.1 LLVM 1")
    elif what == "torch":
        monkeypatch.setattr("torch.__version__", "9.9")
    else:
        monkeypatch.setattr(cache, "_IMPORTED", "0" * 64)
    before = sources()
    assert result(cache.compile_cached(key, returning(8), target)) == 8
    assert added(before) == (0, 0, 1)


def test_sources_that_changed_since_the_import_store_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_sources", lambda: "0" * 64)
    assert result(cache.compile_cached("k", returning(7))) == 7
    assert not folder.exists()


def test_sources_that_cannot_be_read_keep_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.compile_cached("k", returning(7))
    monkeypatch.setattr(cache, "_IMPORTED", None)
    monkeypatch.setattr(cache, "_sources", lambda: None)
    for number in (8, 9):
        code = cache.compile_cached("k", returning(number))
        assert result(code) == number
        del code
    assert len(list(folder.iterdir())) == 1


def test_code_that_does_not_link_is_made_again(folder: Path) -> None:
    cache.compile_cached("k", returning(7))
    store = cache.disk()
    assert store is not None and store.put(only_file(folder).name, b'[["f"], null]\nno object file')
    assert result(cache.compile_cached("k", returning(8))) == 8


# --------------------------------------------------------------------------------------------- what is on the disk


def test_the_folder_is_private_and_files_are_whole(folder: Path) -> None:
    old = os.umask(0)
    try:
        cache.compile_cached("k", returning(7))
    finally:
        os.umask(old)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(only_file(folder).stat().st_mode) == 0o600
    assert only_file(folder).read_bytes().startswith(MAGIC)
    assert str(folder) == code_cache_folder()


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def elsewhere(path: Path) -> Path:
    """The same contents at another place."""
    other = path.parent.parent / "elsewhere"
    other.write_bytes(path.read_bytes())
    other.chmod(0o600)
    return other


def linked(path: Path) -> None:
    target = elsewhere(path)
    path.unlink()
    path.symlink_to(target)


def hard_linked(path: Path) -> None:
    os.link(path, path.parent.parent / "elsewhere")


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def replaced_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


TAMPERED: dict[str, Callable[[Path], object]] = {
    "first byte": lambda path: flip(path, 0),
    "in the digest": lambda path: flip(path, len(MAGIC) + 3),
    "in the header": lambda path: flip(path, len(MAGIC) + 34),
    "in the code": lambda path: flip(path, path.stat().st_size // 2),
    "last byte": lambda path: flip(path, -1),
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "no more than a digest": lambda path: os.truncate(path, len(MAGIC) + 32),
    "half a digest": lambda path: os.truncate(path, len(MAGIC) + 16),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.open("ab").write(b"x"),
    "readable by others": lambda path: path.chmod(0o604),
    "writable by the group": lambda path: path.chmod(0o620),
    "symbolic link": linked,
    "dangling link": dangling,
    "hard link": hard_linked,
    "fifo": fifo,
    "folder": replaced_by_a_folder,
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_file_that_was_tampered_with_is_not_run_and_is_made_again(how: str, folder: Path) -> None:
    cache.compile_cached("k", returning(7))
    path = only_file(folder)
    TAMPERED[how](path)
    before, store = sources(), cache.disk()
    assert store is not None
    refused = store.refused
    code = cache.compile_cached("k", returning(8))
    assert (result(code), added(before), store.refused) == (8, (0, 0, 1), refused + 1)
    if how == "folder":  # it stays; so the next process compiles too
        return
    assert path.is_file() and not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) == 0o600
    del code
    assert result(cache.compile_cached("k", returning(9))) == 8  # whole again


def test_a_file_of_another_name_is_not_taken(folder: Path) -> None:
    cache.compile_cached("k", returning(7))
    first = only_file(folder)
    cache.compile_cached("other", returning(9))
    (second,) = set(folder.iterdir()) - {first}
    second.write_bytes(first.read_bytes())
    assert result(cache.compile_cached("other", returning(10))) == 10


def test_a_file_of_another_owner_is_not_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.compile_cached("k", returning(7))
    fstat = os.fstat

    def as_if_given_away(descriptor: int) -> os.stat_result:
        found = fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return found
        return os.stat_result([*found[:4], found.st_uid + 1, *found[5:]])

    monkeypatch.setattr(os, "fstat", as_if_given_away)
    assert result(cache.compile_cached("k", returning(8))) == 8


@pytest.mark.parametrize("how", ["owner", "mode", "link", "file"])
def test_a_folder_that_is_not_ours_alone_is_not_used(how: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.compile_cached("k", returning(7))
    if how == "owner":
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    elif how == "mode":
        folder.chmod(0o750)
    elif how == "link":
        folder.rename(folder.parent / "real")
        folder.symlink_to(folder.parent / "real")
    else:
        folder.rename(folder.parent / "real")
        folder.write_text("")
    store = cache.disk()
    assert store is not None
    expected = {"owner": "another user", "mode": "others may enter", "link": "symbolic link", "file": "Not a directory"}
    assert expected[how] in str(store.trouble())
    assert (store.measure(), store.clear()) == ((0, 0), (0, 0))
    for key, number in (("k", 8), ("new", 9)):
        assert result(cache.compile_cached(key, returning(number))) == number
    monkeypatch.undo()
    kept = folder if folder.is_dir() and not folder.is_symlink() else folder.parent / "real"
    assert len(list(kept.iterdir())) == 1  # nothing was added


# ------------------------------------------------------------------------------------------ disks that do not work


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for base in (tmp_path / "file" / "below", Path("/proc/none")):
        with options.patch(cache_dir=str(base)):
            assert result(cache.compile_cached(str(base), returning(7))) == 7


@pytest.mark.parametrize("call", ["open", "write", "rename"])
def test_a_disk_that_refuses_is_no_error_and_leaves_nothing(
    call: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Store(str(folder), 1 << 20).put("00", b"x")  # the folder is there

    def refuse(*given: object, **more: object) -> int:
        raise OSError(28, "No space left on device")

    whole = os.open

    def read_only(path: str, flags: int, *given: int, **more: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(30, "Read-only file system")
        return whole(path, flags, *given, **more)

    if call == "open":
        monkeypatch.setattr(os, "open", read_only)
    elif call == "rename":
        monkeypatch.setattr(os, "rename", refuse)
    else:
        monkeypatch.setattr("stator.codegen.store._write_all", refuse)
    assert result(cache.compile_cached("k", returning(7))) == 7
    monkeypatch.undo()
    assert [path.name for path in folder.iterdir()] == ["00"]


# --------------------------------------------------------------------------------------------------- the size limit


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "code"), 10_000)
    names = [f"{number:02}" for number in range(9)]
    for age, name in enumerate(reversed(names)):
        assert store.put(name, b"x" * 1000)
        os.utime(tmp_path / "code" / name, (0, time.time() - 7200 - age))  # the ninth is the youngest
    assert store.get("00") == b"x" * 1000  # used now, though written first
    assert store.put("10", b"y" * 2000)
    left = {path.name for path in (tmp_path / "code").iterdir()}
    assert "00" in left and "10" in left and "08" in left and "01" not in left
    count, size = store.measure()
    assert count == len(left) and size <= 10_000
    assert not store.put("11", b"z" * 10_000)  # more than there is room for in all
    assert store.measure() == (count, size)


def test_what_other_processes_write_counts_too(tmp_path: Path) -> None:
    stores = [Store(str(tmp_path / "code"), 50_000) for _ in range(2)]
    for number in range(200):
        stores[number % 2].put(f"{number:03}", b"x" * 1000)
    assert stores[0].measure()[1] <= 100_000  # each knows of its own at once, of the other's from time to time
    assert stores[0].put("again", b"x" * 25_000) and stores[0].put("more", b"x" * 25_000)
    assert stores[0].measure()[1] <= 60_000


def test_what_a_dead_process_left_behind_is_removed(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "code"), 10_000)
    store.put("00", b"x")
    for name, age in ((".writing-dead", 7200), (".writing-alive", 0)):
        (tmp_path / "code" / name).write_bytes(b"half")
        os.utime(tmp_path / "code" / name, (0, time.time() - age))
    assert store.measure()[0] == 1
    assert {path.name for path in (tmp_path / "code").iterdir()} == {"00", ".writing-alive"}
    assert store.clear()[0] == 1 and store.get("00") is None


# ------------------------------------------------------------------------------------------------ several processes


PROGRAM = """
import ctypes, sys
from stator.codegen import cache

codes = []
for key in range(20):
    code = cache.compile_cached(str(key), lambda: (f"define i64 @f() {{ ret i64 {key} }}", ["f"]))
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(code.address("f"))() == key
    codes.append(code)
print(cache.counts.on_disk, cache.counts.compiled, cache.disk().refused)
"""


def test_two_processes_at_once(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "STATOR_CACHE_DIR": str(folder.parent)}
    command = [sys.executable, "-c", PROGRAM]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in running:
        out, _ = process.communicate(timeout=120)
        on_disk, compiled, refused = map(int, out.split())
        assert process.returncode == 0 and on_disk + compiled == 20 and refused == 0
    before, codes = sources(), list[jit.Code]()
    for key in range(20):
        codes.append(cache.compile_cached(str(key), returning(-1)))
    assert [result(code) for code in codes] == list(range(20)) and added(before) == (0, 20, 0)

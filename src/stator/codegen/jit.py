"""LLVM, in this process: text of a module in, addresses of its functions out.

What enters: LLVM IR as text (`compile_ir`), or an object file that was made from it before (`load_object`). What
leaves: `Code`, which knows the addresses of the functions asked for and keeps them valid while somebody holds it.
What holds: llvmlite is imported and LLVM set up by the first call, not by an import of this module; one lock is around
all of it, also around llvmlite's own, and a fork waits for it, so that a child finds LLVM between two calls and
not within one. No process-wide option of LLVM is set: other users of llvmlite get the code that they got before.
Where llvmlite is missing, too old, or may not make code, `Unavailable` says so in one line; that is tried once.
"""

from __future__ import annotations

import ctypes
import glob
import itertools
import mmap
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

lock = threading.RLock()  # re-entrant: code may be freed by the garbage collector while its thread compiles
_names = itertools.count()


class Unavailable(Exception):
    """There is no LLVM here, or it may not make code; the text says why, in one line."""


@dataclass(frozen=True)
class Target:
    """What machine code is made for."""

    triple: str
    cpu: str
    features: str


class Code:
    """Functions in executable memory; freed with the last reference to this object."""

    def __init__(self, tracker: Any, addresses: dict[str, int], object_bytes: bytes) -> None:
        self._tracker = tracker
        self._addresses = addresses
        self.object_bytes = object_bytes
        self.facts: Any = None  # plain data about the functions, for whoever made them

    def address(self, name: str) -> int:
        return self._addresses[name]


class _Llvm:
    """llvmlite's binding, set up: libraries whose symbols code may name, target machines, and the linker."""

    def __init__(self) -> None:
        self.binding, self.version = _imported()
        if refused := executable_memory_refused():
            raise Unavailable(refused)
        self._machines: dict[Target, Any] = {}
        self._contexts: dict[int, Any] = {}  # of modules that are not closed yet
        try:
            self._set_up()
        except (RuntimeError, OSError) as error:
            raise Unavailable(f"LLVM cannot be set up here: {_line(error)}") from error

    def _set_up(self) -> None:
        binding = self.binding
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        for path in _libraries():
            binding.load_library_permanently(path)
        self.host = Target(
            binding.get_process_triple(), binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
        )
        self.linker = binding.create_lljit_compiler(self._new_machine(self.host))

    def _new_machine(self, target: Target) -> Any:
        try:
            found = self.binding.Target.from_triple(target.triple)
        except RuntimeError:  # another architecture: those are set up when one is asked for
            self.binding.initialize_all_targets()
            self.binding.initialize_all_asmprinters()
            found = self.binding.Target.from_triple(target.triple)
        return found.create_target_machine(
            cpu=target.cpu, features=target.features, opt=2, reloc="default", codemodel="jitdefault", jit=True
        )

    def machine(self, target: Target) -> Any:
        if target not in self._machines:
            self._machines[target] = self._new_machine(target)
        return self._machines[target]

    @contextmanager
    def optimized(self, text: str, target: Target) -> Iterator[Any]:
        """A module for the length of a `with` block. What it is part of outlives it, whatever is raised wherever: the
        collector, which gets both with the frames of a traceback, would end them in an order of its own."""
        context = self.binding.create_context()
        self._contexts[id(context)] = context
        module = self.binding.parse_assembly(text, context=context)
        try:
            self._optimize(module, target)
            yield module
        finally:
            module.close()
            del self._contexts[id(context)]

    def _optimize(self, module: Any, target: Target) -> None:
        """The few passes that our text profits from: it is explicit vector code without much to find in it.
        `docs/design/code-cache.md` has what the others cost and gave."""
        machine = self.machine(target)
        module.triple, module.data_layout = target.triple, str(machine.target_data)
        module.verify()
        passes = self.binding.create_new_module_pass_manager()
        passes.add_always_inliner_pass()
        if "+avx2" not in target.features:  # selects become minima and the like, which wider machines find by masks
            passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.add_dead_code_elimination_pass()
        tuning = self.binding.create_pipeline_tuning_options(speed_level=1)
        passes.run(module, self.binding.create_pass_builder(machine, tuning))

    def link(self, object_bytes: bytes, names: Iterable[str]) -> Code:
        builder = self.binding.JITLibraryBuilder().add_object_img(object_bytes).add_current_process()
        for name in (exported := list(names)):
            builder.export_symbol(name)
        if refused := executable_memory_refused():  # since it was set up; LLVM would print its own message
            raise Unavailable(refused)
        try:
            tracker = builder.link(self.linker, f"stator.{next(_names)}")
        except RuntimeError as error:
            raise Unavailable(f"LLVM cannot link this code: {_line(error)}") from error
        return Code(tracker, {name: tracker[name] for name in exported}, object_bytes)


_llvm: _Llvm | None = None
_unavailable: str | None = None  # why, if it was tried


def _ready() -> _Llvm:
    global _llvm, _unavailable
    if _llvm is None:
        if _unavailable is not None:
            raise Unavailable(_unavailable)
        try:
            _llvm = _Llvm()
        except Unavailable as error:
            _unavailable = str(error)
            raise
    return _llvm


# llvmlite 0.45 (LLVM 20) is the first with all of it; 0.45 to 0.50 (LLVM 22) were tried.
OLDEST = "0.45"
_NEEDED = {
    "": ("create_lljit_compiler", "JITLibraryBuilder", "create_pass_builder", "create_new_module_pass_manager"),
    "ModulePassManager": (
        "add_always_inliner_pass",
        "add_instruction_combine_pass",
        "add_simplify_cfg_pass",
        "add_dead_code_elimination_pass",
    ),
}


def _imported() -> tuple[Any, str]:
    """llvmlite's binding and version, if it can do what is needed here."""
    try:
        import llvmlite  # type: ignore[import-untyped]  # optional, and slow to import
        import llvmlite.binding as binding  # type: ignore[import-untyped]

        number = ".".join(map(str, binding.llvm_version_info))  # the first call into its library loads that
    except (ImportError, OSError) as error:  # OSError: its library does not fit this machine
        raise Unavailable(f"llvmlite cannot be imported: {_line(error)}") from error
    version = f"llvmlite {llvmlite.__version__} (LLVM {number})"
    for where, names in _NEEDED.items():
        there = getattr(binding, where, None) if where else binding
        for name in names:
            if not hasattr(there, name):
                raise Unavailable(f"{version} has no {name}; {OLDEST} is the oldest that can be used")
    return binding, version


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def executable_memory_refused() -> str | None:
    """Why this process may not make code, as on hardened systems; None if it may. By trying, as LLVM's linker does."""
    if sys.platform != "linux":
        return None
    try:
        memory = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        return f"this system gives no memory for code: {error.strerror}"
    view = ctypes.c_char.from_buffer(memory)
    try:
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        where = ctypes.c_void_p(ctypes.addressof(view))
        if protect(where, ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_EXEC) != 0:
            return f"this system refuses executable memory: {os.strerror(ctypes.get_errno())}"
        return None
    finally:
        del view
        memory.close()


def _libraries() -> list[str]:
    """What generated code calls into: torch's own OpenMP (its threads are torch's), its C functions, libm."""
    cpu, _, omp = torch_libraries()
    found = [path for path in (omp, cpu.replace("libtorch_cpu", "libc10"), cpu) if path and os.path.exists(path)]
    return [*found, "libm.so.6"]


def torch_libraries() -> tuple[str, str, str]:
    """Where torch's operators, its Python binding and its OpenMP are; '' where it has none of its own."""
    here = os.path.dirname(torch.__file__)
    omp = [*glob.glob(f"{here}/lib/libgomp*.so*"), *glob.glob(f"{here}.libs/libgomp*.so*"), ""]
    return f"{here}/lib/libtorch_cpu.so", f"{here}/lib/libtorch_python.so", omp[0]


def host_target() -> Target:
    """This machine."""
    with lock:
        return _ready().host


def version() -> str:
    """Of llvmlite, and of LLVM in it."""
    with lock:
        return _ready().version


def compile_ir(text: str, names: Iterable[str], target: Target | None = None) -> Code:
    """Machine code of a module; `names` are those of its functions whose addresses will be asked for.

    A `target` other than this machine must be one whose instructions this machine has."""
    with lock:
        llvm = _ready()
        target = target or llvm.host
        with llvm.optimized(text, target) as module:
            object_bytes = llvm.machine(target).emit_object(module)
        return llvm.link(object_bytes, names)


def load_object(object_bytes: bytes, names: Iterable[str]) -> Code:
    """Code whose `object_bytes` were kept."""
    with lock:
        return _ready().link(object_bytes, names)


def assembly(text: str, target: Target | None = None) -> str:
    """The module's machine code to read, for any target that LLVM knows."""
    with lock:
        llvm = _ready()
        target = target or llvm.host
        with llvm.optimized(text, target) as module:
            made: str = llvm.machine(target).emit_assembly(module)
        return made


# ---------------------------------------------------------------------------------------------------------- fork


_held_for_fork: ExitStack | None = None


def _before_fork() -> None:
    """Wait until no thread is inside LLVM: its own locks and half-made state would stay as they are in the child."""
    global _held_for_fork
    held = ExitStack()
    held.enter_context(lock)
    if _llvm is not None:
        inner = getattr(
            getattr(_llvm.binding.ffi.lib, "_lock", None), "_lock", None
        )  # another user of llvmlite may hold it
        if inner is not None:
            held.enter_context(inner)
    _held_for_fork = held


def _after_fork() -> None:
    global _held_for_fork
    if _held_for_fork is not None:
        held, _held_for_fork = _held_for_fork, None
        held.close()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)

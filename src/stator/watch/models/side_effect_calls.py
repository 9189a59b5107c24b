"""What reaches the world outside, by module and name: the ids under which the graph breaks there.

Enters: a C callable that no rule vouches for, or the code of a Python function whose frame starts. Leaves: the id of
the catalogue in `stator.errors`, and the name to say. The table does not decide *whether* a C callable breaks the
graph: whatever has no rule does, under `unknown-callable` if it is not named here. A Python function that is named here
breaks the graph where it is called, rather than at some instruction deep inside a library.
"""

from __future__ import annotations

import builtins
import os
import sys
import types
from typing import Any, NamedTuple


class SideEffectRow(NamedTuple):
    id: str
    module: str  # ends in a dot: the package with all its modules
    names: str  # "*": all of them; a name that ends in a dot: all methods of that class
    why: str


_FILES = (
    "open read write close stat lstat fstat listdir scandir mkdir rmdir remove unlink rename replace truncate "
    "ftruncate access chmod chown link symlink readlink utime lseek fsync fdatasync pread pwrite sendfile mkfifo"
)
_PROCESSES = "system fork forkpty kill killpg wait waitpid posix_spawn posix_spawnp execv execve _exit abort"
_PATH_METHODS = (
    "open read_text read_bytes write_text write_bytes exists is_file is_dir is_symlink is_mount stat lstat iterdir "
    "glob rglob walk mkdir rmdir touch unlink rename replace resolve absolute samefile owner group readlink symlink_to "
    "hardlink_to chmod cwd home expanduser is_block_device is_char_device is_fifo is_socket copy move"
)

# What comes first counts.
TABLE: tuple[SideEffectRow, ...] = (
    SideEffectRow(
        "call-print", "builtins", "print", "writes to standard output, where others write too: the order is seen"
    ),
    SideEffectRow("call-input", "builtins", "input", "waits for what the user types"),
    SideEffectRow("call-input", "getpass", "*", "waits for what the user types"),
    SideEffectRow("call-debugger", "builtins", "breakpoint", "hands over to a person"),
    SideEffectRow("call-debugger", "sys", "breakpointhook settrace setprofile", "lets somebody look on"),
    SideEffectRow(
        "frames", "sys", "_getframe _current_frames _getframemodulename", "the frames of a watched run are others"
    ),
    SideEffectRow("call-debugger", "pdb", "*", "hands over to a person"),
    SideEffectRow("call-debugger", "bdb", "*", "hands over to a person"),
    SideEffectRow("exec-eval", "builtins", "exec eval compile", "runs code that is not there to be watched"),
    SideEffectRow("build-class", "builtins", "__build_class__", "its body is no function"),
    SideEffectRow("import", "builtins", "__import__", "runs a module's code, once"),
    SideEffectRow("import", "importlib", "import_module reload", "runs a module's code, once"),
    SideEffectRow("identity", "builtins", "id", "a new number in every process and for every object"),
    # training by several processes: what they do around the forward of a module, which itself is watched
    SideEffectRow(
        "data-parallel",
        "torch.nn.parallel.distributed",
        "DistributedDataParallel._pre_forward DistributedDataParallel._post_forward",
        "sends buffers, and tells the reducer of gradients what comes",
    ),
    SideEffectRow(
        "data-parallel",
        "torch.distributed.fsdp._fully_shard._fsdp_common",
        "_dynamo_disable.",
        "the hooks of `fully_shard`: gathers parameters and frees them",
    ),
    # files, processes, the network, the operating system
    SideEffectRow("call-open", "builtins", "open", "the file's contents are not ours to guard"),
    SideEffectRow("call-open", "io", "open open_code", "the file's contents are not ours to guard"),
    SideEffectRow("call-open", "_io", "*", "reads, writes or moves in a file"),
    SideEffectRow("call-open", "_pickle", "dump load", "reads or writes a file"),
    SideEffectRow("random", "posix", "urandom getrandom", "another answer in every call"),
    SideEffectRow("time", "posix", "times", "another answer in every call"),
    SideEffectRow("call-open", "posix", _FILES, "the file system changes behind our back"),
    SideEffectRow("call-process", "posix", _PROCESSES, "acts on processes"),
    SideEffectRow("call-os", "posix", "*", "answers differ between processes and over time"),
    SideEffectRow("call-open", "os", "makedirs removedirs renames walk _walk fwalk _fwalk fdopen", "works on files"),
    SideEffectRow(
        "call-process", "os", "popen spawnv spawnve spawnvp _spawnvef execl execle execlp execvp", "acts on processes"
    ),
    SideEffectRow(
        "call-open",
        "genericpath",
        "exists isfile isdir islink lexists getsize getmtime getatime getctime samefile",
        "asks for a file",
    ),
    SideEffectRow("call-open", "posixpath", "realpath islink lexists ismount", "asks for a file"),
    SideEffectRow("call-open", "pathlib", " ".join(f"Path.{name}" for name in _PATH_METHODS.split()), "works on files"),
    SideEffectRow(
        "call-open", "pathlib._local", " ".join(f"Path.{name}" for name in _PATH_METHODS.split()), "works on files"
    ),
    SideEffectRow("call-open", "shutil", "*", "works on files"),
    SideEffectRow("call-open", "tempfile", "*", "works on files"),
    SideEffectRow("call-open", "glob", "*", "looks for files"),
    SideEffectRow("call-process", "subprocess", "*", "acts on processes"),
    SideEffectRow("call-process", "_posixsubprocess", "*", "acts on processes"),
    SideEffectRow("call-process", "signal", "*", "acts on processes"),
    SideEffectRow("call-process", "_signal", "*", "acts on processes"),
    SideEffectRow("call-process", "multiprocessing.", "*", "acts on processes"),
    SideEffectRow("call-socket", "socket", "*", "talks to others"),
    SideEffectRow("call-socket", "_socket", "*", "talks to others"),
    SideEffectRow("call-socket", "select", "*", "waits for others"),
    SideEffectRow("call-socket", "selectors", "*", "waits for others"),
    SideEffectRow("call-socket", "ssl", "*", "talks to others"),
    SideEffectRow("call-socket", "_ssl", "*", "talks to others"),
    SideEffectRow("call-socket", "http.client", "*", "talks to others"),
    SideEffectRow("call-socket", "urllib.request", "*", "talks to others"),
    SideEffectRow("call-save", "torch.serialization", "save load", "reads or writes a file of tensors"),
    SideEffectRow("line-search", "torch.optim.lbfgs", "LBFGS.step", "goes by values of tensors at every turn"),
    # messages
    SideEffectRow(
        "call-warn", "_warnings", "*", "a warning is shown once, or raised, by filters and registers of its own"
    ),
    SideEffectRow(
        "call-warn",
        "warnings",
        "warn warn_explicit showwarning simplefilter filterwarnings resetwarnings "
        "catch_warnings.__enter__ catch_warnings.__exit__",
        "a warning is shown once, or raised, by filters and registers of its own",
    ),
    # what differs in every call
    SideEffectRow("time", "time", "*", "another answer in every call"),
    SideEffectRow("time", "datetime", "now utcnow today", "another answer in every call"),
    SideEffectRow("random", "_random", "*", "draws from a generator that others draw from"),
    SideEffectRow("random", "random", "*", "draws from a generator that others draw from"),
    SideEffectRow("random", "secrets", "*", "another answer in every call"),
    SideEffectRow("random", "uuid", "uuid1 uuid4 getnode", "another answer in every call"),
    SideEffectRow("random", "_uuid", "*", "another answer in every call"),
    SideEffectRow(
        "rng-state",
        "torch.random",
        "manual_seed seed initial_seed get_rng_state set_rng_state fork_rng",
        "torch's generator",
    ),
    SideEffectRow("rng-state", "torch.cuda.random", "*", "torch's generator"),
    SideEffectRow("rng-state", "torch", "Generator Generator.", "a generator has a state that no tensor shows"),
    SideEffectRow("rng-state", "torch._C", "Generator Generator.", "a generator has a state that no tensor shows"),
    SideEffectRow("thread-local", "_thread", "get_ident get_native_id _local", "another answer in every thread"),
    SideEffectRow("threads", "_thread", "*", "other threads may come in between"),
    SideEffectRow(
        "threads",
        "threading",
        "Thread. Event. Condition. Semaphore. Barrier. Timer.",
        "other threads may come in between",
    ),
    SideEffectRow("threads", "_queue", "*", "other threads may come in between"),
    SideEffectRow("threads", "concurrent.futures.", "*", "other threads may come in between"),
    # libraries whose arrays and tables are not tensors
    SideEffectRow("numpy", "numpy.", "*", "arrays are no tensors: their contents are not ours to guard"),
    SideEffectRow("pandas", "pandas.", "*", "tables are no tensors: their contents are not ours to guard"),
    SideEffectRow("scipy", "scipy.", "*", "works on numpy's arrays"),
    SideEffectRow(
        "other-compiler",
        "torch._dynamo.eval_frame",
        "_TorchDynamoContext. OptimizedModule.",
        "torch.compile replaces frames, too, and must see the function's own",
    ),
    SideEffectRow(
        "other-compiler",
        "torch.nn.attention.flex_attention",
        "flex_attention",
        "compiles itself with torch.compile, also where the program runs as plain Python",
    ),
    SideEffectRow(
        "functorch",
        "torch.nn.attention.flex_attention",
        "create_block_mask create_mask create_nested_block_mask",
        "maps the program's function over indices, under a mode of its own",
    ),
)

_BY_MODULE: dict[str, list[SideEffectRow]] = {}
for _row in TABLE:
    _BY_MODULE.setdefault(_row.module, []).append(_row)
_PACKAGES = tuple(name.rstrip(".") for name in _BY_MODULE if name.endswith("."))


def _matches(row: SideEffectRow, qualname: str) -> bool:
    return row.names == "*" or any(_is_named(name, qualname) for name in row.names.split())


def _is_named(name: str, qualname: str) -> bool:
    if name.endswith("."):
        return qualname.startswith(name)
    return qualname == name or qualname.endswith(f".{name}")


def _rows_of_module(module: str) -> list[SideEffectRow]:
    rows = _BY_MODULE.get(module)
    if rows is not None:
        return rows
    package = next((name for name in _PACKAGES if module == name or module.startswith(f"{name}.")), "")
    return _BY_MODULE[f"{package}."] if package else []


# -- C callables


# Modules as programs know them.
_SHOWN = {
    "posix": "os",
    "genericpath": "os.path",
    "posixpath": "os.path",
    "pathlib._local": "pathlib",
    "_io": "io",
    "_pickle": "pickle",
    "_random": "random",
    "_signal": "signal",
    "_socket": "socket",
    "_ssl": "ssl",
    "_thread": "threading",
    "_warnings": "warnings",
    "torch._C": "torch",
    "torch.random": "torch",
    "torch.serialization": "torch",
}


def module_of(func: Any) -> str:
    """The module that a callable belongs to; for a C method, that of its class."""
    found = getattr(func, "__module__", None)
    if isinstance(found, str):
        return found
    owner = getattr(func, "__self__", None)
    default = type(func) if owner is None else owner if isinstance(owner, type) else type(owner)
    return str(getattr(func, "__objclass__", default).__module__)


def name_of(func: Any) -> str:
    """A callable as a program would write it: `time.time`, `os.listdir`, `print`."""
    name = getattr(func, "__qualname__", None) or getattr(func, "__name__", None) or type(func).__qualname__
    module = module_of(func)
    if module == "builtins" or vars(builtins).get(name) is func:
        return str(name)
    return shown(module, str(name))


def shown(module: str, qualname: str) -> str:
    if module in ("random", "_random"):
        qualname = qualname.removeprefix("Random.")  # the functions of `random` are methods of a hidden instance
    return f"{_SHOWN.get(module, module)}.{qualname}"


def break_for(func: Any) -> str:
    """Why a callable without a rule breaks the graph."""
    qualname = str(getattr(func, "__qualname__", None) or getattr(func, "__name__", ""))
    return next((row.id for row in _rows_of_module(module_of(func)) if _matches(row, qualname)), "unknown-callable")


def break_for_type(cls: type, otherwise: str) -> str:
    """Why C code that works on an instance of this class breaks the graph."""
    found = next((row.id for row in _rows_of_module(cls.__module__) if _matches(row, cls.__qualname__)), otherwise)
    return found if not issubclass(cls, BaseException) else otherwise


# -- Python functions

# By file, the rows of the modules that are loaded. A file of a package has that package's row by its folder.
_rows_by_file: dict[str, list[SideEffectRow]] = {}
_folders: dict[str, str] = {}
_not_loaded = set(_BY_MODULE)


def _look_for_modules() -> None:
    """A module is found by the file that it was loaded from: a folder that only has its name is none."""
    for name in [name for name in _not_loaded if name.rstrip(".") in sys.modules]:
        _not_loaded.discard(name)
        file = getattr(sys.modules[name.rstrip(".")], "__file__", None)
        if file is None:  # built in
            continue
        if name.endswith("."):
            _folders[os.path.dirname(file) + os.sep] = name
        else:
            _rows_by_file[file] = _rows_by_file[f"<frozen {name}>"] = _BY_MODULE[name]


def break_in(code: types.CodeType) -> tuple[str, str] | None:
    """(id, name) if calls of a Python function with this code break the graph."""
    _look_for_modules()
    filename = code.co_filename
    rows = _rows_by_file.get(filename)
    if rows is None:
        folder = next((folder for folder in _folders if filename.startswith(folder)), None)
        if folder is None:
            return None
        rows = _BY_MODULE[_folders[folder]]
    row = next((row for row in rows if _matches(row, code.co_qualname)), None)
    return None if row is None else (row.id, shown(row.module.rstrip("."), code.co_qualname))

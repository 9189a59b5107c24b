"""Every option of stator, typed and documented once. The only module that reads environment variables.

What enters: assignments (``stator.options.verbose = True``), ``with options.patch(...)``, the environment's
``STATOR_<NAME>``, and the dictionary given to ``stator.compile(options=...)``.
What leaves: plain attributes, as cheap to read as any (``options.verify``), and immutable views, one per
compiled callable.
What holds in between: every value that is stored has been checked; a name that is no option is refused and
the nearest known one named; a view shows its own overrides and otherwise what ``options`` says now.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from .support.by_identity import Alive

PREFIX = "STATOR_"
T = TypeVar("T")
OptionCheck = Callable[[Any], Any]  # takes a value, returns what is stored; raises TypeError or ValueError


# ----------------------------------------------------------------------------------------------------- checks


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"must be True or False, not {value!r}")
    return value


def _flag_or_none(value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise TypeError(f"must be True, False or None, not {value!r}")
    return value


def _at_least_one(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"must be an int, not {value!r}")
    if value < 1:
        raise ValueError(f"must be at least 1, not {value}; to run without compiling, use stator.compile(disable=True)")
    return value


def _zero_or_more(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"must be an int, not {value!r}")
    if value < 0:
        raise ValueError(f"must be 0 or more, not {value}")
    return value


def _level(value: Any) -> int:
    if isinstance(value, str):
        number = logging.getLevelName(value.upper())
        if not isinstance(number, int):
            raise ValueError(f"must be a level of the logging module such as 'INFO' or 20, not {value!r}")
        return number
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"must be a level of the logging module such as logging.INFO, not {value!r}")
    return value


def _folder(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"must be a path or None, not {value!r}")
    path = os.fspath(value)
    if not isinstance(path, str):
        raise TypeError(f"must be a path of text, not {value!r}")
    return path or None


# How the text of an environment variable becomes a value, by the option's check. ValueError if it does not.


def _flag_from_text(text: str) -> bool:
    known = {
        "1": True,
        "true": True,
        "yes": True,
        "on": True,
        "": False,
        "0": False,
        "false": False,
        "no": False,
        "off": False,
    }
    if text.strip().lower() not in known:
        raise ValueError(f"must be 1 or 0, not {text!r}")
    return known[text.strip().lower()]


def _flag_or_none_from_text(text: str) -> bool | None:
    return None if text.strip().lower() in ("none", "") else _flag_from_text(text)


def _level_from_text(text: str) -> int:
    return int(text) if text.strip().isdigit() else _level(text.strip())


FROM_TEXT: dict[OptionCheck, Callable[[str], Any]] = {
    _flag: _flag_from_text,
    _flag_or_none: _flag_or_none_from_text,
    _at_least_one: int,
    _zero_or_more: int,
    _level: _level_from_text,
    _folder: str,
}


def _option(default: T, check: OptionCheck, doc: str) -> T:
    """One option: its default, the check every new value passes, and its documentation."""
    return dataclasses.field(default=default, metadata={"check": check, "doc": doc})


# ---------------------------------------------------------------------------------------------------- options


@dataclasses.dataclass(eq=False)
class Settings:
    """The options and their values: what `Options` lets change and `View` does not."""

    verbose: bool = _option(
        False,
        _flag,
        "Log every cache hit and miss, every watched frame, and each recording's bytecode, guards and graph.",
    )
    log_level: int = _option(
        logging.WARNING,
        _level,
        "Level of the logger `stator`: a number or a name of the logging module. INFO shows graph breaks and "
        "recompiles, DEBUG everything.",
    )
    suppress_errors: bool = _option(
        True,
        _flag,
        "On a failure in stator or a backend, warn and give eager's result. False: raise it with its cause.",
    )
    cache_size_limit: int = _option(
        8,
        _at_least_one,
        "Recordings kept per function. When they are used up, further variants run eager, with one warning "
        "that names the guard which keeps failing. At least 1.",
    )
    output_code: bool = _option(False, _flag, "Log the code that the backend generated for each graph.")
    print_guards: bool = _option(False, _flag, "Log the guards of each recording.")
    dynamic_shapes: bool = _option(
        True, _flag, "Generalise a size or an int that changes between calls. False: one recording per value."
    )
    assume_static_by_default: bool = _option(
        True,
        _flag,
        "Take sizes as constants until one changes. False: take them as symbols from the first call on.",
    )
    capture_scalar_outputs: bool = _option(
        False,
        _flag,
        "Record `tensor.item()` and its kin as symbols in the graph. False: they break the graph.",
    )
    reorder_print: bool = _option(
        False,
        _flag,
        "Let `print` of what no tensor decides run after the graph around it. False: it breaks the graph, so that the "
        "order of all output is kept.",
    )
    native_random: bool = _option(
        False,
        _flag,
        'Let the kernels of `backend="native"` compute random numbers: other numbers than eager\'s, of the same '
        "distributions, and much faster. They come of seeds that are drawn from torch's generator in each call, so "
        "`torch.manual_seed` and `torch.set_rng_state` repeat them. False, or beside `verify`: eager's own numbers.",
    )
    frozen_weights: bool = _option(
        False,
        _flag,
        "A promise: parameters are written to by torch's operators alone, and not through `.data`, NumPy or another "
        'process. Then `backend="native"` keeps matrices of linear layers packed for the BLAS in inference, which '
        "takes as much memory again, and packs one anew when its version says that it was written to.",
    )
    cuda_graphs: bool | None = _option(
        None,
        _flag_or_none,
        'Launch the graphs of `backend="native"` on a GPU as CUDA graphs. None: all of them in the modes '
        '`"reduce-overhead"` and `"max-autotune"`; in others those for which launching is a good part of the time, '
        "unless memory is short. True: wherever it can be done. False: never.",
    )
    debug_dir: str | None = _option(
        None,
        _folder,
        "Folder in which every stage of every compilation is kept as Python that runs by itself, numbered in order; "
        "reports of failures too. None: stages are not kept, reports go to the system's temporary directory.",
    )
    verify: bool = _option(
        False,
        _flag,
        "Run the captured graph in eager mode beside every call of a compiled one, on copies, and compare. A "
        "difference raises, with a script that shows it again. Slow; for finding a wrong result.",
    )
    check_guards: bool = _option(
        False, _flag, "Check guards in Python beside those in C, and raise if they disagree. Slow; for tests of stator."
    )
    background_compile: bool = _option(
        False,
        _flag,
        "Call the backend on a thread of its own: the first call returns at once, and calls run as plain Python until "
        "its graph is ready. `compiled.stator.wait()` waits. What fails there is told, or raised, by that or by the "
        "next call that no recording fits.",
    )
    cache_dir: str | None = _option(
        None,
        _folder,
        "Folder for what is kept on disk between runs: machine code, in a folder `code` that only its owner may enter. "
        "None: the user's cache folder (`$XDG_CACHE_HOME/stator`, `~/.cache/stator`).",
    )
    code_cache_mib: int = _option(
        256,
        _zero_or_more,
        "MiB of machine code that are kept on disk at most; what was not used for longest goes first. 0: none is kept, "
        "and none is read.",
    )

    if not TYPE_CHECKING:  # a type checker that saw this would take any misspelt name for an option

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("__"):  # a protocol asked for by the interpreter, such as __deepcopy__
                raise AttributeError(name)
            _refuse(name)

    def to_dict(self) -> dict[str, Any]:
        """Every option by name, with the value it has now."""
        return {name: getattr(self, name) for name in FIELDS}

    def __str__(self) -> str:
        """One line per option: its value, and what it does."""
        return "\n".join(f"{name} = {getattr(self, name)!r}\n    {describe(name)}" for name in FIELDS)


FIELDS: dict[str, dataclasses.Field[Any]] = {field.name: field for field in dataclasses.fields(Settings)}


class Options(Settings):
    """The options of the process: `stator.options`. Assignments are checked and reach views at once."""

    def __init__(self, **values: Any) -> None:
        object.__setattr__(self, "_views", Alive[View]())
        object.__setattr__(self, "_listeners", [])
        super().__init__()
        for name, value in values.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        stored = check(name, value)
        object.__setattr__(self, name, stored)
        for view in list(self._views):
            view._follow(name, stored)
        for listener in list(self._listeners):
            listener()

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"an option cannot be deleted; its default is {default(name)!r}")

    @contextmanager
    def patch(self, **values: Any) -> Iterator[Options]:
        """Change options for the length of a `with` block (or, as a decorator, of a call)."""
        checked = {name: check(name, value) for name, value in values.items()}
        before = {name: getattr(self, name) for name in checked}
        try:
            for name, value in checked.items():
                setattr(self, name, value)
            yield self
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def merged(self, overrides: Mapping[str, Any] | None = None) -> View:
        """The options as one compiled callable sees them: `overrides`, checked, over what is set here."""
        view = View(self, {name: check(name, value) for name, value in (overrides or {}).items()})
        self._views.add(view)
        return view

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every assignment; returns a function which ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    _views: Alive[View]
    _listeners: list[Callable[[], None]]


class View(Settings):
    """The options of one compiled callable: fixed where it overrides, the process's options elsewhere."""

    def __init__(self, base: Options, overrides: Mapping[str, Any]) -> None:
        self.__dict__.update(base.to_dict())
        self.__dict__.update(overrides)
        self.__dict__["_overrides"] = dict(overrides)

    _overrides: dict[str, Any]

    def _follow(self, name: str, value: Any) -> None:
        if name not in self._overrides:
            self.__dict__[name] = value

    def __setattr__(self, name: str, value: Any) -> None:
        check(name, value)  # an unknown name is the likelier mistake; say that first
        raise AttributeError(
            f"these options were given to stator.compile and are fixed; set stator.options.{name} instead"
        )

    def __reduce__(self) -> tuple[Callable[[dict[str, Any]], View], tuple[dict[str, Any]]]:
        return _view_of_the_process, (self._overrides,)


def _view_of_the_process(overrides: dict[str, Any]) -> View:
    return options.merged(overrides)


# --------------------------------------------------------------------------------------- asking about options


def check(name: str, value: Any) -> Any:
    """What is stored when `name` is set to `value`; AttributeError, TypeError or ValueError if wrong."""
    if name not in FIELDS:
        _refuse(name)
    try:
        return FIELDS[name].metadata["check"](value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"option {name} {error}") from None


def default(name: str) -> Any:
    """The value option `name` has when nobody set it."""
    return FIELDS[name].default if name in FIELDS else _refuse(name)


def describe(name: str) -> str:
    """What option `name` does, in words."""
    return str(FIELDS[name].metadata["doc"]) if name in FIELDS else _refuse(name)


def nearest(name: str, known: Iterable[str]) -> str:
    """Words about the known name that `name` was most likely meant to be; none if none is near."""
    found = difflib.get_close_matches(name.lower(), list(known), n=1)
    return f"; the nearest is {found[0]!r}" if found else ""


def _refuse(name: str) -> NoReturn:
    raise AttributeError(f"stator has no option {name!r}{nearest(name, FIELDS)} (known: {', '.join(FIELDS)})")


# ------------------------------------------------------------------------------------------------ environment


def from_environment(environment: Mapping[str, str]) -> Options:
    """Options as `STATOR_<NAME>` variables say. A mistake there only warns: `import stator` must go on."""
    made = Options()
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable in NOT_OPTIONS:
            continue
        name = variable[len(PREFIX) :].lower()
        try:
            check_of = FIELDS[name].metadata["check"] if name in FIELDS else _refuse(name)
            setattr(made, name, FROM_TEXT[check_of](environment[variable]))
        except (AttributeError, TypeError, ValueError) as error:
            warnings.warn(f"environment variable {variable} is ignored: {error}", stacklevel=2)
    return made


def requested_logs() -> str:
    """The text of `STATOR_LOGS`: names of logs, comma-separated (`stator.report.logs` knows them)."""
    return os.environ.get(LOGS_VARIABLE, "")


def code_cache_folder() -> str | None:
    """Where machine code is kept on disk: below `options.cache_dir`, or in the user's cache folder if there is one."""
    return os.path.join(base, "code") if (base := options.cache_dir or _user_cache_folder()) else None


def _user_cache_folder() -> str | None:
    """As https://specifications.freedesktop.org/basedir-spec says: a path that is not absolute counts as not given."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = given if os.path.isabs(given) else os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "stator") if os.path.isabs(base) else None  # a user may have no home


def colours_allowed() -> bool:
    """May a terminal be written to in colours? By the variables that all programs ask (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


LOGS_VARIABLE = PREFIX + "LOGS"
NOT_OPTIONS = frozenset({LOGS_VARIABLE})

options = from_environment(os.environ)

"""Types of the C extension: the frame hook, the probes and the watcher.

The sources are in the folder `_native/` beside this file; docs/design/instrumentation.md explains them.
"""

from collections.abc import Callable, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, final

from .recording import Check, Edge, Fact, Instruction, Place

# The state of a thread.
OFF: Final[int]
WATCHING: Final[int]
SENTINEL: Final[int]
PENDING: Final[int]

# What a code object was classified as; INSTRUMENTED marks our copies.
COPY: Final[int]
SKIP: Final[int]
OURS: Final[int]
LEAF: Final[int]
TRANSPARENT: Final[int]
CONSTANT: Final[int]
BLIND: Final[int]
INSTRUMENTED: Final[int]

# Kinds of probes.
ATTR: Final[int]
SUPER_ATTR: Final[int]
GLOBAL: Final[int]
DEREF: Final[int]
SUBSCR: Final[int]
SLICE: Final[int]
CALL: Final[int]
CALL_EX: Final[int]
BINARY: Final[int]
COMPARE: Final[int]
CONTAINS: Final[int]
IS: Final[int]
UNARY: Final[int]
TRUTH: Final[int]
ITER: Final[int]
NEXT: Final[int]
UNPACK: Final[int]
EXTEND: Final[int]
HASH: Final[int]
WITH: Final[int]
WITH_EXIT: Final[int]
FORMAT: Final[int]
AWAIT: Final[int]
STORE_ATTR: Final[int]
DELETE_ATTR: Final[int]
STORE_SUBSCR: Final[int]
STORE_SLICE: Final[int]
DELETE_SUBSCR: Final[int]
STORE_GLOBAL: Final[int]
DELETE_GLOBAL: Final[int]
STORE_DEREF: Final[int]
DELETE_DEREF: Final[int]
IMPORT_NAME: Final[int]
IMPORT_FROM: Final[int]
BUILD_CLASS: Final[int]
MATCH: Final[int]
MATCH_CLASS: Final[int]
MATCH_KEYS: Final[int]
RAISE: Final[int]
ESCAPE: Final[int]
EXC_MATCH: Final[int]
INTRINSIC: Final[int]
FUNCTION: Final[int]
RETURN: Final[int]
PACK: Final[int]
INSERT: Final[int]

MISSING: Final[object]

class Unwatchable(Exception):
    """This code cannot be watched; the argument says why."""

@final
class Probe:
    """One watched instruction. It fires before the instruction; only FUNCTION fires after."""

    def __new__(
        cls,
        kind: int,
        depth: int,
        count: int,
        arg: object,
        offset: int,
        code: CodeType,
        stores: str | None,
        span: int = -1,
        step: int = 1,
        slot: int = -1,
    ) -> Probe: ...
    @property
    def kind(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def span(self) -> int:
        """How many slots of the stack its operands take up."""
    @property
    def count(self) -> int:
        """Operands read from the stack; for CALL the number of arguments, without a method's self."""
    @property
    def arg(self) -> Any: ...
    @property
    def offset(self) -> int:
        """Of the instruction in the original code; for CALL that of the CALL itself."""
    @property
    def stores(self) -> str | None: ...
    mark: Any
    """What a recorder has learned of this instruction: `on_mark` is called with it before the probe fires."""
    @property
    def code(self) -> CodeType:
        """The original code object. (None once it is gone: a probe does not keep it alive.)"""
    @property
    def lineno(self) -> int | None: ...
    def __neg__(self) -> None: ...

class Int(int):
    """An int of a watched run that stands for others."""

class Float(float):
    """A float of a watched run that stands for others."""

def symbol(number: int | float, /) -> Int | Float:
    """A symbolic number with this value."""

def turn_plain(number: Any, /) -> None:
    """A symbolic number is a plain one from now on."""

def total(iterable: Any, start: Any = 0, /) -> Any: ...
def product(iterable: Any, /) -> Any: ...
def swap(holder: Any, old: Any, new: Any, /) -> bool: ...
def swap_item(container: tuple[Any, ...], index: int, number: Any, /) -> None:
    """Put a symbolic number in the place of an equal plain one in a tuple."""

class Watcher:
    """One recording of one thread."""

    on_symbol: Callable[..., object]
    """Called with the name and the operands of each operation on symbolic numbers."""

    def __new__(
        cls,
        handlers: dict[int, Callable[..., object]],
        *,
        enter: Callable[[FunctionType], object],
        classify: Callable[[CodeType], tuple[int, object, bool]],
        leaf: Callable[[Any, FunctionType, tuple[Any, ...]], object],
        blind: Callable[[CodeType, str | None], object],
        foreign: Callable[[CodeType], object],
        failed: Callable[[BaseException], object] | None,
        transparent: Callable[[FunctionType, tuple[Any, ...]], object] | None = None,
        on_resume: Callable[[Probe], object] | None = None,
        on_lost: Callable[[bool], object] | None = None,
        on_return: Callable[[Probe, Any], object] | None = None,
        on_mark: Callable[[Any], object] | None = None,
    ) -> Watcher: ...
    unfiltered: bool
    """Call the handlers at every probe, whatever its operands."""
    misled: bool
    displaced: bool
    """It was stopped because our own code could not run (the program has replaced builtins, or is at its limit of
    recursion): what was recorded does not count."""
    interrupted: bool
    """What the program gets between two of its instructions has ended the recording."""
    returns: bool
    """Call on_return(probe, value) before every return of a watched frame."""
    def run(self, func: FunctionType, slots: Sequence[Any], also: list[Any] = ..., /) -> Any:
        """Call the function's instrumented copy, watched. `slots`, if it is a list, and `also` are emptied when its
        frame has what it was given."""
    def interrupt(self, error: BaseException, /) -> None:
        """The recording is over; the program gets this when our own code has ended."""
    def stop(self) -> None: ...
    def know(self, obj: object, /) -> None: ...
    def forget(self, obj: object, /) -> None: ...
    def knows(self, obj: object, /) -> bool: ...
    def fresh(self, func: object, /) -> bool: ...
    def leave_unguarded(self, number: Any, /) -> None:
        """Tell the handler of PACK before something depends on this number; the caller keeps it alive."""
    def look_anew(self) -> None:
        """Tell the handlers of what they were told of before, too."""
    def approve(self, obj: object, /) -> None: ...
    def take_whole(self, function: FunctionType, /) -> None: ...
    def intercept(self, code: CodeType, /) -> None: ...
    interior: bool
    def call_watched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, /) -> Any: ...
    def call_leaf(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None, /) -> Any: ...
    def paused(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...
    def pend(self, calls: int = 0, /) -> None:
        """Watch nothing until the innermost watched frame (or the one so many calls away from it) comes to its next
        probe: then on_resume(probe) is called, and watching goes on with that probe, unless it returns True: then the
        wait goes on. If that frame is left before, on_lost(raised) is called, which may call pend() once more, for the
        caller's frame; else watching is over."""
    def hand_over(self, other: Watcher, /) -> None:
        """Let another watcher record the rest of this run."""
    def frames(self) -> tuple[list[tuple[Any, ...]], Any]:
        """The frames of the run, the root first, and the exception that the program is handling, or None.

        A frame is (kind of its code, its code, the original code, code unit of the instruction in progress, the
        original function, fast locals, is the stack as the last probe saw it, an operand whose slot the instruction
        uses for something else, which one that is or -1, the last probe that fired in it).
        What is not there is MISSING: unbound variables, NULL. Cells are cells."""
    def put(self, calls: int, slot: int, value: Any, /) -> None:
        """Set a slot of the frame so many calls away from the innermost. It must hold a value already. Nothing happens
        to the stack of the innermost frame while one of its instructions is at work."""
    def stack(self, calls: int, depth: int, /) -> list[Any]:
        """The lowest slots of the value stack of the frame so many calls away from the innermost; NULL is MISSING."""
    @property
    def last_probe(self) -> Probe | None: ...
    @property
    def here(self) -> Place | None:
        """The last probe fired; with the one in the user's code that led there, if it is not in that."""
    @property
    def error(self) -> BaseException | None: ...
    @property
    def events(self) -> int: ...
    @property
    def calls(self) -> int: ...

@final
class Origin:
    """How to reach one outside value again. A ledger makes them."""

    @property
    def index(self) -> int: ...
    @property
    def edge(self) -> Edge: ...
    @property
    def parent(self) -> Origin | None: ...
    @property
    def key(self) -> Any: ...
    @property
    def place(self) -> Place | None: ...
    @property
    def checks(self) -> list[Check]: ...

class AliasSet:
    """Tensors that share a version counter: a tensor, its views, what was detached from it."""

    version: int | None
    epoch: int  # number of recorded writes
    outside: bool  # does its memory belong to an input?
    @property
    def uncounted(self) -> bool: ...  # were there writes that the version counter does not show?
    def __init__(self, version: int | None, *, outside: bool) -> None: ...

class TrackedTensor:
    """A tensor of a segment: its node, and its fingerprint after the last operation that touched it."""

    node: Any  # of the operation; `index` says which of its results, () if it has one
    index: tuple[int, ...]
    print: tuple[Any, ...]
    epoch: int
    reference: Any
    @property
    def alias_set(self) -> AliasSet: ...
    def __init__(self, node: Any, index: tuple[int, ...], alias_set: AliasSet, print: tuple[Any, ...], /) -> None: ...

class Mode:
    """The part of the tensor mode that torch calls: it hands operations to the recorder's tracer."""

    def __init__(self, recorder: Any, /) -> None: ...

class Tracer:
    """The tensors and nodes of one segment; watch/tensors/tensor_mode.py says what it is for."""

    shapes: Callable[[Any, Any], object]
    """Called with every operation's node and result."""
    operations: int
    last_effect: int  # number of the probe behind which something was written or a random number drawn
    expected: tuple[Any, ...]  # torch's state as it should be
    answers: tuple[Any, ...] | None  # of the readers, while the state is as expected
    active: bool
    mutates: bool
    fails: bool  # may an operation fail for other data?
    acted: bool  # an operator with a body in Python has run
    @property
    def mutates_from(self) -> int: ...  # the place of the first operation that wrote to an input
    @property
    def known(self) -> dict[int, TrackedTensor]: ...
    @property
    def scalars(self) -> dict[int, tuple[Any, Any]]: ...  # numbers that are nodes, by identity
    @property
    def writers(self) -> list[int]: ...  # places, among the operations, of those that wrote to a tensor
    @property
    def asked(self) -> dict[Any, tuple[int, ...]]: ...  # sizes that the program has asked for, by node
    def __init__(
        self,
        watcher: Watcher,
        ledger: Ledger,
        make_graph: Callable[[], Any],
        nodes: list[Any],
        state: tuple[Any, ...],
        /,
    ) -> None: ...
    def lookup(self, tensor: Any, /) -> TrackedTensor:
        """The record of a tensor operand, checked against its fingerprint; outside tensors become inputs."""

    def ask(self, known: TrackedTensor, /) -> None:
        """The program asks for the sizes of a known tensor."""

    def argument(self, value: Any, tensors: list[tuple[Any, TrackedTensor]], /) -> Any:
        """A value as it stands in the graph; its tensors join the operands."""

    def refresh(self, tensors: list[tuple[Any, TrackedTensor]], in_place: bool, /) -> bool:
        """After an operation: did it write to an operand? The alias sets written to move on."""

    def enter(
        self, tensor: Any, node: Any, index: tuple[int, ...], tensors: list[tuple[Any, TrackedTensor]], /
    ) -> None:
        """A result that is not known yet: its node, which of the results it is, and the operands."""

    def node(self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], label: str, /) -> Any:
        """A new node, named after the variable that its result goes to."""

class Ledger:
    """The table of known outside objects of one recording; watch/objects/ledger.py says what it is for."""

    place: Instruction | None
    generalise: Callable[[Any, Any], bool]
    """Asked about every number and tuple that is read from outside; True: nothing is checked of it."""
    note_tensor: Callable[[Any], None]
    """Told of every tensor that becomes known."""
    def __init__(
        self,
        watcher: Watcher,
        check: type[Check],
        edges: tuple[Edge, ...],
        facts: tuple[Fact, ...],
        kinds: dict[type, Any],
        ask_kind: Callable[[Any], Fact | None],
        ask_value: Callable[[Any], tuple[type, Any]],
    ) -> None: ...
    @property
    def origins(self) -> list[Origin]:
        """All origins, parents before children."""
    @property
    def alive(self) -> list[Any]:
        """Every object that was ever known, which keeps its address its own."""
    @property
    def plans(self) -> dict[type, dict[str, int]]:
        """What a class says of a name; written by watch/objects/attributes.py."""
    @property
    def callable_modules(self) -> dict[type, bool]:
        """Do calls of such modules come to `forward`, unless there are hooks? `module_calls.py` writes it."""
    def find(self, value: object, /) -> Origin | None: ...
    def local(self, index: int, name: str, value: object, /) -> Origin: ...
    def constant(self, value: object, /) -> Origin:
        """The origin of an object that is its own guard: a class, a module's dict, a function of a class."""
    def read(self, parent: Origin, edge: Edge, key: Any, value: object, /) -> Origin:
        """Note that `value` was found at `edge`, `key` of parent."""
    def check(self, origin: Origin, fact: Fact, expected: Any, /) -> None:
        """Add a check, due to the present place."""
    def lacks(self, origin: Origin, key: str, /) -> None:
        """A dict of names has no such name. (A repeated check does no harm.)"""
    def touch(self, origin: Origin, value: object, /) -> None:
        """The program's course depends on the type of this object."""
    def note_change(self, target: object, /) -> None:
        """An object is changed by the program: no shortcut is taken through it."""
    def read_attribute(self, owner: object, name: str, /) -> bool:
        """Note a read of an instance attribute by plan; False: nothing is noted, or not all."""
    def read_registered(self, owner: object, name: str, /) -> bool:
        """Note a read of a module's part; False: nothing is noted, or not all."""
    def close(self) -> None:
        """Let go of everything; origins stay good for those who hold them, without their children."""

# Steps of a formula.
STEP_CONSTANT: Final[int]
STEP_SIZE: Final[int]
STEP_STRIDE: Final[int]
STEP_NUMBER: Final[int]
STEP_ADD: Final[int]
STEP_MUL: Final[int]
STEP_FLOORDIV: Final[int]
STEP_MOD: Final[int]
STEP_POW: Final[int]
STEP_MIN: Final[int]
STEP_MAX: Final[int]
STEP_EQ: Final[int]
STEP_NE: Final[int]
STEP_LT: Final[int]
STEP_LE: Final[int]
STEP_AND: Final[int]
STEP_OR: Final[int]
STEP_NOT: Final[int]

# Guards in C: how a value is reached, parts of functions, what is asked, how long an answer lasts, kinds of versions.
FETCH_LOCAL: Final[int]
FETCH_CONST: Final[int]
FETCH_NAMESPACE: Final[int]
FETCH_KEY: Final[int]
FETCH_INDEX: Final[int]
FETCH_MEMBER: Final[int]
FETCH_FUNCTION: Final[int]
FETCH_CELL: Final[int]
FETCH_MRO: Final[int]
FETCH_SUPER: Final[int]
FETCH_CALL: Final[int]
FETCH_GRAD: Final[int]
FETCH_KEYED: Final[int]
PART_CODE: Final[int]
PART_DEFAULTS: Final[int]
PART_KWDEFAULTS: Final[int]
PART_CLOSURE: Final[int]
PART_GLOBALS: Final[int]
PART_NAME: Final[int]
PART_QUALNAME: Final[int]
PART_ANNOTATIONS: Final[int]
FETCH_SELF: Final[int]
CHECK_TYPE: Final[int]
CHECK_EQUAL: Final[int]
CHECK_IS: Final[int]
CHECK_TENSOR: Final[int]
CHECK_LEN: Final[int]
CHECK_KEYS: Final[int]
CHECK_HAS: Final[int]
CHECK_LACKS: Final[int]
CHECK_CODE: Final[int]
CHECK_SPECIALS: Final[int]
CHECK_NO_ENTRY: Final[int]
CHECK_UNSET: Final[int]
CHECK_NO_SLOT: Final[int]
CHECK_UNHOOKED: Final[int]
CHECK_ASK: Final[int]
LIVE: Final[int]
OWN: Final[int]
FIXED: Final[int]
VERSION_NONE: Final[int]
VERSION_DICT: Final[int]
VERSION_TYPE: Final[int]
STATE_NUMBER: Final[int]
STATE_IS_NONE: Final[int]
STATE_NUMBER_OR_NONE: Final[int]
STATE_OBJECT: Final[int]

def watched_dicts() -> int | None: ...

@final
class Guards:
    """The guards of one recording, checked in C."""

    def __new__(
        cls,
        state: tuple[Any, ...],
        nodes: list[tuple[Any, ...]],
        relations: list[tuple[int, int, bool, int, int]],
        groups: list[tuple[int, ...]],
        wanted: tuple[int, ...],
        asked: tuple[int, ...],
        always: int,
        ask: Callable[[tuple[Any, ...], bool], tuple[Any, ...] | int] | None,
        formulas: list[list[tuple[int, int, int]]] = ...,
        terms: tuple[int, ...] = ...,
        storages: tuple[int, ...] = ...,
        firsts: tuple[int, ...] = ...,
    ) -> Guards: ...
    def check(self, slots: tuple[Any, ...], /) -> Any: ...
    def state_holds(self) -> bool: ...
    @property
    def visited(self) -> int: ...
    @property
    def digested(self) -> int: ...
    @property
    def failed(self) -> tuple[int, int]: ...

TAPE_REGISTER: Final[int]
TAPE_CONSTANT: Final[int]
TAPE_TUPLE: Final[int]
TAPE_LIST: Final[int]
TAPE_SLICE: Final[int]
TAPE_DICT: Final[int]
TAPE_CALL: Final[int]
TAPE_METHOD: Final[int]
TAPE_BINARY: Final[int]

@final
class Tape:
    """The operations of a graph, to be called with its inputs.

    `steps` are (kind, target, parts of the arguments, names of keywords, register of the result, registers that are
    done with); a part is (kind, what). What the first `harmless` steps raise is marked (`errors.mark_unwritten`).
    """

    inputs: int
    registers: int

    def __new__(
        cls, steps: list[tuple[Any, ...]], inputs: int, registers: int, result: tuple[int, Any], harmless: int = 0, /
    ) -> Tape: ...
    def __call__(self, *inputs: Any) -> Any: ...

def expect_sizes(tensor: Any, sizes: tuple[int, ...], complain: Callable[[Any, Any], Any], /) -> Any:
    """`complain` is called with both if these are not its sizes, and raises."""

@final
class Count:
    """A number that C and Python code count up together."""

    value: int

@final
class EntryTable:
    """The recordings of one code object, most recently used first."""

    @property
    def entries(self) -> tuple[Any, ...]: ...
    def add(self, entry: object, /) -> None: ...
    def used(self, entry: object, /) -> None: ...
    def publish(
        self, entry: object, guards: Guards, replay: Callable[..., Any] | None, step: BreakStep | None, hits: Count, /
    ) -> None: ...
    def clear(self) -> None: ...

@final
class ResumeTarget:
    """One place where a program goes on after a break."""

    def __new__(cls, point: Any, code: CodeType, namespace: dict[str, Any], /) -> ResumeTarget: ...
    @property
    def point(self) -> Any: ...
    @property
    def table(self) -> EntryTable | None: ...
    def open(self, table: EntryTable, /) -> None: ...

@final
class PendingResume:
    """The program goes on at a target."""

    @property
    def target(self) -> ResumeTarget: ...
    def take(self) -> tuple[FunctionType, list[Any]]: ...

@final
class BreakStep:
    """The step behind a segment."""

    def __new__(
        cls,
        code: CodeType,
        namespace: dict[str, Any],
        targets: tuple[ResumeTarget, ...],
        read: object = ...,
        of: type = ...,
        moves: tuple[int, ...] = ...,
        /,
    ) -> BreakStep: ...
    @property
    def targets(self) -> tuple[ResumeTarget, ...]: ...
    # Asked about each function that starts while the step is made: None, it runs as it is; False, and so does what it
    # calls; or what is called in its place.
    callees: Callable[[FunctionType], Callable[[FunctionType, list[Any]], Any] | bool | None] | None
    idle: bool  # the segment before it has no graph
    def go(self, function: FunctionType, state: tuple[Any, ...], /) -> PendingResume: ...

FROM_OUTPUT: int
FROM_VALUE: int
FROM_CONSTANT: int

@final
class Relay:
    """A replay that is nothing but a graph: parts of the result are (FROM_..., index or constant)."""

    def __new__(
        cls, graph: Callable[..., Any] | None, inputs: int, parts: tuple[tuple[int, Any], ...], is_tuple: bool, /
    ) -> Relay: ...
    @property
    def graph(self) -> Any: ...
    def settle(self, graph: Callable[..., Any], /) -> None: ...
    def __call__(self, values: tuple[Any, ...], /) -> Any: ...

@final
class Compiled:
    """A compiled callable: checks guards and calls replays in C; its fallback does everything else."""

    def __new__(
        cls,
        fallback: Callable[..., Any],
        function: FunctionType,
        table: EntryTable,
        hits: Count,
        resume: Callable[[Any, tuple[Any, ...], tuple[Any, ...]], Any],
        failed: Callable[[Any, BaseException, FunctionType, tuple[Any, ...]], Any],
        go_on: Callable[[PendingResume], Any],
        passing: Count = ...,
        spared: Count = ...,
        passed: Count = ...,
    ) -> Compiled: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, obj: object, objtype: type | None = None, /) -> Any: ...
    def stand_in(self, obj: object, original: object, /) -> None: ...
    @property
    def fallback(self) -> Callable[..., Any]: ...

def set_other_compiler(switch: Callable[[Any], Any], reset: Callable[[], Any], /) -> None: ...
def enter(types: tuple[type, ...], /) -> None:
    """C code that compares, hashes or shows an object of one of these reads what it holds."""

def set_quick(on: bool, readers: dict[Any, Any], kind: object, /) -> None: ...
def is_object_member(descriptor: object, /) -> bool: ...
def state_learn(
    readers: tuple[tuple[Any, Any, int], ...],
    namespace: dict[str, Any],
    name: str,
    any_autocast: Callable[[], bool],
    autocast: Callable[[], tuple[Any, ...]],
    /,
) -> None: ...
def state_direct(libtorch_cpu: str, libc10: str, precisions: int, /) -> bool: ...
def state_is(state: tuple[Any, ...], /) -> bool: ...
def tensor_learn(
    tensor: type,
    parameter: type,
    impl: int,
    keys: int,
    requires_grad: object,
    is_leaf: object,
    grad: object,
    library: str,
    layout: tuple[int, ...] | None,
    /,
) -> bool: ...
def tensor_forget() -> None: ...
def tensor_way() -> str: ...
def tensor_storage(tensor: object, /) -> int | None: ...
def tensor_memory(tensor: object, /) -> tuple[int, int, bool] | None: ...
def tensor_numbers(tensor: object, /) -> tuple[int, int]: ...
def tensor_matches(value: object, facts: tuple[Any, ...], /) -> bool: ...
def current() -> Watcher | None: ...
def state() -> int: ...
def interrupted() -> int: ...
def hook_installed() -> bool: ...
def builtins_intact() -> bool: ...
def code_kind(code: CodeType, /) -> int | None: ...
def forget_code(code: CodeType, /) -> None: ...
def distinct(number: Any, /) -> Any:
    """Another object that is the same int, float or text that is not empty."""

def type_version(T: type, /) -> int: ...

proxied: Any  # a descriptor of mappingproxies: what they show

def mro_lookup(T: type, name: str, /) -> Any: ...
def surely_binds(function: FunctionType, given: int, names: tuple[str, ...], /) -> bool:
    """Does a function take so many positional arguments, and these names? False in doubt."""

def raising(error: BaseException, /) -> Any:
    """A function of any arguments that raises this error, and has no frame."""

def as_iterator(obj: object, /) -> Any: ...
def frame_takes(frame: FrameType, obj: object, /) -> bool:
    """Is this object an argument of the frame, or among its `*args`? Leaves no `f_locals` at it."""

def tensor_version(tensor: object, /) -> int | None:
    """The version counter of a tensor; None for inference tensors, which have none."""

def fingerprint(tensor: object, strided: object, /) -> tuple[int | None, int, Any, tuple[int, ...], bool]:
    """(version, address, dtype, shape, requires_grad); address 0 unless the tensor's layout is `strided`."""

def tensors_are(tensor: type, base: type, /) -> None:
    """The class of tensors, and its base in C: their attributes are asked without a lookup from now on."""

def tensor_keys(tensor: object, /) -> int | None:
    """A tensor's raw dispatch key set; None if it cannot be read."""

def tracer_learn(*what: Any) -> None:
    """What the tensor mode works with; see TracerSetup in tracer.h."""

def answers(functions: tuple[Callable[[], Any], ...], /) -> tuple[Any, ...]:
    """What each function answers, called without arguments."""

HOST_ALLOCATE: int
HOST_KERNEL: int
HOST_GEMM: int
HOST_CALL: int
HOST_ALIAS: int
HOST_EXPECT: int
HOST_LAUNCH: int
HOST_UPLOAD: int
HOST_FREE: int
HOST_BLOCKS: int

def host_pack_bytes(m: int, n: int, k: int, /) -> int: ...
def host_learn(cpu: str, python: str, omp: str, keys: int, needed_keys: int, /) -> tuple[bool, bool]:
    """Where torch's C functions are, and which dispatch keys a tensor may have and must have.

    Whether host functions can be made, and whether there is a BLAS.
    """

def gpu_learn(driver: str, torch: str, /) -> bool:
    """Where the CUDA driver and torch's library for CUDA are. Whether all that is needed is in them."""

@final
class GpuKernel:
    """How a kernel is launched on a GPU: variants with what they require, and their launches."""

    def __new__(
        cls, variants: tuple[tuple[Any, ...], ...], buffers: int, slots: int, load: Callable[[int], tuple[int, ...]], /
    ) -> GpuKernel: ...

@final
class Host:
    """The host function of a compiled graph: takes the list of inputs and clears it, gives the results."""

    _boxed_call: bool

    def __new__(
        cls,
        inputs: int,
        registers: int,
        known: list[int],
        unknown: int,
        compute: Callable[[list[Any]], tuple[int, ...] | None] | None,
        buffers: list[tuple[int, int, float]],
        checks: list[tuple[Any, ...]],
        steps: list[tuple[Any, ...]],
        outputs: tuple[int, ...],
        constants: tuple[Any, ...],
        arena: int,
        keeps_inputs: bool,
        fallback: Callable[[list[Any]], Any],
        state: int,
        restore: Callable[[Any], Any],
        gpu: tuple[Any, ...] | None,
        /,
    ) -> Host: ...
    def __call__(self, inputs: list[Any], /) -> Any: ...
    def looks(self, inputs: list[Any], skipped: tuple[int, ...], /) -> bytes | None:
        """Where each input lies, 8 bytes each, 0 for those that are skipped; None if they are not what the graph was
        compiled for."""

"""What a value of a joint graph costs to keep, and whether it may be computed again.

What enters: a joint graph (``primals…, tangents… → forward outputs…, gradients…``) whose nodes carry their
fake or meta value in ``meta["val"]``.
What leaves: ``Sides``, the graph taken apart into the side that needs tangents and the side that does not, and
``Bans``, which values the backward may not compute again, each with the reason in words.
What holds in between: a rule speaks of one operator or one node; what is not known to be cheap counts as
expensive. Only values that the forward computes anyway are banned: what only the backward wants is computed
once wherever it stands. ``docs/design/partition.md`` gives the reasons behind the numbers.
"""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument, Target

from stator.autograd.symbols import SYMBOLIC
from stator.support.op_namespaces import TORCHS_OWN, has_promised_sizes

# A reduction that reads more than this for each byte that it makes is kept: few bytes, a long way to them.
REDUCTION_RATIO = 8
# Operations between a recomputed value and the kept ones it is made from.
LONGEST_CHAIN = 64
# Expensive operations that a chain of recomputation may reach across (about one transformer block).
LONGEST_SPAN = 8

_SCALAR_BYTES = 8
_UNKNOWN_SIZE = 4096  # of a dimension that depends on data: any number does, it only weighs


# ------------------------------------------------------------------------------------------------- operators


class Kind(enum.Enum):
    """What computing an operator a second time would mean."""

    FREE = "makes no memory of its own"  # views, parts of tuples, sizes, constants
    FUSIBLE = "one pass over its result"  # pointwise, casts, copies, gathers
    REDUCTION = "one pass over its inputs"  # sums, norms, softmax
    EXPENSIVE = "too expensive to compute again"
    RANDOM = "would draw other random numbers"
    EFFECT = "would change something a second time"


_CREATING = frozenset(
    "full zeros ones arange eye linspace scalar_tensor full_like zeros_like ones_like new_full new_zeros new_ones "
    "lift_fresh_copy iota".split()
)
_MOVING = frozenset(
    "_to_copy copy cat stack flip roll tril triu repeat constant_pad_nd embedding index_select gather "
    "_unsafe_masked_index".split()
)
# Same size out as in, and a few numbers per row or channel beside it. Batch norm only in its pure forms:
# native_batch_norm changes its running statistics without its schema saying so.
_NORMALIZING = frozenset(
    "_softmax _log_softmax _safe_softmax native_layer_norm native_group_norm _fused_rms_norm "
    "_native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training".split()
)
# These share memory with their first argument although their schemas do not say so.
_UNSAFE_VIEWS = frozenset("_unsafe_view unsafe_split unsafe_split_with_sizes unsafe_chunk".split())
_ZEROS_AND_ONES = frozenset((torch.ops.aten.bernoulli.default, torch.ops.aten.bernoulli.p))


@functools.cache
def kind_of(target: Target) -> Kind:
    if not isinstance(target, torch._ops.OpOverload):
        module = getattr(target, "__module__", None)
        symbolic = module in ("_operator", "math") or getattr(target, "__name__", "").startswith("sym_")
        return Kind.FREE if symbolic else Kind.EXPENSIVE
    if target._schema.is_mutable:
        return Kind.EFFECT
    if torch.Tag.nondeterministic_seeded in target.tags:
        return Kind.RANDOM
    name = target._opname if target.namespace in TORCHS_OWN else ""  # where the names above mean what they say
    if viewed_argument(target) is not None or name in _CREATING or name.startswith("sym_"):
        return Kind.FREE
    if name in _NORMALIZING or torch.Tag.reduction in target.tags:
        return Kind.REDUCTION
    if name in _MOVING or torch.Tag.pointwise in target.tags or torch.Tag.view_copy in target.tags:
        return Kind.FUSIBLE
    return Kind.EXPENSIVE


def kind_at(node: fx.Node) -> Kind:
    """The kind of a node's operator, as it is called there: attention draws numbers only if it drops something."""
    if node.op != "call_function":
        return Kind.FREE if node.op == "get_attr" else Kind.EXPENSIVE
    kind = kind_of(node.target)
    return Kind.EXPENSIVE if kind is Kind.RANDOM and _drops_nothing(node) else kind


def _drops_nothing(node: fx.Node) -> bool:
    assert isinstance(node.target, torch._ops.OpOverload)
    names = [argument.name for argument in node.target._schema.arguments]
    if "dropout_p" not in names:
        return False
    which = names.index("dropout_p")
    given = node.args[which] if which < len(node.args) else node.kwargs.get("dropout_p", 0.0)
    return isinstance(given, (int, float)) and given == 0


@functools.cache
def viewed_argument(target: Target) -> int | None:
    """The position of the argument whose memory the result of a view shares; None for any other operator."""
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return None
    if target.namespace == "aten" and target._opname in _UNSAFE_VIEWS:
        return 0
    if not any(result.alias_info for result in target._schema.returns):
        return None
    return next(i for i, argument in enumerate(target._schema.arguments) if argument.alias_info)


# ---------------------------------------------------------------------------------------------------- values


def _number(size: int | torch.SymInt) -> int:
    if isinstance(size, torch.SymInt):
        hint = size.node.hint
        return _UNKNOWN_SIZE if hint is None else int(hint)
    return size


def bytes_of(value: Any) -> int:
    """The bytes of a value, by the sizes it was traced with where they are symbolic."""
    if isinstance(value, torch.Tensor):
        return _number(value.numel()) * value.dtype.itemsize
    if isinstance(value, (tuple, list)):
        return sum(map(bytes_of, value))
    return 0 if value is None else _SCALAR_BYTES


def is_symbol(node: fx.Node) -> bool:
    """Whether a node is a number and not a tensor."""
    return isinstance(node.meta.get("val"), (int, float, *SYMBOLIC))


def is_mask(node: fx.Node) -> bool:
    """Whether a node holds zeros and ones as wider numbers: it is kept as bool, exactly and in fewer bytes."""
    return node.target in _ZEROS_AND_ONES and node.meta["val"].dtype is not torch.bool


# ----------------------------------------------------------------------------------------------- joint graphs


@dataclass(frozen=True)
class Sides:
    """A joint graph taken apart. The collections of nodes are in the graph's order."""

    primals: Sequence[fx.Node]
    tangents: Sequence[fx.Node]
    outputs: Sequence[Argument]
    gradients: Sequence[Argument]
    position: dict[fx.Node, int]
    backward: set[fx.Node]  # needs a tangent
    forward: set[fx.Node]  # needs none, and the forward has it anyway
    forward_ends: list[fx.Node]  # outputs, and effects that need no tangent
    backward_ends: list[fx.Node]  # gradients, and effects that need one
    wanted: list[fx.Node]  # needs no tangent, and something that needs one reads it
    root: dict[fx.Node, fx.Node]  # whose memory a node's value lives in; itself unless it is a view
    alive: set[fx.Node]  # primals that somebody holds anyway: parameters
    numbers: set[fx.Node]  # no tensors
    costs: dict[fx.Node, int] = field(default_factory=dict)  # what `cut.cost` has found


def take_apart(graph: fx.Graph, joint_inputs: Any, num_fwd_outputs: int) -> Sides:
    nodes = list(graph.nodes)
    position = {node: i for i, node in enumerate(nodes)}
    placeholders = [node for node in nodes if node.op == "placeholder"]
    tangents = [node for node in placeholders if str(node.target).startswith("tangents")]
    primals = [node for node in placeholders if not str(node.target).startswith("tangents")]
    for node in nodes:
        if "val" not in node.meta and node.op not in ("output", "get_attr"):
            raise ValueError(f"the node {node.name} of the joint graph has no meta['val']: its size is not known")

    flat = _flat(nodes[-1].args[0])
    if not 0 <= num_fwd_outputs <= len(flat):
        raise ValueError(f"num_fwd_outputs is {num_fwd_outputs}, but the joint graph returns {len(flat)} values")
    outputs, gradients = flat[:num_fwd_outputs], flat[num_fwd_outputs:]

    backward = set(tangents)
    for node in nodes[:-1]:
        if not backward.isdisjoint(node.all_input_nodes):
            backward.add(node)
    for output in outputs:
        if output in backward:
            raise ValueError(f"the forward output {output} depends on a tangent")

    # Random numbers are drawn in the forward, dead or alive, so that the stream of numbers stays the program's.
    effects = [n for n in nodes if n.op == "call_function" and _stays(n)]
    forward_ends = [*_nodes(outputs), *(node for node in effects if node not in backward)]
    backward_ends = [*_nodes(gradients), *(node for node in effects if node in backward)]
    forward = ancestors(forward_ends)
    forward.update(node for node in nodes if node.target is operator.getitem and node.args[0] in forward)
    wanted = {read for reader in ancestors(backward_ends) & backward for read in reader.all_input_nodes}
    wanted.update(backward_ends)
    return Sides(
        primals=primals,
        tangents=tangents,
        outputs=outputs,
        gradients=gradients,
        position=position,
        backward=backward,
        forward=forward,
        forward_ends=forward_ends,
        backward_ends=backward_ends,
        wanted=sorted(wanted - backward, key=position.__getitem__),
        root=_roots(nodes),
        numbers=set(filter(is_symbol, nodes)),
        alive={p for p, given in zip(primals, _given(joint_inputs, placeholders), strict=False) if _is_held(p, given)},
    )


def _stays(node: fx.Node) -> bool:
    """Whether or not somebody reads it: the program may have read its sizes."""
    return kind_at(node) in (Kind.EFFECT, Kind.RANDOM) or (not node.users and has_promised_sizes(node))


def _flat(returned: Argument) -> list[Argument]:
    return list(returned) if isinstance(returned, (tuple, list)) else [returned]


def _nodes(arguments: Iterable[Argument]) -> list[fx.Node]:
    return [argument for argument in arguments if isinstance(argument, fx.Node)]


def _given(joint_inputs: Any, placeholders: Sequence[fx.Node]) -> Sequence[Any]:
    """The inputs, flat, where there is one per placeholder; they may also come as (primals, tangents)."""
    leaves = torch.utils._pytree.tree_leaves(joint_inputs)
    return leaves if len(leaves) == len(placeholders) else [None] * len(placeholders)


def _is_held(primal: fx.Node, given: Any) -> bool:
    held = primal.meta.get("parameter", False) or isinstance(given, torch.nn.Parameter)
    return held and not primal.meta.get("mutated", False)


def _roots(nodes: Iterable[fx.Node]) -> dict[fx.Node, fx.Node]:
    root: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        viewed: Argument = None
        if node.op == "call_function":
            source = node.args[0] if node.target is operator.getitem else node
            which = viewed_argument(source.target) if isinstance(source, fx.Node) else None
            if node.target is operator.getitem:
                viewed = source if which is not None else None
            elif which is not None:
                viewed = node.args[which] if which < len(node.args) else None
        root[node] = root[viewed] if isinstance(viewed, fx.Node) else node
    return root


def ancestors(nodes: Iterable[fx.Node], stop: Set[fx.Node] = frozenset()) -> set[fx.Node]:
    """The nodes and all that they are computed from, but nothing behind the nodes of `stop`."""
    found: set[fx.Node] = set()
    left = list(nodes)
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            if node not in stop:
                left.extend(node.all_input_nodes)
    return found


# ----------------------------------------------------------------------------------------------- checkpointing

MUST_RECOMPUTE, PREFER_RECOMPUTE = "must_recompute", "prefer_recompute"
MUST_SAVE, PREFER_SAVE = "must_save", "prefer_save"
_POLICIES = {name: name for name in (MUST_RECOMPUTE, PREFER_RECOMPUTE, MUST_SAVE, PREFER_SAVE)} | {
    "must_cpu_offload": MUST_SAVE,  # kept, where it is
    "prefer_cpu_offload": PREFER_SAVE,
}


def policy_of(node: fx.Node) -> str | None:
    """What `torch.utils.checkpoint` asks for this node: True, or a policy by name or as torch's enum."""
    asked = node.meta.get("recompute")
    if asked is None or asked is False:
        return None
    if asked is True:
        return MUST_RECOMPUTE
    name = str(getattr(asked, "name", asked)).lower().replace(" ", "_")
    if name not in _POLICIES:
        raise ValueError(f"{node.name}.meta['recompute'] is {asked!r}; it may be True or one of {sorted(_POLICIES)}")
    return _POLICIES[name]


def _region_of(node: fx.Node) -> Any:
    """Which checkpointed call a node belongs to; None outside of all."""
    region = node.meta.get("checkpoint_region")
    return "the only one" if region is None and policy_of(node) else region


def _entering(sides: Sides) -> set[fx.Node]:
    """Values that enter a checkpointed region: eager keeps them, so each region is recomputed by itself."""
    found: set[fx.Node] = set()
    for node in sides.forward:
        region = _region_of(node)
        if region is not None:
            found.update(sides.root[read] for read in node.all_input_nodes if _region_of(read) != region)
    return found


# -------------------------------------------------------------------------------------------------------- bans


_NEVER = frozenset((Kind.EXPENSIVE, Kind.RANDOM, Kind.EFFECT))


@dataclass
class Bans:
    """What the backward may not compute again, and what the forward may not keep."""

    reason: dict[fx.Node, str] = field(default_factory=dict)  # not to be recomputed, and why
    price: dict[fx.Node, float] = field(default_factory=dict)  # those of them that a small memory budget lifts
    unsavable: set[fx.Node] = field(default_factory=set)  # kept by keeping something else, or not at all

    def lifted(self, number: int) -> Bans:
        """The same without the cheapest `number` of the bans that have a price."""
        gone = set(sorted(self.price, key=self.price.__getitem__)[:number])
        return Bans({node: why for node, why in self.reason.items() if node not in gone}, {}, self.unsavable)


@dataclass
class _Chain:
    """How far a value that may be recomputed is from what it would be recomputed from."""

    length: int  # operations, the longest way
    start: float  # the expensive operations that lie before the first kept value, the earliest one


def find_bans(sides: Sides) -> Bans:
    bans = Bans()
    entering = _entering(sides)
    useful = ancestors(sides.wanted, stop={node for node in sides.forward if kind_at(node) in _NEVER})
    level: dict[fx.Node, int] = {}  # expensive operations before a node, the longest way
    chains: dict[fx.Node, _Chain] = {}
    for node in sides.position:
        if node in sides.backward or node.op == "output":
            continue
        if node.op == "placeholder":
            bans.reason[node] = "a parameter" if node in sides.alive else "an input"
            level[node] = 0
            continue
        if node in sides.numbers:
            bans.reason[node] = "a number: keeping it costs nothing"
            level[node] = 0
            continue
        kind = kind_at(node)
        inputs = node.all_input_nodes
        level[node] = max((level[i] for i in inputs), default=0) + (kind is Kind.EXPENSIVE)
        chain = chains[node] = _chain(inputs, kind, chains, level, bans)

        if node.op == "get_attr" or sides.root[node] is not node or isinstance(node.meta["val"], (tuple, list)):
            bans.unsavable.add(node)
        if node not in sides.forward:
            continue
        policy = policy_of(node)
        if kind is Kind.RANDOM and policy in (MUST_RECOMPUTE, PREFER_RECOMPUTE) and _worth_drawing_again(node):
            bans.unsavable.add(node)
            continue
        part = node.target is operator.getitem and sides.root[node] is node  # of several results: a value of its own
        part_of_banned = part and node.args[0] in bans.reason
        if (why := _always(node, kind, policy, node in entering, part)) is not None:
            bans.reason[node] = why
        elif policy == MUST_RECOMPUTE and not part_of_banned:
            bans.unsavable.add(node)
        elif policy is None and (priced := _unless_memory_is_short(node, kind, chain, level[node], useful)) is not None:
            bans.reason[node], bans.price[node] = priced
    return bans


def state_bytes(device: torch.device) -> int:
    """The size of a generator's state, which random numbers can be drawn from again."""
    return 16 if device.type == "cuda" else 5056


def _worth_drawing_again(node: fx.Node) -> bool:
    """A checkpointed region draws its numbers again if the generator's state is smaller than they are."""
    made = node.meta["val"]
    first = made if isinstance(made, torch.Tensor) else made[0]
    return bytes_of(made) // (first.dtype.itemsize if is_mask(node) else 1) > state_bytes(first.device)


def _chain(
    inputs: Sequence[fx.Node], kind: Kind, chains: dict[fx.Node, _Chain], level: dict[fx.Node, int], bans: Bans
) -> _Chain:
    length, start = 0, float("inf")
    for read in inputs:
        if read not in bans.reason:
            length = max(length, chains[read].length)
            start = min(start, chains[read].start)
        elif read.op != "placeholder" and not is_symbol(read):
            start = min(start, level[read])
    return _Chain(length + (kind is not Kind.FREE), start)


def _always(node: fx.Node, kind: Kind, policy: str | None, enters: bool, part: bool) -> str | None:
    """Why a node is not recomputed whatever the memory budget; None if it may be."""
    if kind in (Kind.RANDOM, Kind.EFFECT):
        return f"{_operator(node)} {kind.value}"
    if kind is Kind.FREE and not part:
        return None
    if policy in (MUST_SAVE, PREFER_SAVE):
        return "its checkpoint policy says so"
    if enters:
        return "it enters a checkpointed region"
    if kind is Kind.EXPENSIVE and policy is None:
        return f"{_operator(node)} is {kind.value}"
    return None


def _unless_memory_is_short(
    node: fx.Node, kind: Kind, chain: _Chain, level: int, useful: Set[fx.Node]
) -> tuple[str, float] | None:
    """Why a node is not recomputed at full memory budget, and the bytes of work for each byte that is not kept."""
    if kind is Kind.FREE:
        return None
    if kind is Kind.REDUCTION:
        parts = (
            [node] if isinstance(node.meta["val"], torch.Tensor) else [part for part in node.users if part in useful]
        )
        made = sum(bytes_of(part.meta["val"]) for part in parts)
        ratio = sum(bytes_of(read.meta.get("val")) for read in node.all_input_nodes) / max(1, made)
        if ratio > REDUCTION_RATIO:
            return f"{_operator(node)} reads {ratio:.0f} times what is needed of it", ratio
    if chain.length > LONGEST_CHAIN:
        return f"it ends a chain of {chain.length} cheap operations", chain.length
    if level - chain.start > LONGEST_SPAN:
        return f"it is {level - chain.start:.0f} expensive operations from what it is made of", LONGEST_CHAIN
    return None


def _operator(node: fx.Node) -> str:
    return str(getattr(node.target, "_opname", getattr(node.target, "__name__", node.target)))

"""From guards as data to guards in C: `compile_guards` makes a `_native.Guards` out of origins and checks.

Enters: origins (parents before children), groups, the origins whose values are wanted. Leaves: a tree over the origins
in the order in which C code walks it, each path resolved once; and one Python function for whatever only Python can
check, built from the reference functions in `replay.guards`. What C code takes on is decided here, by table.

Order: arguments first, those with the fewest guards before the others (they change most), then what hangs on constants.
Below a value with a version, children that are constants come first: C code passes over them while the version stands.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from .. import _native as n
from ..interrupts import let_through
from ..recording import Check, Edge, Fact, Origin
from ..support.guard_readers import shared_storages
from ..support.symbolic_exprs import Relation, terms_of
from ..support.symbolic_exprs import holds as relation_holds
from . import layout, state
from .guard_edges import EDGES, fetch, known_type
from .guard_facts import FACTS, holds
from .reference import specials_unchanged

_C: Any = torch._C
ValuesByOrigin = dict[int, Any]
CheckRow = tuple[int, int, int, int, Any]  # of a check: fact, how long it lasts, its origin and index, what is expected


class _Node:
    """One place of the tree while it is built."""

    def __init__(self, step: tuple[int, Any, int], origin: int, version: int) -> None:
        self.step = step
        self.origin = origin
        self.version = version
        self.rows: list[CheckRow] = []
        self.children: list[_Node] = []
        self.number = -1

    @property
    def is_fixed(self) -> bool:
        """Nothing about it can change while the version of its parent stands."""
        entry = self.step[0] in (n.FETCH_KEY, n.FETCH_MRO, n.FETCH_SUPER)
        constant = self.version == n.VERSION_NONE and all(row[1] == n.FIXED for row in self.rows)
        return entry and constant and not self.children

    def size(self) -> int:
        return 1 + sum(child.size() for child in self.children)


def _version(cls: type | None) -> int:
    if cls is not None and issubclass(cls, dict):
        return n.VERSION_DICT
    return n.VERSION_TYPE if cls is not None and issubclass(cls, type) else n.VERSION_NONE


class _Compiler:
    def __init__(self, origins: list[Origin]) -> None:
        self.origins = origins
        self.nodes: dict[int, _Node] = {}  # by origin
        self.roots: list[_Node] = []
        self.late: list[tuple[_Node, _Node, _Node]] = []  # behind all others: (node, what it hangs on, its key)
        self.relations: list[tuple[int, int, bool, int, int]] = []  # by origins
        self.always: list[tuple[Origin, list[tuple[int, Check]]]] = []  # what Python does in every call
        self.doubtful: list[tuple[Origin, list[tuple[int, Check]]]] = []  # and when C code is in doubt
        self.order: list[_Node] = []

    def build(self) -> None:
        for origin in self.origins:
            if not self._place(origin):
                self.always.append((origin, list(enumerate(origin.checks))))
                continue
            left, doubtful = self._checks(origin, self.nodes[origin.index])
            if left:
                self.always.append((origin, left))
            if doubtful:
                self.doubtful.append((origin, doubtful))
        for node in self.nodes.values():
            if not node.children and not any(row[1] == n.OWN for row in node.rows):
                node.version = n.VERSION_NONE  # nothing to be saved by it
        self.roots.sort(key=lambda node: (node.step[0], node.size()))
        for root in (*self.roots, *(node for node, _, _ in self.late)):
            self._number(root)

    def _place(self, origin: Origin) -> bool:
        """Put an origin into the tree, if C code can fetch it."""
        parent = origin.parent
        if parent is not None and parent.index not in self.nodes:
            return False
        step = EDGES[origin.edge].in_c(origin, None if parent is None else known_type(parent))
        if step is None:
            return False
        if parent is not None and step[0] == n.FETCH_NAMESPACE:
            node = self.nodes[origin.index] = self._namespace(self.nodes[parent.index])
            node.origin = origin.index
            return True
        if origin.edge is Edge.KEYED and origin.key.index not in self.nodes:
            return False
        node = self.nodes[origin.index] = _Node(step, origin.index, _version(known_type(origin)))
        if parent is not None and origin.edge is Edge.KEYED:
            self.late.append((node, self.nodes[parent.index], self.nodes[origin.key.index]))
            return True
        (self.roots if parent is None else self.nodes[parent.index].children).append(node)
        return True

    def _checks(self, origin: Origin, node: _Node) -> tuple[list[tuple[int, Check]], list[tuple[int, Check]]]:
        """What is left to Python: always, and in doubt."""
        left, doubtful = [], []
        cls = known_type(origin)
        for index, check in enumerate(origin.checks):
            row = FACTS[check.fact]
            if row.same is not None and check.expected in self.nodes:
                self.relations.append((origin.index, check.expected, row.same, origin.index, index))
                continue
            code = row.in_c(check, cls)
            if code is None:
                left.append((index, check))
                continue
            if origin.edge is not Edge.CONST or code[1] != n.FIXED:
                place = self._namespace(node) if row.of_namespace else node
                place.rows.append((code[0], code[1], origin.index, index, code[2]))
            if row.doubtful(check.expected):
                doubtful.append((index, check))
        return left, doubtful

    def _namespace(self, node: _Node) -> _Node:
        """The instance dict of a node's value: the origin of that, if there is one, comes to the same place."""
        for child in node.children:
            if child.step[0] == n.FETCH_NAMESPACE:
                return child
        namespace = _Node((n.FETCH_NAMESPACE, None, 0), node.origin, n.VERSION_DICT)
        node.children.append(namespace)
        return namespace

    def _number(self, root: _Node) -> None:
        pending = [root]
        while pending:
            node = pending.pop()
            node.number = len(self.order)
            self.order.append(node)
            node.rows.sort(key=lambda row: row[1])
            node.children.sort(key=lambda child: not child.is_fixed)
            pending += reversed(node.children)

    def rows(self) -> list[tuple[Any, ...]]:
        parents = {id(child): node.number for node in self.order for child in node.children}
        for node, parent, key in self.late:
            parents[id(node)] = parent.number
            node.step = (*node.step[:2], key.number)
        return [
            (
                *(node.step[0], parents.get(id(node), -1), node.step[1], node.step[2]),
                *(node.version, node.number + 1 + sum(child.is_fixed for child in node.children), node.origin),
                node.rows,
            )
            for node in self.order
        ]


def compile_guards(
    origins: list[Origin],
    state: tuple[Any, ...],
    distinct: list[tuple[int, ...]],
    shared: tuple[list[int], tuple[tuple[int, ...], ...] | None],
    relations: list[Relation],
    wanted: list[int],
) -> n.Guards | None:
    """Guards in C; `shared`: graph inputs and the groups of them that share memory. None if they cannot be made."""
    compiler = _Compiler(origins)
    compiler.build()
    nodes = compiler.nodes
    groups = [tuple(sorted(nodes[i].number for i in group)) for group in distinct if all(i in nodes for i in group)]
    formulas, terms, left = _formulas(relations, nodes)
    inputs, firsts = _storages(*shared, origins, nodes)
    if inputs:
        shared = shared[0], None
    asking = _Asking(
        compiler, [group for group in distinct if not all(i in nodes for i in group)], shared, left, wanted
    )
    return n.Guards(
        state=state,
        nodes=compiler.rows(),
        relations=[(nodes[a].number, nodes[b].number, same, o, c) for a, b, same, o, c in compiler.relations],
        groups=groups,
        formulas=formulas,
        terms=tuple(nodes[i].number for i in terms),
        storages=tuple(nodes[i].number for i in inputs),
        firsts=tuple(firsts),
        wanted=tuple(nodes[i].number if i in nodes else -1 for i in wanted),
        asked=tuple(nodes[i].number for i in asking.asked),
        always=asking.always_count,
        ask=asking,
    )


def _storages(
    inputs: list[int], groups: tuple[tuple[int, ...], ...] | None, origins: list[Origin], nodes: dict[int, _Node]
) -> tuple[list[int], list[int]]:
    """The graph's inputs, and of each the first one in the same memory. Nothing if that does not matter, or if C code
    cannot tell."""
    if groups is None or not layout.reads_storages() or not all(i in nodes for i in inputs):
        return [], []
    types_of = {origin.index: known_type(origin) for origin in origins}
    numbers = [types_of[i] in (int, float) for i in inputs]
    read = [any(row[0] == n.CHECK_TENSOR for row in nodes[i].rows) for i in inputs]
    if not all(map(operator.or_, numbers, read)):
        return [], []
    firsts = {place: group[0] for group in groups for place in group}
    return inputs, [-1 if number else firsts.get(place, place) for place, number in enumerate(numbers)]


_STEPS_OF = {
    "+": n.STEP_ADD,
    "*": n.STEP_MUL,
    "//": n.STEP_FLOORDIV,
    "%": n.STEP_MOD,
    "**": n.STEP_POW,
    "min": n.STEP_MIN,
    "max": n.STEP_MAX,
    "==": n.STEP_EQ,
    "!=": n.STEP_NE,
    "<": n.STEP_LT,
    "<=": n.STEP_LE,
    "and": n.STEP_AND,
    "or": n.STEP_OR,
}
_TERM_STEPS = {"size": n.STEP_SIZE, "stride": n.STEP_STRIDE, "number": n.STEP_NUMBER}
FormulaSteps = list[tuple[int, int, int]]


def _formulas(
    relations: list[Relation], nodes: dict[int, _Node]
) -> tuple[list[FormulaSteps], list[int], list[Relation]]:
    """Relations for C, the origins of the values that they are about, and the relations that C code cannot check."""
    formulas, left = [], []
    places: dict[int, int] = {}
    for relation in relations:
        origins = {term[1] for term in terms_of(relation.expression)}
        steps = _steps(relation.expression, places) if origins <= nodes.keys() else None
        if steps is None:
            left.append(relation)
        else:
            formulas.append(steps)
    return formulas, list(places), left


def _steps(expression: Any, places: dict[int, int]) -> FormulaSteps | None:
    """An expression for a stack machine; None if there is more in it than ints."""
    if type(expression) is not tuple:
        whole = isinstance(expression, int) and -(2**63) < expression < 2**63
        return [(n.STEP_CONSTANT, int(expression), 0)] if whole else None
    head, *rest = expression
    if head in _TERM_STEPS:
        place = places.setdefault(rest[0], len(places))
        return [(_TERM_STEPS[head], place, rest[1] if len(rest) > 1 else 0)]
    if head != "not" and head not in _STEPS_OF:
        return None
    steps: FormulaSteps = []
    for position, part in enumerate(rest):
        found = _steps(part, places)
        if found is None:
            return None
        steps += [*found, *([(_STEPS_OF[head], 0, 0)] if position else [])]
    return [*steps, (n.STEP_NOT, 0, 0)] if head == "not" else steps


class _Asking:
    """The checks that are left to Python: called by C code with values that it has checked so far."""

    def __init__(
        self,
        compiler: _Compiler,
        groups: list[tuple[int, ...]],
        shared: tuple[list[int], tuple[tuple[int, ...], ...] | None],
        relations: list[Relation],
        wanted: list[int],
    ) -> None:
        nodes = compiler.nodes
        self._relations = relations
        self._always = [(o, o.index not in nodes, checks) for o, checks in compiler.always]
        self._doubtful = [(o, [(i, _remembering(c)) for i, c in checks]) for o, checks in compiler.doubtful]
        self._groups = groups
        self._inputs, self._storages = shared
        self._fetched = [i for i in wanted if i not in nodes]
        needed = dict.fromkeys(i for group in groups for i in group)
        needed |= dict.fromkeys(self._inputs if self._storages is not None else ())
        for origin, fetched, checks in self._always:
            needed[origin.parent.index if fetched and origin.parent is not None else origin.index] = None
            needed |= {c.expected: None for _, c in checks if c.fact in (Fact.SAME, Fact.OTHER)}
            keyed = [c.expected for _, c in checks if c.fact in (Fact.HAS_KEYED, Fact.LACKS_KEYED)]
            needed |= {other.index: None for pair in keyed for other in pair}
            needed |= {origin.key.index: None} if origin.edge is Edge.KEYED else {}
            needed |= dict.fromkeys(origin.key.sources) if origin.edge is Edge.COMPUTED else {}
        needed |= {term[1]: None for relation in relations for term in terms_of(relation.expression)}
        always = [i for i in needed if i in nodes]
        in_doubt = dict.fromkeys(o.index for o, _ in self._doubtful)
        self.asked = [*always, *(i for i in in_doubt if i not in needed)]
        self.always_count = len(always) if self._always or groups or relations or self._storages is not None else -1

    def __call__(self, values: tuple[Any, ...], in_doubt: bool) -> tuple[Any, ...] | int:
        """The wanted values that Python fetched, or the number of the check that does not hold."""
        known: Any = dict(zip(self.asked, values, strict=False))
        for origin, fetched, checks in self._always:
            if fetched:
                try:
                    known[origin.index] = fetch(origin, known, ())
                except Exception as error:
                    let_through(error)
                    return origin.index << 16 | 0xFFFF
            failed = _first_failing(origin, checks, known)
            if failed is not None:
                return failed
        if in_doubt:
            for origin, checks in self._doubtful:
                failed = _first_failing(origin, checks, known)
                if failed is not None:
                    return failed
        for group in self._groups:
            if len({id(known[i]) for i in group}) != len(group):
                return 0xFFFF
        if not all(relation_holds(relation, known) for relation in self._relations):
            return 0xFFFF
        if self._storages is not None and shared_storages(known[i] for i in self._inputs) != self._storages:
            return 0xFFFF
        return tuple([known[i] for i in self._fetched])


def _holds(check: Check, value: Any, known: Any) -> bool:
    if type(check.expected) is list:
        return n.type_version(value) == check.expected[0] or specials_unchanged(value, check.expected)
    return holds(check, value, known)


def _first_failing(origin: Origin, checks: list[tuple[int, Check]], known: Any) -> int | None:
    for index, check in checks:
        try:
            ok = _holds(check, known[origin.index], known)
        except Exception as error:
            let_through(error)
            ok = False
        if not ok:
            return origin.index << 16 | index
    return None


def _remembering(check: Check) -> Check:
    """Special methods are compared again only if the version of their class has moved since they last were."""
    if check.fact is Fact.SPECIALS:
        return check._replace(expected=[check.expected[0] or -1, check.expected[1]])
    return check


layout.setup()
state.setup()

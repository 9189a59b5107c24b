"""Torch's database of operators through the native backend: `python tests/fuse/opinfo.py`.

Every operator with torch's own samples, in float32, bfloat16 and int64, forward and (floating types) backward:
results, strides and gradients must be eager's. The error against eager in float64 may be no worse than a small
multiple of eager's own. Samples are taken as they are, with gaps in memory, and for pointwise operators also of size 0
and 1, broadcast, and with special numbers. Prints what is wrong, and how much is fused, claimed by a library call, and
left to the dispatcher.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import math
import operator
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from op_database import DATABASE, UNDEFINED
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo

from stator import events
from stator.autograd import aot_function
from stator.backends import native
from stator.errors import CannotDerive
from stator.fuse.decompose import decompositions
from stator.fuse.loops import Call, Gemm, Launch, LoopProgram

DTYPES = (torch.float32, torch.bfloat16, torch.int64)
OTHERS = ("jiterator", "signal.", "ops.")
OPERATORS = {name: op for name, op in DATABASE.items() if name not in UNDEFINED and not name.startswith(OTHERS)}
LOOKED_AT = 60  # samples, to choose from

# Calls that are claimed: an algorithm of a library, which loops would not do better.
LIBRARY = re.compile(
    r"aten\.(_?(add|b|badd)?(mm|bmm)\b|addbmm|(_|mkldnn_)?convolution|_scaled_dot_product|_flash_att|_efficient_att|sort|"
    r"topk|kthvalue|mode|(nan)?median|(_\w*)?unique|searchsorted|bucketize|histc|_?histogram|bincount|scatter|index_(put|"
    r"add|copy|fill|reduce)|_unsafe_index_put|_index_put|_unsafe_masked_index_put|masked_scatter|put|embedding_(dense_)?"
    r"(backward|bag|renorm)|_embedding_bag|_?fft|linalg_|_linalg|cholesky|lu_|qr|svd|triangular|ormqr|geqrf|orgqr|_?cum|"
    r"logcumsumexp|_logcumsumexp|\w*pool|max_unpool|upsample|_upsample|grid_sampl|_?cdist|_?pdist|_?ctc|im2col|col2im|"
    r"native_dropout|bernoulli|randn?|normal|uniform|exponential|geometric|cauchy|log_normal|multinomial|"
    r"(_thnn|gru|lstm|rnn)|_trilinear|polygamma|igamma|stft|istft|segment_reduce|_segment|_int_mm|_weight_int)"
)


def is_pointwise(op: Any) -> bool:
    return isinstance(op, (UnaryUfuncInfo, BinaryUfuncInfo))


def is_reduction(op: Any) -> bool:
    return isinstance(op, ReductionOpInfo)


# ------------------------------------------------------------------------------------------------------ samples


@dataclass
class Sample:
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    label: str


def with_gaps(values: Any, turned: bool) -> Any:
    """The same values, each tensor in memory with gaps, or its dimensions in another order."""

    def spread(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.dim() == 0 or leaf.layout is not torch.strided:
            return leaf
        sizes = list(leaf.shape)
        order = [leaf.dim() - 1, *range(leaf.dim() - 1)] if turned else list(range(leaf.dim()))
        strides, step = [0] * leaf.dim(), 1 if turned and leaf.dim() > 1 else 2
        for dim in reversed(order):
            strides[dim], step = step, step * max(sizes[dim], 1)
        room = torch.empty_strided(sizes, strides, dtype=leaf.dtype)
        return room.copy_(leaf.detach()).requires_grad_(leaf.requires_grad)

    return pytree.tree_map(spread, values)


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((0,), (0,)), ((1,), (1,)), ((), ()), ((3, 0), (1,)), ((2, 1, 5), (3, 1)), ((70,), ()), ((), (4, 9)),
]  # fmt: skip
SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5, 2.0, 3.0, 7.0, -7.0, 1e-40, -1e-40, 1e-20, 3e38, -3e38, 1e10,
    88.0, -88.0, 100.0, float("inf"), float("-inf"), float("nan"), 0.99999, 1.00001,
]  # fmt: skip
INTEGERS = [
    0,
    1,
    -1,
    2,
    -2,
    3,
    7,
    -7,
    63,
    64,
    65,
    2**31,
    -(2**31),
    2**53 + 1,
    2**63 - 1,
    1 - 2**63,
]  # by -1, the smallest number kills eager


def extreme(op: Any, dtype: torch.dtype) -> Iterator[Sample]:
    """Pointwise operators on special numbers, and on sizes that are special."""
    numbers = torch.tensor(SPECIAL if dtype.is_floating_point else INTEGERS).to(dtype)
    generator = torch.Generator().manual_seed(0)

    def draw(shape: tuple[int, ...]) -> Tensor:
        return (torch.rand(shape, generator=generator) * 5 + 1).to(dtype)

    if isinstance(op, UnaryUfuncInfo):
        yield Sample((numbers.clone(),), {}, "special numbers")
        for shape in dict.fromkeys(one for one, _ in SHAPES):
            yield Sample((draw(shape),), {}, f"size {shape}")
    elif isinstance(op, BinaryUfuncInfo) and "polynomial" not in op.name:  # those take a degree, and loop over it
        left, right = (t.clone() for t in torch.meshgrid(numbers, numbers, indexing="ij"))
        yield Sample((left, right), {}, "special numbers")
        for one, other in SHAPES:
            yield Sample((draw(one), draw(other)), {}, f"sizes {one}, {other}")


def samples(op: Any, dtype: torch.dtype, count: int) -> Iterator[Sample]:
    """Some of torch's samples, spread evenly over those there are; of every two, one with gaps."""
    grads = dtype.is_floating_point and op.supports_autograd and dtype in op.backward_dtypes
    torch.manual_seed(0)
    made = list(itertools.islice(op.sample_inputs_func(op, "cpu", dtype, grads), LOOKED_AT))
    wanted = sorted({round(i * (len(made) - 1) / max(count - 1, 1)) for i in range(count)}) if made else []
    for turn, at in enumerate(wanted):
        sample = made[at]
        args, kwargs, label = (sample.input, *sample.args), sample.kwargs, f"sample {at}"
        yield Sample(args, kwargs, label)
        if turn % 2:
            args, kwargs = with_gaps((args, kwargs), turn % 4 == 1)
            yield Sample(args, kwargs, f"{label}, {'turned' if turn % 4 == 1 else 'with gaps'}")


# ---------------------------------------------------------------------------------------------------- comparing


def tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def run(fn: Callable[..., Any], args: Any, kwargs: Any) -> tuple[list[Tensor], list[Tensor | None]]:
    """Results and gradients."""
    torch.manual_seed(0)
    outputs = tensors(fn(*args, **kwargs))
    wanted = [t for t in tensors((args, kwargs)) if t.requires_grad]
    given = [t for t in outputs if t.requires_grad]
    if not given or not wanted:
        return outputs, []
    tangents = [_tangent(t) for t in given]
    return outputs, list(torch.autograd.grad(given, wanted, tangents, allow_unused=True))


def _tangent(t: Tensor) -> Tensor:
    numbers = torch.linspace(-1, 2, t.numel(), dtype=torch.float64).sin().bfloat16()  # the same in every type
    return numbers.view(t.shape).to(t.dtype)


def widened(values: Any) -> Any:
    def wide(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            return leaf.detach().double().requires_grad_(leaf.requires_grad)
        if isinstance(leaf, torch.dtype) and leaf in (torch.float32, torch.bfloat16, torch.float16):
            return torch.float64
        return leaf

    return pytree.tree_map(wide, values)


def compare(
    got: Tensor | None, want: Tensor | None, exact: Tensor | None, what: str, *, closely: bool, error: float = 0.0
) -> str | None:
    """What is wrong with a result, in words. `error`: how far eager is off for other inputs close by."""
    if got is None or want is None:
        return None if all(t is None or not t.any() for t in (got, want)) else f"{what}: one gradient is missing"
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"{what}: {got.dtype} {list(got.shape)} instead of {want.dtype} {list(want.shape)}"
    if what.startswith("result") and want.layout is torch.strided and want.numel():
        strides = [[s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] for t in (got, want)]
        if strides[0] != strides[1]:
            return f"{what}: strides {strides[0]} instead of {strides[1]}"
    if got.layout is not torch.strided:
        got, want, exact = (t if t is None else t.to_dense() for t in (got, want, exact))
    got, want = got.detach(), want.detach()
    if got.is_complex():
        got, want, exact = (t if t is None else torch.view_as_real(t.resolve_conj()) for t in (got, want, exact))
    if not want.is_floating_point():
        return None if torch.equal(got, want) else f"{what}: {_differing(got, want, got != want)}"
    digits = 8
    if exact is None or exact.shape != want.shape or not exact.is_floating_point():
        exact, digits = want, 32  # eager's error is unknown
    if not torch.equal(got.isnan(), want.isnan()):
        return f"{what}: NaN where eager has none, or none: {_differing(got, want, got.isnan() != want.isnan())}"
    if not got.numel():
        return None
    eps = torch.finfo(got.dtype).eps
    g, w, e = (t.detach().double().nan_to_num(0, 1e300, -1e300) for t in (got, want, exact))
    infinite = want.isinf() | got.isinf()
    limit = torch.finfo(got.dtype).max
    if infinite.any() and not (same := (got == want) | ~infinite | (e.abs() > 0.99 * limit)).all():
        return f"{what}: infinite: {_differing(got, want, ~same)}"
    finite = ~infinite & (e.abs() < 1e300)
    g, w, e = (torch.where(finite, t, 0.0) for t in (g, w, e))
    mine, eagers = (g - e).abs(), (w - e).abs()
    scale = e.abs() if closely else e.abs().max()
    eagers = eagers if closely else eagers.max().clamp(min=error)
    allowed = 4 * eagers + digits * eps * scale + torch.finfo(got.dtype).tiny
    wrong = mine > allowed
    if wrong.any():
        return f"{what}: {_differing(got, want, wrong)}, exactly {exact[wrong].flatten()[:4].tolist()}"
    return None


def _differing(got: Tensor, want: Tensor, where: Tensor) -> str:
    return f"{got[where].flatten()[:4].tolist()} instead of {want[where].flatten()[:4].tolist()}"


# ------------------------------------------------------------------------------------------------------ checking


@dataclass
class Checked:
    """What became of one sample."""

    name: str
    dtype: torch.dtype
    label: str
    forward: list[LoopProgram] = field(default_factory=list)
    backward: list[LoopProgram] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    is_complex: bool = False  # kernels do not compute with complex numbers
    is_random: bool = False  # eager's numbers are drawn by eager's operators
    wrong: list[str] = field(default_factory=list)
    not_derived: bool = False

    def calls(self, programs: Sequence[LoopProgram]) -> list[str]:
        return [s.label for p in programs for s in p.steps if isinstance(s, Call) and not _is_view(s)]

    @property
    def kind(self) -> str:
        """Of the forward: `fused`, `claimed` or `dispatched`; `view` if nothing is computed."""
        steps = [step for program in self.forward for step in program.steps]
        calls = self.calls(self.forward)
        if self.not_derived or self.refused or any(not LIBRARY.match(call) for call in calls):
            return "dispatched"
        if calls or any(isinstance(step, Gemm) for step in steps):
            return "claimed"
        return "fused" if any(isinstance(step, Launch) for step in steps) else "view"


def _is_view(call: Call) -> bool:
    if not isinstance(call.target, torch._ops.OpOverload):
        return call.target is operator.getitem or not any(isinstance(r, str) for r in call.reads)
    returns = call.target._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


class Watching:
    """Programs are noted as they are made."""

    def __init__(self, checked: Checked) -> None:
        self._checked = checked
        self._part = "forward"

    def compiler(self, part: str) -> Callable[..., Any]:
        def compile_part(module: Any, examples: Any) -> Any:
            inner, programs = native._program, getattr(self._checked, part)

            def noting(given: Any) -> LoopProgram:
                program = inner(given)
                programs.append(program)
                return program

            native._program = noting
            unsubscribe = events.subscribe(lambda e: self._checked.refused.append(e.why), events.NotGenerated)
            try:
                made = native._generate_or_run(module, examples, part=part)
            finally:
                native._program = inner
                unsubscribe()
            called = {
                out for program in programs for step in program.steps if isinstance(step, Call) for out in step.outs
            }
            return self._with_types(module, made, called)

        return compile_part

    def _with_types(self, module: torch.fx.GraphModule, made: Callable[..., Any], called: set[Any]) -> Any:
        """Machine code believes what is said of the calls' results: in the first call, that is compared with the
        truth."""
        looked = False

        def run(inputs: list[Any]) -> Any:
            nonlocal looked
            if not looked:
                looked = True
                with torch.random.fork_rng(), torch.no_grad():
                    self._checked.wrong += _Types(module).run_and_tell(list(inputs), called)
            return made(inputs)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


class _Types(torch.fx.Interpreter):
    """Runs a graph, and tells which nodes give another tensor than was said when it was traced."""

    def run_and_tell(self, inputs: list[Any], called: set[Any]) -> list[str]:
        self.different: list[str] = []
        self._called = called
        self.run(*inputs)
        return self.different

    def run_node(self, n: torch.fx.Node) -> Any:
        result, said = super().run_node(n), n.meta.get("val")
        if n.name in self._called and isinstance(said, Tensor) and result.layout is torch.strided:
            looks = [
                (t.dtype, t.shape, [s for s, size in zip(t.stride(), t.shape, strict=True) if size > 1 and t.numel()])
                for t in (result, said)
            ]
            if looks[0] != looks[1]:
                self.different.append(f"{n.target} gives {looks[0]}, said to be {looks[1]}")
        return result


def check(name: str, op: Any, dtype: torch.dtype, sample: Sample) -> Checked | None:
    """None: eager cannot do it."""
    checked = Checked(name, dtype, sample.label)
    try:
        want = run(op.op, sample.args, sample.kwargs)
    except Exception:
        return None
    checked.is_complex = any(t.is_complex() for t in (*want[0], *tensors((sample.args, sample.kwargs))))
    watching = Watching(checked)
    compiled = aot_function(
        op.op, watching.compiler("forward"), watching.compiler("backward"), decompositions=decompositions()
    )
    try:
        got = run(compiled, sample.args, sample.kwargs)
        again = run(compiled, sample.args, sample.kwargs)
    except CannotDerive:
        checked.not_derived = True
        return checked
    except Exception as error:
        if "meta" in str(error):  # torch's own way to say that the data of a tensor are wanted
            checked.not_derived = True
            return checked
        checked.wrong.append(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        return checked
    exact = _exact(op, sample, checked)
    closely = is_pointwise(op)
    if len(got[0]) != len(want[0]) or len(got[1]) != len(want[1]):
        checked.wrong.append(f"{len(got[0])} results, {len(got[1])} gradients")
        return checked
    for label, mine, second, eagers, wide in zip(
        ("result", "gradient"), got, again, want, exact or (None, None), strict=True
    ):
        for i, (g, a, w) in enumerate(zip(mine, second, eagers, strict=True)):
            e = wide[i] if wide is not None and len(wide) == len(eagers) else None
            if closely and label == "result":
                w = _either_answer(op, sample, g, w, i)
            why = compare(g, w, e, f"{label} {i}", closely=closely and label == "result")
            if why and e is not None and w is not None and w.is_floating_point():
                error = _error_close_by(op, sample, label, i)
                why = compare(g, w, e, f"{label} {i}", closely=closely and label == "result", error=error)
            why = why or compare(a, g, g, f"{label} {i}, second call", closely=closely)
            if why:
                checked.wrong.append(why)
    return checked


def _either_answer(op: Any, sample: Sample, got: Tensor, want: Tensor, number: int) -> Tensor:
    """Eager's result. Some of its functions of vectors give NaN (`fmod` of numbers far apart) where it has a number for
    elements that do not fill a vector: then that number will do as well."""
    if got.shape != want.shape or not want.is_floating_point() or not (doubtful := want.isnan() & ~got.isnan()).any():
        return want
    one_by_one = run(op.op, *with_gaps((sample.args, sample.kwargs), False))[0][number]
    return torch.where(doubtful & ~one_by_one.isnan(), one_by_one, want)


def _bessel(kind: str, order: int) -> Callable[[float], float]:
    import mpmath

    def value(x: float) -> float:
        if not math.isfinite(x) or (kind == "y" and x < 0):
            return math.nan
        if kind == "y" and x == 0:
            return -math.inf
        return float(getattr(mpmath, f"bessel{kind}")(order, x))

    return value


TRUTH = {f"special.bessel_{kind}{order}": _bessel(kind, order) for kind in "jy" for order in (0, 1)}


def _exact(op: Any, sample: Sample, checked: Checked) -> Any:
    """Eager in float64; nothing where that is something else, as it is for random numbers."""
    for program in (*checked.forward, *checked.backward):
        for step in program.steps:
            target = getattr(step, "target", None)
            if isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags:
                checked.is_random = True
                return None
    if op.name in TRUTH:  # of which eager itself has but seven digits in float64
        x = sample.args[0].detach().double()
        values = [TRUTH[op.name](number) for number in x.flatten().tolist()]
        return [torch.tensor(values, dtype=torch.float64).view(x.shape)], []
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # what integers become
    try:
        return run(op.op, *widened((sample.args, sample.kwargs)))
    except Exception:
        return None
    finally:
        torch.set_default_dtype(usual)


def _error_close_by(op: Any, sample: Sample, label: str, number: int) -> float:
    """Eager's largest error for inputs that differ in their last digits: here it may just have been lucky."""
    found = 0.0
    for seed in range(8):
        args, kwargs = _nudged((sample.args, sample.kwargs), seed)
        mine, wide = run(op.op, args, kwargs), run(op.op, *widened((args, kwargs)))
        result, exact = ((a if label == "result" else b)[number] for a, b in (mine, wide))
        if result is not None and exact is not None and result.shape == exact.shape and not exact.is_complex():
            found = max(found, float((result.detach().double() - exact.detach()).abs().nan_to_num(0, 0).max()))
    return found


def _nudged(values: Any, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)

    def nudge(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or leaf.layout is not torch.strided:
            return leaf
        signs = torch.randint(-1, 2, leaf.shape, generator=generator)
        moved = leaf.detach() * (1 + signs * torch.finfo(leaf.dtype).eps)
        return moved.to(leaf.dtype).requires_grad_(leaf.requires_grad)

    return pytree.tree_map(nudge, values)


@contextlib.contextmanager
def unseeded() -> Iterator[None]:
    """Samples of random operators set the seed inside of the function; a trace would see that once."""
    seeded = database.wrapper_set_seed
    database.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    try:
        yield
    finally:
        database.wrapper_set_seed = seeded


def check_operator(name: str, dtype: torch.dtype, count: int, *, extremes: bool = True) -> Iterator[Checked]:
    op = OPERATORS[name]
    if dtype not in op.dtypes:
        return
    with warnings.catch_warnings(), unseeded():
        warnings.simplefilter("ignore")
        chosen = samples(op, dtype, count)
        if extremes and is_pointwise(op):
            chosen = itertools.chain(chosen, extreme(op, dtype))
        for sample in chosen:
            checked = check(name, op, dtype, sample)
            if checked is not None:
                yield checked


# ------------------------------------------------------------------------------------------------------- the end


_NOT_COUNTED = ("view", "complex", "random")


@dataclass
class Summary:
    """Numbers of a whole run."""

    all: list[Checked] = field(default_factory=list)

    @functools.cached_property
    def kinds(self) -> dict[str, str]:
        """By operator: what becomes of it in most of its samples; views do not count beside others."""
        counted: dict[str, Counter[str]] = {}
        for checked in self.all:
            kind = "complex" if checked.is_complex else "random" if checked.is_random else checked.kind
            counted.setdefault(checked.name, Counter())[kind] += 1
        kinds = {}
        for name, counter in counted.items():
            views = counter.pop("view", 0)
            kinds[name] = counter.most_common(1)[0][0] if counter else "view" if views else ""
        return kinds

    def share(self, among: Callable[[Any], bool]) -> tuple[int, int]:
        """How many of these operators are fused, of how many."""
        chosen = [kind for name, kind in self.kinds.items() if among(OPERATORS[name]) and kind not in _NOT_COUNTED]
        return sum(kind == "fused" for kind in chosen), len(chosen)

    def lines(self) -> Iterator[str]:
        kinds = Counter(self.kinds.values())
        samples = len(self.all)
        yield f"{len(self.kinds)} operators, {samples} samples: " + ", ".join(
            f"{kinds[kind]} {kind} ({100 * kinds[kind] / max(len(self.kinds), 1):.0f} %)"
            for kind in ("fused", "claimed", "dispatched", *_NOT_COUNTED)
        )
        for label, among in (("pointwise", is_pointwise), ("reductions", is_reduction)):
            fused, whole = self.share(among)
            yield f"{label}: {fused} of {whole} fused ({100 * fused / max(whole, 1):.1f} %)"
            left = [n for n, kind in self.kinds.items() if among(OPERATORS[n]) and kind not in ("fused", *_NOT_COUNTED)]
            if left:
                yield f"  not fused: {', '.join(sorted(left))}"
        calls: Counter[str] = Counter()
        for checked in self.all:
            calls.update({c for c in checked.calls((*checked.forward, *checked.backward)) if not LIBRARY.match(c)})
        yield "dispatched most: " + ", ".join(f"{label} ({n})" for label, n in calls.most_common(60))
        refused = Counter(why for checked in self.all for why in checked.refused)
        if refused:
            yield "refused: " + ", ".join(f"{why} ({n})" for why, n in refused.most_common(20))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default="", help="a regular expression that their names match")
    parser.add_argument("--dtypes", default="float32,bfloat16,int64")
    parser.add_argument("--samples", type=int, default=6, help="of torch's, per operator and type")
    parser.add_argument("--verbose", action="store_true", help="the kind of each operator")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    summary = Summary()
    start = time.perf_counter()
    wrong = 0
    names = [name for name in OPERATORS if re.search(asked.ops, name)]
    for name in names:
        for dtype in (getattr(torch, d) for d in asked.dtypes.split(",")):
            found: dict[str, list[str]] = {}
            for checked in check_operator(name, dtype, asked.samples):
                summary.all.append(checked)
                wrong += bool(checked.wrong)
                for why in checked.wrong:
                    found.setdefault(checked.label, []).append(why)
                if asked.verbose:
                    print(name, dtype, checked.label, checked.kind, checked.calls(checked.forward), flush=True)
            for label, whys in found.items():
                print(f"WRONG {name} {str(dtype)[6:]} {label}: {whys[0][:300]}", flush=True)
    print("\n".join(summary.lines()))
    print(f"{time.perf_counter() - start:.0f} s")
    print(f"operators / samples / wrong: {len(summary.kinds)} / {len(summary.all)} / {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""What may be computed again: by operator, by checkpoint policy, by distance, by memory budget."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_partition import Case, Halves, Residual, joint_of, joint_of_module, long_chain, stack
from torch import fx, nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy

from stator.autograd import remat
from stator.autograd.partition import default_partition, min_cut_partition
from stator.autograd.remat import Kind, bytes_of, kind_at, kind_of, viewed_argument

aten = torch.ops.aten

# -------------------------------------------------------------------------------------------------- operators

KINDS = {
    Kind.FREE: [
        aten.view.default,
        aten.t.default,
        aten.split.Tensor,
        aten.expand.default,
        aten.detach.default,
        aten._unsafe_view.default,
        aten.full.default,
        aten.arange.default,
        aten.sym_size.int,
        operator.getitem,
        operator.mul,
    ],
    Kind.FUSIBLE: [
        aten.sin.default,
        aten.gelu.default,
        aten.where.self,
        aten._to_copy.default,
        aten.clone.default,
        aten.cat.default,
        aten.embedding.default,
    ],
    Kind.REDUCTION: [
        aten.sum.dim_IntList,
        aten.var_mean.correction,
        aten._softmax.default,
        aten.native_layer_norm.default,
        aten._native_batch_norm_legit_functional.default,
    ],
    Kind.EXPENSIVE: [
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.convolution.default,
        aten.embedding_dense_backward.default,
        aten.sort.default,
        aten.cumsum.default,
        aten.index_put.default,
        aten.native_batch_norm.default,  # it changes its running statistics, whatever its schema says
        torch.matmul,
    ],
    Kind.RANDOM: [
        aten.native_dropout.default,
        aten.bernoulli.p,
        aten.rand_like.default,
        aten.randn.default,
        aten.multinomial.default,
    ],
    Kind.EFFECT: [aten.add_.Tensor, aten.copy_.default, aten._native_batch_norm_legit.default],
}


def name_of(item: Any) -> str:
    return item.__name__ if item is torch.matmul else str(item)


@pytest.mark.parametrize(("kind", "target"), [(kind, target) for kind in KINDS for target in KINDS[kind]], ids=name_of)
def test_kinds(kind: Kind, target: Any) -> None:
    assert kind_of(target) is kind


def test_every_random_or_writing_operator_of_aten_is_seen() -> None:
    for name in dir(aten):
        packet = getattr(aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            target = getattr(packet, overload)
            if torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable:
                assert kind_of(target) in (Kind.RANDOM, Kind.EFFECT), target


def test_attention_is_random_only_if_it_drops_something() -> None:
    graph = fx.Graph()
    q = graph.placeholder("q")
    attention = aten._scaled_dot_product_flash_attention_for_cpu.default
    assert kind_at(graph.call_function(attention, (q, q, q))) is Kind.EXPENSIVE
    assert kind_at(graph.call_function(attention, (q, q, q, 0.0))) is Kind.EXPENSIVE
    assert kind_at(graph.call_function(attention, (q, q, q, 0.1))) is Kind.RANDOM


def test_operators_of_others_are_expensive() -> None:
    @torch.library.custom_op("stator_test::sin", mutates_args=())
    def sin(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    assert kind_of(torch.ops.stator_test.sin.default) is Kind.EXPENSIVE


def test_what_a_view_shows() -> None:
    assert viewed_argument(aten.slice.Tensor) == 0
    assert viewed_argument(aten.sin.default) is None
    assert viewed_argument(aten.add_.Tensor) is None


def test_bytes() -> None:
    assert bytes_of(torch.empty(3, 4, dtype=torch.bfloat16, device="meta")) == 24
    assert bytes_of((torch.empty(2), torch.empty(3, dtype=torch.bool))) == 11
    assert bytes_of(True) == 8
    assert bytes_of(None) == 0


# -------------------------------------------------------------------------------------------------------- bans


def test_expensive_values_are_kept() -> None:
    cut = joint_of(lambda x, w: (x @ w).sin().cos(), torch.randn(4, 4), torch.randn(4, 4)).split().check()
    assert "mm" in cut.names
    assert [node.name for node in cut.recomputed] == ["sin"]


def test_random_numbers_are_drawn_once() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rand_like(x).exp()

    cut = joint_of(noisy, torch.randn(4)).split().check()
    assert cut.names == ["exp"]
    assert "rand_like" not in {node.name for node in cut.bw.graph.nodes}


def test_random_numbers_for_the_backward_alone_are_drawn_in_the_forward() -> None:
    graph = fx.Graph()
    x, tangent = graph.placeholder("primals_1"), graph.placeholder("tangents_1")
    noise = graph.call_function(aten.rand_like.default, (x,))
    out = graph.call_function(aten.rand_like.default, (x,))
    gradient = graph.call_function(aten.mul.Tensor, (tangent, noise))
    graph.output((out, gradient))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(4, device="meta")
    case = Case(fx.GraphModule(nn.Module(), graph), [torch.randn(4), torch.randn(4)], 1)
    for partition in (default_partition, min_cut_partition):
        assert case.split(partition).check().names == [noise.name]


def test_a_mask_of_zeros_and_ones_is_kept_as_bool() -> None:
    def dropping(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w) * (torch.bernoulli(x.detach(), 0.5) / 0.5)

    case = joint_of(dropping, torch.randn(4, 4), nn.Parameter(torch.randn(4, 4)))
    cut = case.split().check()
    assert [(value.dtype, value.bytes) for value in cut.saved if value.extra] == [(torch.float32, 64), (torch.bool, 16)]
    assert "_to_copy" in cut.bw.code


def test_a_long_reduction_is_kept_unless_memory_is_short() -> None:
    """Mean and variance of a layer norm that is written out: few bytes, and the whole input to read."""

    def normalized(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = x @ w
        var, mean = torch.var_mean(h, -1, keepdim=True)
        return ((h - mean) * torch.rsqrt(var + 1e-5)).sin()

    case = joint_of(normalized, torch.randn(8, 64), torch.randn(64, 64))
    full = case.split().check()
    none = case.split(memory_budget=0).check()
    assert "var_mean" not in {node.name for node in full.recomputed}
    assert "var_mean" in {node.name for node in none.recomputed}
    assert "reads 32 times what is needed of it" in " ".join(value.why for value in full.saved)
    assert none.bytes < full.bytes


def test_a_norm_is_not_recomputed_for_its_statistics_alone() -> None:
    """The result of the last norm of a model is not needed in the backward, its mean and variance are."""
    weights = [nn.Parameter(torch.randn(64, 64)), nn.Parameter(torch.randn(64)), nn.Parameter(torch.randn(64))]

    def last(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x @ w, (64,), a, b)

    case = joint_of(last, torch.randn(8, 64), *weights)
    full, none = case.split().check(), case.split(memory_budget=0).check()
    assert [value.name for value in full.saved if value.extra] == ["primals_1", "mm", "getitem_1", "getitem_2"]
    assert full.recomputed == []
    assert [value.name for value in none.saved if value.extra] == ["primals_1", "mm"]


def test_chains_of_recomputation_end() -> None:
    """One value in about `LONGEST_CHAIN`, so that the backward never holds more than one stretch."""
    length = 4 * remat.LONGEST_CHAIN
    cut = long_chain(length).split().check()
    assert len(cut.saved) == 4
    assert f"a chain of {remat.LONGEST_CHAIN + 1} cheap operations" in cut.saved[1].why
    assert long_chain(length).split(memory_budget=0).check().names == ["primals_1"]


def peak(halves: Halves) -> int:
    """Most bytes alive at once while the backward runs, parameters left out, views free."""
    nodes = list(halves.bw.graph.nodes)[:-1]
    root = remat._roots(nodes)
    held = {value.name for value in halves.saved if not value.extra}
    own = [n for n in nodes if root[n] is n and n.name not in held and isinstance(n.meta["val"], torch.Tensor)]
    last = {root[read]: i for i, node in enumerate(nodes) for read in node.all_input_nodes}
    change = [0] * (len(nodes) + 1)
    for node in own:
        size, first = bytes_of(node.meta["val"]), nodes.index(node)
        change[first] += size
        change[last.get(node, first) + 1] -= size
    return max(itertools.accumulate(change))


def test_a_limited_chain_keeps_the_peak_of_the_backward_low() -> None:
    case = long_chain(1000)
    default, full, none = case.split(default_partition), case.split(), case.split(memory_budget=0)
    assert peak(full) < 0.1 * peak(default)
    assert none.bytes < full.bytes
    assert peak(full) < peak(none) <= peak(default)


def test_models_have_a_lower_peak_too() -> None:
    case = joint_of_module(stack(Residual, width=16), torch.randn(32, 16))
    assert peak(case.split()) < 0.7 * peak(case.split(default_partition))


def test_recomputation_does_not_reach_across_the_model() -> None:
    """Half-precision updates of a single-precision stream: fewer bytes than the stream, but all of them are needed for
    its last value, so the backward would begin by making the whole stream again."""

    def stream(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        half = w.to(torch.bfloat16)
        for _ in range(24):
            x = x + F.layer_norm(x, (8,)).to(torch.bfloat16) @ half
        return x.sum()

    case = joint_of(stream, torch.randn(4, 8), nn.Parameter(torch.randn(8, 8)))
    full, none = case.split().check(), case.split(memory_budget=0).check()
    assert none.bytes < full.bytes < case.split(default_partition).bytes
    assert any("expensive operations from what it is made of" in value.why for value in full.saved)


# -------------------------------------------------------------------------------------------------------- budget


def test_less_budget_never_keeps_more() -> None:
    def mixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            h = x @ w
            var, mean = torch.var_mean(h, -1, keepdim=True)
            x = ((h - mean) * torch.rsqrt(var + 1e-5)).sin()
            x = x * x.amax(0, keepdim=True)
        return x

    case = joint_of(mixed, torch.randn(16, 32), nn.Parameter(torch.randn(32, 32)))
    kept = [case.split(memory_budget=tenths / 10).check().bytes for tenths in range(11)]
    assert kept == sorted(kept)
    assert len(set(kept)) > 3
    least, most = kept[0], kept[-1]
    for tenths, size in enumerate(kept):
        assert size <= least + tenths / 10 * (most - least) + 1e-9


# ------------------------------------------------------------------------------------------------- checkpointing


def two_linear(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.gelu(x @ v) @ w


def checkpointed(policy: Any) -> Case:
    case = joint_of(
        lambda x, v, w: two_linear(x, v, w).sin(),
        torch.randn(4, 8),
        nn.Parameter(torch.randn(8, 16)),
        nn.Parameter(torch.randn(16, 8)),
    )
    case.tag("mm", "mm_1", policy)
    return case


@pytest.mark.parametrize("policy", [True, "must_recompute", "must recompute", CheckpointPolicy.MUST_RECOMPUTE])
@pytest.mark.parametrize("partition", [default_partition, min_cut_partition])
def test_a_checkpointed_region_is_recomputed(policy: Any, partition: Callable[..., Any]) -> None:
    halves = checkpointed(policy).split(partition)
    assert halves.names == ["primals_1", "primals_2", "primals_3"]
    halves.check(cheaply=False)
    assert {"mm", "gelu", "mm_1"} <= {node.name for node in halves.bw.graph.nodes}


def test_without_a_policy_the_same_program_keeps_its_products() -> None:
    case = checkpointed(None)
    assert {"mm", "mm_1"} <= set(case.split().names)


@pytest.mark.parametrize("policy", ["must_save", "prefer_save", CheckpointPolicy.MUST_SAVE])
def test_a_policy_may_keep_cheap_values(policy: Any) -> None:
    case = checkpointed(True)
    case.node("gelu").meta["recompute"] = policy
    halves = case.split()
    halves.check(cheaply=False)
    assert "gelu" in halves.names
    assert next(value.why for value in halves.saved if value.name == "gelu").startswith("its checkpoint policy says so")


def test_a_policy_may_prefer_recomputing_expensive_values() -> None:
    case = checkpointed(CheckpointPolicy.PREFER_RECOMPUTE)
    halves = case.split()
    halves.check(cheaply=False)
    assert halves.names == ["primals_1", "primals_2", "primals_3"]


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="meta\\['recompute'\\] is 'sometimes'"):
        checkpointed("sometimes").split()


def test_each_region_is_recomputed_by_itself() -> None:
    """What enters a region is kept, as in eager: else the backward would begin by making the whole model again."""
    module = stack(Residual, width=8, layers=4)
    case = joint_of_module(module, torch.randn(4, 8))
    assert case.split(default_partition).bytes > 4 * 4 * 8 * 4
    ends = ["add", "add_1", "add_2", "add_3"]
    starts = ["native_layer_norm", "native_layer_norm_1", "native_layer_norm_2", "native_layer_norm_3"]
    for region, (first, last) in enumerate(zip(starts, ends, strict=True)):
        case.tag(first, last, True, region)
    for partition in (default_partition, min_cut_partition):
        halves = case.split(partition)
        halves.check(cheaply=False)
        assert [value.name for value in halves.saved if value.extra] == ["primals_17", "add", "add_1", "add_2"]
    assert halves.saved[-1].why.startswith("it enters a checkpointed region")


def test_random_numbers_of_a_region_are_kept() -> None:
    def dropping(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.native_dropout((x @ w).sin(), 0.5, True)[0].cos()

    case = joint_of(dropping, torch.randn(4, 4), nn.Parameter(torch.randn(4, 4)))
    case.tag("mm", "cos", True)
    for partition in (default_partition, min_cut_partition):
        halves = case.split(partition)
        halves.check(cheaply=False)
        assert set(halves.names) <= {"primals_1", "primals_2", "getitem", "getitem_1"}

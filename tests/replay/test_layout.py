"""Reading tensors in C: whatever way is taken, the facts are those that Python reads."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stator import _native
from stator.replay import layout
from stator.support.guard_readers import tensor_facts

WAYS = {"layout": layout.places, "abi": layout.stable_interface}


@pytest.fixture(params=WAYS)
def way(request):
    assert layout.learn(WAYS[request.param])
    assert _native.tensor_way() == request.param
    yield request.param
    assert layout.learn(layout.places)


def matches(tensor, facts):
    told = layout.native_facts(facts)
    return told is not None and _native.tensor_matches(tensor, told)


def zoo():
    leaf = torch.randn(3, 4, requires_grad=True)
    made = {
        "scalar": torch.tensor(1.0),
        "empty": torch.empty(0, 3),
        "long rank": torch.empty(1, 2, 1, 2, 1, 2, 1, 2),
        "transposed": torch.empty(3, 4).t(),
        "expanded": torch.empty(3, 1).expand(3, 5),
        "double": torch.empty(3, 4, dtype=torch.float64),
        "bool": torch.empty(3, 4, dtype=torch.bool),
        "half": torch.empty(3, 4, dtype=torch.float16),
        "bfloat16": torch.empty(3, 4, dtype=torch.bfloat16),
        "complex": torch.empty(3, 4, dtype=torch.complex64),
        "conjugate": torch.empty(3, 4, dtype=torch.complex64).conj(),
        "negative": torch.empty(3, 4, dtype=torch.complex64).conj().imag,
        "leaf": leaf,
        "result": leaf * 2,
        "view of a leaf": leaf[0],
        "view of a result": (leaf * 2)[0],
        "detached": leaf.detach(),
        "parameter": nn.Parameter(torch.empty(3, 4)),
        "frozen": nn.Parameter(torch.empty(3, 4), requires_grad=False),
        "meta": torch.empty(3, 4, device="meta"),
        "plain": torch.empty(3, 4),
    }
    with torch.inference_mode():
        made["inference"] = torch.empty(3, 4)
    return made


def test_every_tensor_matches_its_own_facts_and_no_others(way):
    tensors = zoo()
    facts = {name: tensor_facts(tensor) for name, tensor in tensors.items()}
    for (a, tensor), (b, other) in itertools.product(tensors.items(), facts.items()):
        assert matches(tensor, other) == (facts[a] == other), (a, b)


def test_changes_in_place_are_seen(way):
    tensor = torch.empty(3, 4)
    before = tensor_facts(tensor)
    assert matches(tensor, before)
    changes = [
        lambda t: t.requires_grad_(),
        lambda t: t.requires_grad_(False).resize_(4, 3),
        lambda t: t.t_(),
        lambda t: setattr(t, "data", torch.empty(3, 4, dtype=torch.int32)),
        lambda t: setattr(t, "data", torch.empty(5)),
    ]
    for change in changes:
        change(tensor)
        assert not matches(tensor, before)
        assert matches(tensor, tensor_facts(tensor))
    tensor.data = torch.empty(3, 4)
    assert matches(tensor, before)


def test_grad_fn_is_seen(way):
    leaf = torch.randn(3, requires_grad=True)
    result = leaf * 2
    facts = tensor_facts(result)
    assert matches(result, facts)
    result.detach_()
    assert not matches(result, facts)
    other = torch.randn(3)
    facts = tensor_facts(other)
    other.mul_(leaf)
    assert not matches(other, facts)


def test_only_tensors_are_looked_into(way):
    class Mine(torch.Tensor):
        pass

    facts = tensor_facts(torch.empty(3))
    for value in (None, 1, object(), [torch.empty(3)], torch.empty(3).numpy(), torch.empty(3).as_subclass(Mine)):
        assert not matches(value, facts)
    assert layout.native_facts(tensor_facts(torch.empty(3).as_subclass(Mine))) is None
    assert layout.native_facts(tensor_facts(torch.empty(3, 3).to_sparse())) is None


def test_nothing_matches_once_forgotten():
    told = layout.native_facts(tensor_facts(torch.empty(3)))
    try:
        _native.tensor_forget()
        assert not _native.tensor_matches(torch.empty(3), told)
    finally:
        assert layout.learn(layout.places)


def reads_every_leaf():
    return all(_native.tensor_matches(t, layout.native_facts(tensor_facts(t))) for t in layout.probes())


def test_a_wrong_layout_is_refused():
    """If a field were elsewhere in another release of torch, nothing would be read there."""
    right = layout.places()
    for index, delta in itertools.product(range(len(right)), (8, -8)):
        wrong = [*right]
        wrong[index] += delta if index != 1 else 1
        if layout.learn(lambda wrong=wrong: tuple(wrong)):  # a pointer of two words: both are there, or neither is
            assert (index, delta) == (5, 8) and reads_every_leaf(), index
        else:
            assert _native.tensor_way() == "unknown"
    assert layout.learn(layout.places)


def test_a_field_that_is_found_twice_is_not_believed(monkeypatch):
    """Two words side by side are one pointer that is shared."""
    assert [layout._pointer(places) for places in ([8], [8, 16])] == [8, 8]
    for places in ([], [8, 24], [8, 16, 24]):
        with pytest.raises(layout._Unknown):
            layout._pointer(places)
    plain = layout._changed

    def one_more(before, after, places, size):
        found = plain(before, after, places, size)
        return [*found, 152] if size == 8 and len(before) <= 160 else found  # of an AutogradMeta

    monkeypatch.setattr(layout, "_changed", one_more)
    assert not layout.learn(layout.places) and _native.tensor_way() == "unknown"
    monkeypatch.undo()
    assert layout.learn(layout.places)


@settings(deadline=None, max_examples=60)
@given(
    shape=st.lists(st.integers(0, 4), max_size=7),
    dtype=st.sampled_from([torch.float32, torch.int64, torch.bool]),
    grad=st.booleans(),
    order=st.randoms(use_true_random=False),
)
def test_random_shapes(shape, dtype, grad, order):
    tensor = torch.empty(shape, dtype=dtype)
    axes = list(range(len(shape)))
    order.shuffle(axes)
    tensor = tensor.permute(axes)
    if grad and dtype is torch.float32:
        tensor.requires_grad_()
    facts = tensor_facts(tensor)
    assert matches(tensor, facts)
    for axis in range(len(shape)):
        size = list(facts.size)
        size[axis] += 1
        assert not matches(tensor, facts._replace(size=torch.Size(size)))

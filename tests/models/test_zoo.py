"""Some models of the zoo, one for each thing that only such a model does; `make models` runs all of them."""

from __future__ import annotations

import gc
import importlib

import pytest
import torch
from measuring import measure
from zoo import KINDS, ZOO

for _part in KINDS:
    importlib.import_module(f"zoo_{_part}")

# Each with what is run of it, and what it is there for.
QUICK = {
    ("DeBERTa-v2", "training"): "functions compiled by TorchScript",
    ("ModernBERT", "forward"): "windows of attention",
    ("Mixtral", "training"): "an operator of the library's own, with a gradient of its own",
    ("Mamba-2", "generate"): "a cache of states",
    ("CTRL", "forward"): "numbers of numpy",
    ("T5", "generate"): "an encoder's cache and a decoder's",
    ("Swin", "training"): "windows that are shifted",
    ("Wav2Vec2", "forward"): "weights that are parametrised",
    ("Moonshine", "forward"): "a configuration that is copied in each call",
    ("PatchTST", "training"): "a norm of a tensor that does not lie in order",
    ("CLIP", "training"): "two towers",
    ("DETR", "forward"): "a backbone and queries",
    ("UNet", "training"): "iterators spread into calls",
    ("Diffusion transformer", "forward"): "a number computed from a size",
}


# Trained ahead of time, these have a sum that is added up in another order than eager's: the gradient of the scale of
# all products of two towers, one place of its last digit in one of three steps.
ROUNDED = {("CLIP", "training")}


# With machine code of our own: what is special about the kernels of each.
NATIVE = {
    ("BERT", "training"): "attention, gelu, layer norm",
    ("Llama", "forward"): "rotations, norms of squares",
    ("Mixtral", "training"): "experts that are chosen",
    ("Mamba-2", "forward"): "cumulative sums",
    ("DeBERTa-v2", "forward"): "gathered positions",
    ("Swin", "training"): "windows that are shifted",
    ("UNet", "training"): "convolutions, group norm, upsampling",
    ("PatchTST", "training"): "batch norm",
}


@pytest.fixture(autouse=True, scope="module")
def quickly():
    """The models are so small that threads would wait for each other; and the library is large, and stays."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name, way", QUICK, ids=[f"{name}-{way}" for name, way in QUICK])
def test_a_model_is_the_plain_model_in_one_graph(name, way):
    outcome = measure(ZOO[name], way)
    assert outcome.right, outcome.wrong
    assert not outcome.close or (name, way) in ROUNDED, "equal, but not bit by bit"
    assert outcome.one_graph, outcome.breaks
    assert not outcome.given_up
    assert outcome.recordings <= 3, outcome.misses


@pytest.mark.parametrize("name, way", NATIVE, ids=[f"{name}-{way}" for name, way in NATIVE])
def test_a_model_is_the_plain_model_in_machine_code(name, way):
    outcome = measure(ZOO[name], way, "native")
    assert outcome.right, outcome.wrong
    assert outcome.graphs and not outcome.refused, outcome.refused
    assert outcome.one_graph, outcome.breaks

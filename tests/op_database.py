"""Torch's own database of operators, imported without what that does to torch, and which operators tests leave out."""

from __future__ import annotations

import gc
import sys
import types
import unittest
import warnings
from typing import Any

import torch

if "expecttest" not in sys.modules:  # the database imports it for a base class of tests that nobody needs here
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase

_call_function, _call_method = torch._C.ScriptFunction.__call__, torch._C.ScriptMethod.__call__
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db
# What torch does to itself for its own tests would stay for the tests of other files.
torch._C.ScriptFunction.__call__, torch._C.ScriptMethod.__call__ = _call_function, _call_method
torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
gc.freeze()  # a million objects, which every full collection would walk through

# The sample seeds torch's generator inside the function, which happens once, when it is traced.
SEEDS_INSIDE = frozenset(
    "nn.functional.fractional_max_pool3d nn.functional.rrelu randn randn_like rand_like randint randint_like "
    "multinomial normal normal.number_mean bernoulli nn.functional.feature_alpha_dropout.with_train "
    "nn.functional.multi_head_attention_forward".split()
)
UNDEFINED = frozenset("empty empty_like empty_strided empty_permuted new_empty new_empty_strided".split())


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


DATABASE: dict[str, Any] = {name_of(op): op for op in op_db}

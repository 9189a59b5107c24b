"""Which functions of torch are leaves whose inside is watched (`leaf_interiors.py`), and which break the graph."""

from __future__ import annotations

import inspect
import types
from typing import Any

import torch
import torch._functorch.apis as apis
import torch._functorch.eager_transforms as eager_transforms
import torch._functorch.vmap as vmap_module

from ...support.by_identity import ByIdentity


def _inside(function: Any, name: str) -> types.CodeType:
    function = inspect.unwrap(function)
    return next(c for c in function.__code__.co_consts if isinstance(c, types.CodeType) and c.co_name == name)


# Functions that apply another one, called `func`: their first argument, or a variable of their closure.
TRANSFORMS: tuple[types.CodeType, ...] = (
    vmap_module.vmap_impl.__code__,
    _inside(apis.grad, "wrapper"),
    _inside(apis.grad_and_value, "wrapper"),
    eager_transforms.jvp.__code__,
    _inside(eager_transforms.jacrev, "wrapper_fn"),
    _inside(eager_transforms.jacfwd, "wrapper_fn"),
)
# They give functions back, which hold tensors that nobody else can see.
BREAKING: ByIdentity[types.CodeType, str] = ByIdentity(
    (
        (eager_transforms.vjp.__code__, "torch.func.vjp"),
        (_inside(eager_transforms._vjp_with_argnums, "wrapper"), "a function made by torch.func.vjp"),
        (eager_transforms.linearize.__code__, "torch.func.linearize"),
        (_inside(eager_transforms.functionalize, "wrapped"), "torch.func.functionalize"),
    )
)
APPLY: types.CodeType = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]

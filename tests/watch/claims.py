"""What the models of torch's functions claim (the same sizes, no failure, no random numbers, nothing written) holds on
torch's own samples, and on the same with other data. A script: torch's own tests change settings of the process.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from samples import CRASHES, calls_of, copies, operations, others
from torch.utils import _pytree as pytree

from stator.watch.models import treatments
from stator.watch.models.torch_functions import Model, UnmodelledCall, model_of
from stator.watch.tensors import op_targets

OPERATIONS = operations()
CHECKED: set[str] = set()
HARMLESS = ("zeros", "backwards")


def sizes(result: Any) -> Any:
    return [tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else leaf for leaf in pytree.tree_leaves(result)]


def model_for(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Model | None:
    """What is claimed of this call; None if it raises."""
    point = op_targets.op_info_of(function)
    if point.kind is not treatments.Treatment.OPERATION or treatments.needs_data(function, point.name, args, kwargs):
        return None
    model = model_of(function, point.name, point.known, *copies(args, kwargs))
    if isinstance(model, UnmodelledCall):
        try:
            model.run()
        except Exception:
            return None
        model = model.concluded()
    return model if not model.reason else None


def broken_claims(function: Any, model: Model, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    state = torch.get_rng_state()
    given = copies(args, kwargs)
    try:
        wanted = sizes(function(*given[0], **given[1]))
    except Exception:
        return []
    found = []
    if not model.random and not torch.equal(state, torch.get_rng_state()):
        found.append("it draws random numbers")
    for name, other_args, other_kwargs in others(args, kwargs):
        if model.fails and name not in HARMLESS:
            continue  # with an index out of range, or with NaN in LAPACK, some end the process
        try:
            result = sizes(function(*other_args, **other_kwargs))
        except Exception as error:
            if not model.fails:
                found.append(f"it raises for {name}: {type(error).__name__}: {str(error)[:80]}")
            continue
        if result != wanted:
            found.append(f"other sizes for {name}: {result}, not {wanted}")
    return found


def all_broken_claims(name: str) -> list[str]:
    op = OPERATIONS[name]
    found: dict[str, None] = {}
    for function, most in ((op.op, 2), (op.method_variant, 1), (op.inplace_variant, 1)):
        for args, kwargs in calls_of(op, most) if function is not None else ():
            model = model_for(function, args, kwargs)
            if model is not None:
                CHECKED.add(name)
                found |= dict.fromkeys(broken_claims(function, model, args, kwargs))
    return list(found)


def main() -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = [name for name in sorted(OPERATIONS) if name not in CRASHES]
    found = {name: broken for name in names if (broken := all_broken_claims(name))}
    for name, broken in found.items():
        print(name, *broken, sep="\n  ")
    print(f"{len(CHECKED)} functions, {len(found)} of them with claims that do not hold")
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main())

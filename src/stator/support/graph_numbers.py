"""Arithmetic with numbers that only a graph knows, for its nodes to call.

Where Python would raise, or a branch that was taken when the graph was recorded is not the one to take, these raise
`Failed`. A graph has them before it writes to anything that could not be put back; whoever runs it puts that back, and
lets Python do the rest.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch


class Failed(Exception):
    """A number is not what the graph can go on with."""


class Unexpected(Failed):
    """A comparison came out otherwise than it did when the graph was recorded."""


_ERRORS = (ArithmeticError, ValueError)


def _float(result: float) -> float:
    if type(result) is not float:
        raise Failed(f"a {type(result).__name__}")
    return result


def divide(a: float, b: float) -> float:
    try:
        return _float(a / b)
    except _ERRORS as error:
        raise Failed(str(error)) from error


def divide_whole(a: float, b: float) -> float:
    try:
        return _float(a // b)
    except _ERRORS as error:
        raise Failed(str(error)) from error


def remainder(a: float, b: float) -> float:
    try:
        return _float(a % b)
    except _ERRORS as error:
        raise Failed(str(error)) from error


def power(a: float, b: float) -> float:
    try:
        return _float(a**b)
    except _ERRORS as error:
        raise Failed(str(error)) from error


def root(a: float) -> float:
    try:
        return math.sqrt(a)
    except _ERRORS as error:
        raise Failed(str(error)) from error


COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}


def expect(a: float, comparison: str, b: float, outcome: bool) -> None:
    """The program has gone on as it does if `a comparison b` is `outcome`."""
    if COMPARISONS[comparison](a, b) is not outcome:
        raise Unexpected(f"{a} {comparison} {b} is {not outcome}")


def expect_truth(tensor: torch.Tensor, outcome: bool) -> None:
    """The program has gone on as it does if `bool(tensor)` is `outcome`."""
    if bool(tensor) is not outcome:
        raise Unexpected(f"a tensor is {not outcome}")


def is_within(tensor: torch.Tensor, low: int, high: int) -> bool:
    """Are all numbers of the tensor at least `low`, and below `high`?"""
    if not tensor.numel():
        return True
    least, most = torch.aminmax(tensor)
    return bool(low <= int(least) and int(most) < high)


def wrong_sizes(name: str, tensor: torch.Tensor, sizes: tuple[int, ...]) -> None:
    """The program has gone on as it does if the node of this name gives a tensor of these sizes."""
    raise Unexpected(f"{name} has the sizes {tuple(tensor.shape)}; when it was recorded, {tuple(sizes)}")


def expect_sizes(tensor: torch.Tensor, sizes: tuple[int, ...], name: str) -> None:
    if tensor.shape != sizes:
        wrong_sizes(name, tensor, sizes)


FAILING: dict[str, Callable[..., float]] = {"/": divide, "//": divide_whole, "%": remainder, "**": power}

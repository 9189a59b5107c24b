"""What C asks of a tensor, asked of a stand-in: these tests run without torch."""

from __future__ import annotations

import sys
from typing import Any

from stator import _native as n

STRIDED = object()


class Tensor:
    dtype, shape, requires_grad, _version = "float", (2, 3), False, 7

    def __init__(self, *, inference: bool = False, layout: Any = STRIDED) -> None:
        self._inference, self.layout = inference, layout

    def is_inference(self) -> bool:
        return self._inference

    def data_ptr(self) -> int:
        return 4096


def test_all_parts() -> None:
    assert n.fingerprint(Tensor(), STRIDED) == (7, 4096, "float", (2, 3), False)


def test_inference_tensors_have_no_version() -> None:
    tensor = Tensor(inference=True)
    assert n.tensor_version(tensor) is None and n.fingerprint(tensor, STRIDED)[0] is None
    assert n.tensor_version(Tensor()) == 7


def test_other_layouts_have_no_address() -> None:
    assert n.fingerprint(Tensor(layout=object()), STRIDED)[1] == 0


def test_any_part_may_fail() -> None:
    for part in ("is_inference", "_version", "layout", "data_ptr", "dtype", "shape", "requires_grad"):
        broken = type("Broken", (Tensor,), {part: property(lambda self: 1 // 0)})
        tensor = object.__new__(broken)
        tensor.__dict__.update({"_inference": False, "layout": STRIDED})
        before = sys.getrefcount(tensor)
        try:
            n.fingerprint(tensor, STRIDED)
        except ZeroDivisionError:
            pass
        else:
            raise AssertionError(part)
        assert sys.getrefcount(tensor) == before


def test_answers() -> None:
    assert n.answers(()) == () and n.answers((dict, lambda: 5)) == ({}, 5)
    for wrong in ([], (dict, lambda: 1 // 0)):
        try:
            n.answers(wrong)  # type: ignore[arg-type]
        except (TypeError, ZeroDivisionError):
            pass
        else:
            raise AssertionError(wrong)

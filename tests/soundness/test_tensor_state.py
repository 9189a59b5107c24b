"""Rule 7, pitfalls 6 to 8: tensors exchanged and torch's state changed behind a recording."""

from __future__ import annotations

import types

import numpy as np
import torch
from attacks import attack
from harness import World, check, rand


def test_rule_7_the_data_of_a_tensor_is_exchanged():
    def world():
        t = rand(9)
        return World(fn=lambda x: x * t, t=t)

    attack(
        world,
        lambda w: setattr(w.t, "data", rand(10)),
        lambda w: setattr(w.t, "data", rand(11, 1)),
        lambda w: setattr(w.t, "data", rand(12).double()),
        lambda w: w.t.resize_(4),
        lambda w: w.t.set_(rand(4)),
        raises=RuntimeError,
    )


def test_rule_7_a_tensor_is_set_to_other_memory():
    def world():
        t = rand(9)
        s = rand(10, 8)
        return World(fn=lambda x: x * t + t.sum(), t=t, s=s)

    attack(
        world,
        lambda w: w.t.set_(w.s),
        lambda w: w.t.set_(w.s.untyped_storage(), 1, (4,), (2,)),
        lambda w: w.t.set_(w.s.untyped_storage(), 2, (4,), (0,)),
        lambda w: w.t.resize_(1),
        raises=RuntimeError,
    )


def test_rule_7_requires_grad_is_switched():
    def world():
        p = rand(9)
        return World(fn=lambda x: (x * p).sum() + p.requires_grad, p=p)

    attack(world, lambda w: w.p.requires_grad_(), lambda w: w.p.requires_grad_(False), lambda w: w.p.requires_grad_())


def test_rule_7_a_numpy_array_changes_under_a_tensor():
    def world():
        a = np.ones(4, dtype=np.float32)
        t = torch.from_numpy(a)
        return World(fn=lambda x: x * t, t=t, ch=lambda: a.fill(5.0))

    attack(world, lambda w: w.ch())


def test_rule_7_attributes_of_tensors():
    def world():
        t = rand(9)
        t.scale = 2.0

        def fn(x):
            x.tag = t.scale
            return x * t.scale + getattr(x, "zz", 1.0)

        return World(fn=fn, t=t)

    attack(
        world,
        lambda w: setattr(w.t, "scale", 3.0),
        lambda w: w.t.__dict__.update(scale=4.0),
        lambda w: delattr(w.t, "scale"),
        raises=AttributeError,
    )


def test_rule_7_an_inference_tensor_comes_in():
    def world():
        w = World(t=rand(9))
        w.fn = lambda x: x * w.t
        return w

    def inf(w):
        with torch.inference_mode():
            w.t = rand(10)

    attack(world, inf, lambda w: setattr(w, "t", rand(3)))


def test_rule_7_strides_change():
    def world():
        w = World(t=rand(9, 4, 4))
        w.fn = lambda x: w.t @ x.view(4, 1)
        return w

    attack(
        world,
        lambda w: setattr(w, "t", rand(3, 4, 4).t()),
        lambda w: setattr(w, "t", rand(3, 4, 4).expand(4, 4)),
        lambda w: setattr(w, "t", torch.ones(1).expand(4, 4)),
    )


def test_rule_7_the_offset_of_a_view_is_read():
    def world():
        w = World(b=rand(1, 12))
        w.t = w.b[:4]
        w.fn = lambda x: x * w.t + w.t.storage_offset()
        return w

    attack(world, lambda w: setattr(w, "t", w.b[3:7]), lambda w: setattr(w, "t", w.b[::3]))


def test_rule_7_versions_and_addresses():
    def world():
        t = rand(9)
        return World(fn=lambda x: x * t._version + t.storage_offset() + t.data_ptr() * 0, t=t)

    attack(world, lambda w: w.t.add_(1), lambda w: w.t.set_(rand(3, 8)[4:]), replayed=False)


def test_rule_7_gradients_come_and_go():
    def world():
        p = rand(9, requires_grad=True)

        def fn(x):
            g = p.grad
            return x * (1.0 if g is None else g.sum())

        return World(fn=fn, p=p)

    attack(
        world,
        lambda w: setattr(w.p, "grad", rand(3)),
        lambda w: setattr(w.p, "grad", rand(4)),
        lambda w: setattr(w.p, "grad", None),
    )


def test_pitfall_7_the_default_dtype():
    def world():
        return World(fn=lambda x: x.double() * torch.ones(4) + torch.tensor(2.5))

    attack(
        world,
        lambda w: torch.set_default_dtype(torch.float64),
        lambda w: torch.set_default_dtype(torch.float32),
        lambda w: torch.set_default_dtype(torch.bfloat16),
    )


def test_pitfall_7_a_default_device():
    def world():
        return World(fn=lambda x: (x.shape[0] * torch.ones(4)).device.type)

    try:
        attack(
            world,
            lambda w: torch.set_default_device("meta"),
            lambda w: torch.set_default_device("cpu"),
            lambda w: torch.set_default_device("meta"),
            lambda w: torch.set_default_device(None),
        )
    finally:
        torch.set_default_device(None)


def test_pitfall_7_one_default_device_instead_of_another():
    def world():
        torch.set_default_device("cpu")
        return World(fn=lambda x: (x.shape[0] * torch.ones(4)).device.type)

    try:
        attack(
            world,
            lambda w: torch.set_default_device("meta"),
            lambda w: torch.set_default_device("cpu"),
            lambda w: torch.set_default_device("meta"),
            lambda w: torch.set_default_device(None),
            replayed=False,
        )
    finally:
        torch.set_default_device(None)


def test_pitfall_7_settings_of_torch_are_read():
    def world():
        torch.set_num_threads(n)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.enabled = True
        torch.backends.cuda.matmul.allow_tf32 = False

        def fn(x):
            return (
                x * torch.get_num_threads()
                + torch.are_deterministic_algorithms_enabled()
                + len(torch.get_float32_matmul_precision())
                + torch.backends.cudnn.enabled
                + torch.is_grad_enabled()
                + torch.backends.mkldnn.is_available()
                + torch.backends.cuda.matmul.allow_tf32
            )

        return World(fn=fn)

    n = torch.get_num_threads()
    try:
        attack(
            world,
            lambda w: torch.set_num_threads(n + 1),
            lambda w: torch.use_deterministic_algorithms(True),
            lambda w: torch.set_float32_matmul_precision("high"),
            lambda w: setattr(torch.backends.cudnn, "enabled", False),
            lambda w: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
        )
    finally:
        torch.set_num_threads(n)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.enabled = True
        torch.backends.cuda.matmul.allow_tf32 = False


def test_pitfall_7_a_kernel_chosen_outside():
    def world():
        q = rand(1, 1, 2, 4, 8)
        return World(fn=lambda x: torch.nn.functional.scaled_dot_product_attention(q, q, q) + x.sum())

    from torch.nn.attention import SDPBackend, sdpa_kernel

    def call(w):
        with sdpa_kernel(SDPBackend.MATH):
            return w.fn(rand(3))

    check(world, [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), call, call], expect=None)


def test_pitfall_7_a_kernel_chosen_inside():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def world():
        q = rand(1, 1, 2, 4, 8)

        def fn(x):
            with sdpa_kernel(SDPBackend.MATH):
                return torch.nn.functional.scaled_dot_product_attention(q, q, q) + x.sum()

        return World(fn=fn)

    attack(world, replayed=False, unreplayed=["outside-generator", "unguardable"])


def test_pitfall_6_hooks_for_saved_tensors_outside():
    def world():
        p = rand(9, requires_grad=True)
        return World(fn=lambda x: (x * p).exp().sum(), p=p, log=[])

    def call(w):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (w.log.append(1), t)[1], lambda t: t):
            y = w.fn(rand(3))
        y.backward()
        return y.detach()

    def plain(w):
        y = w.fn(rand(2))
        y.backward()
        return y.detach()

    check(world, [plain, plain, call, call, plain], expect=None)


def test_pitfall_7_called_under_transforms():
    def world():
        t = rand(3)
        return World(fn=lambda x: x * t, t=t)

    check(
        world,
        [
            lambda w: w.fn(rand(1)),
            lambda w: w.fn(rand(2)),
            lambda w: torch.vmap(w.fn)(rand(3, 2, 4)),
            lambda w: torch.func.grad(lambda v: w.fn(v).sum())(rand(4)),
            lambda w: torch.func.jvp(w.fn, (rand(4),), (rand(5),)),
            lambda w: w.fn(rand(6)),
        ],
        expect=None,
    )


def test_pitfall_7_random_numbers_and_generators():
    def world():
        g = torch.Generator().manual_seed(1)
        return World(fn=lambda x: x * torch.rand(4) + torch.nn.functional.dropout(x) + torch.rand(4, generator=g), g=0)

    attack(world, lambda w: torch.manual_seed(5), lambda w: torch.rand(1))


def test_pitfall_7_grad_inference_and_autocast_modes():
    def world():
        p = rand(9, requires_grad=True)
        return World(fn=lambda x: x * p, p=p)

    def ng(w):
        with torch.no_grad():
            return w.fn(rand(1))

    def im(w):
        with torch.inference_mode():
            return w.fn(rand(1))

    def ac(w):
        with torch.autocast("cpu", torch.bfloat16):
            return w.fn(rand(1)) @ rand(2)

    def ac2(w):
        with torch.autocast("cpu", torch.float16):
            return w.fn(rand(1)) @ rand(2)

    p = lambda w: w.fn(rand(1))
    check(world, [p, p, ng, ng, im, im, ac, ac, ac2, p, ng], expect=None)


def test_pitfall_7_anomaly_mode():
    def world():
        p = rand(9, requires_grad=True)
        return World(fn=lambda x: x * p + torch.is_anomaly_enabled(), p=p)

    def an(w):
        with torch.autograd.detect_anomaly(check_nan=False):
            return w.fn(rand(1))

    p = lambda w: w.fn(rand(1))
    check(world, [p, p, an, an, p], expect=None)


def test_pitfall_6_hooks_on_a_parameter():
    def world():
        p = rand(9, requires_grad=True)
        log = []
        w = World(p=p, log=log, h=[])

        def fn(x):
            y = (x * p).sum()
            return y

        w.fn = fn
        return w

    def calls(change):
        def c(w):
            change(w)
            y = w.fn(rand(3))
            y.backward()
            return y.detach()

        return c

    check(
        world,
        [calls(lambda w: None)] * 2
        + [calls(lambda w: w.h.append(w.p.register_hook(lambda g: g * 2)) or w.h.clear())]
        + [calls(lambda w: None)]
        + [calls(lambda w: w.p.register_post_accumulate_grad_hook(lambda t: w.log.append(1)) and None)] * 2,
        expect=None,
    )


def test_pitfall_8_a_subclass_comes_in():
    class S(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs or {})

    def world():
        w = World(t=rand(9))
        w.fn = lambda x: x * w.t + 1
        return w

    attack(world, lambda w: setattr(w, "t", rand(9).as_subclass(S)), lambda w: setattr(w, "t", rand(8)))


def test_pitfall_9_numpy_arrays_escape():
    def world():
        t = torch.ones(4)
        keep = []

        def fn(x):
            y = x * t
            n = y.numpy()
            y.add_(1)
            keep.append(n)
            return y, torch.from_numpy(n)

        return World(fn=fn, t=t)

    attack(world, replayed=False)


def test_pitfall_6_an_autograd_function_that_reads_state():
    def world():
        s = types.SimpleNamespace(k=2.0)

        class F(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.k = s.k
                return x * s.k

            @staticmethod
            def backward(ctx, g):
                return g * ctx.k * 10

        p = rand(3, requires_grad=True)
        return World(fn=lambda x: F.apply(p * x).sum(), s=s, p=p, F=0)

    def bw(change):
        def c(w):
            change(w)
            y = w.fn(rand(1))
            y.backward()
            return y.detach()

        return c

    check(world, [bw(lambda w: None)] * 3 + [bw(lambda w: setattr(w.s, "k", 3.0))] * 2, expect=None)


def test_pitfall_6_a_checkpointed_region_that_reads_state():
    from torch.utils.checkpoint import checkpoint

    def world():
        s = types.SimpleNamespace(k=2.0, n=0)
        p = rand(3, requires_grad=True)

        def blk(x):
            return (x * p * s.k).sin()

        return World(fn=lambda x: checkpoint(blk, x, use_reentrant=False).sum(), s=s, p=p)

    def bw(change):
        def c(w):
            change(w)
            y = w.fn(rand(1))
            y.backward()
            return y.detach()

        return c

    check(world, [bw(lambda w: None)] * 3 + [bw(lambda w: setattr(w.s, "k", 3.0))] * 2, expect=None)

"""Programs that random ones were made small to (`tests/fuzz/`): each was once not the plain program."""

from __future__ import annotations

import contextlib
import functools
import gc
import operator
import threading
import weakref

import torch
from harness import World, check, rand

import stator


def check_calls(world, *arguments, expect=None):
    """Call `w.fn(x, *more)` with these further arguments, one tuple per call."""
    calls = [lambda w, seed=seed, more=more: w.fn(rand(seed), *more) for seed, more in enumerate(arguments)]
    return check(world, calls, expect=expect)


class Box:
    def __init__(self, n):
        self.n = n


class Noisy:
    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.append("gone")


def test_a_changed_number_in_what_was_taken_out_of_its_container():
    """By the time it is read, no way leads to it from outside."""

    def popped(x, boxes):
        return x * boxes.pop().n

    def deleted(x, boxes):
        box = boxes[0]
        del boxes[0]
        return x * box.n

    def emptied(x, boxes):
        (box,) = boxes
        boxes.clear()
        return x * box.n

    for fn in (popped, deleted, emptied):
        calls = [lambda w, n=n: w.fn(rand(n), [Box(n)]) for n in (3, 4, 5, 6, 3)]
        check(lambda fn=fn: World(fn=fn), calls, expect=None)


def test_a_note_is_added_to_an_outside_exception():
    def world():
        error = ValueError("x")

        def fn(x):
            error.add_note("here")
            return x + len(error.__notes__)

        return World(fn=fn, error=error)

    check_calls(world, (), (), (), ())


def test_an_outside_exception_is_initialised_anew():
    def world():
        error = ValueError("x")

        def fn(x, n):
            error.__init__(n)
            return x * n

        return World(fn=fn, error=[error, lambda: error.args])

    def observed(w):
        return w.error[0].args

    calls = [lambda w, n=n: w.fn(rand(n), n) for n in (1, 2, 1, 2)]
    check(world, calls, expect=None, observe=observed)


def test_no_object_with_a_finalizer_is_made_to_find_out_whether_it_can_be():
    def world():
        log, held = [], [None]

        def fn(x):
            held[0] = Noisy(log)
            return x + 1

        return World(fn=fn, log=log, held=held)

    check_calls(world, (), (), (), ())


def test_attributes_that_c_code_keeps_elsewhere():
    """A thread's own attributes, and those behind a weak proxy."""

    class Own(threading.local):
        n = 1

    def world(make):
        target, seen = make()

        def fn(x):
            target.n = 5
            return x + 1

        return World(fn=fn, target=seen)

    def own():
        target = Own()
        return target, [target]

    def proxy():
        box = Box(1)
        return weakref.proxy(box), [box]

    def call(w):
        w.target[0].n = 0
        w.fn(rand(1))
        return w.target[0].n

    for make in (own, proxy):
        check(lambda make=make: world(make), [call] * 4, expect=None)


def test_a_counter_of_the_thread():
    def world():
        own = threading.local()

        def fn(x):
            own.n = getattr(own, "n", 0) + 1
            return x * own.n

        return World(fn=fn)

    check_calls(world, (), (), (), ())


def test_a_bool_at_the_left_of_a_number_that_changes():
    """Both are ints, and neither class is the other's: the left one answers."""

    def minus(x, flag, n):
        return x * (flag - n), flag - n, flag + n, flag * n, flag // n, flag % n, flag | n

    def compared(x, flag, n):
        return (x if flag < n else -x), flag == n, flag != n, flag >= n

    def in_containers(x, flag, n):
        return x * max(flag, n), [flag] == [n], sum([n, 1], flag), sorted([flag, n, 3])

    def by_operator(x, flag, n):
        return x * operator.sub(flag, n), operator.lt(flag, n)

    for fn in (minus, compared, in_containers, by_operator):
        arguments = [(True, 3), (True, 4), (True, 5), (False, 6), (True, 1), (False, 2), (True, 7)]
        check_calls(lambda fn=fn: World(fn=fn), *arguments)


def test_a_bool_and_a_global_number_take_turns():
    def world():
        n = -1

        def fn(x, flag):
            nonlocal n
            n = flag - n
            return x + 1, n

        return World(fn=fn)

    check_calls(world, (2,), (2,), (2,), (True,), (True,), (True,), (False,), (True,))


def check_tables(fn, *tables):
    """Call `w.fn(x, table)` with a new table each time, and compare what becomes of it."""

    def call(seed, table):
        def run(w):
            w.table = dict(table)
            return w.fn(rand(seed), w.table)

        return run

    check(lambda: World(fn=fn), [call(seed, table) for seed, table in enumerate(tables)], expect=None)


def test_a_key_that_is_written_and_taken_out_again():
    """Whether it was there before was not looked at: afterwards it is not, in either case."""

    def fn(x, table):
        table["a"] = x
        return table.pop("a", None) + 1

    there, not_there = {"a": 1, "b": 2}, {"b": 2}
    check_tables(fn, there, not_there, there, not_there)
    check_tables(fn, not_there, there, not_there, there)


def test_a_key_that_is_taken_out_behind_a_write_to_a_tensor():
    """A replay that fails after its graph has written cannot be made good."""

    def fn(x, table):
        table["a"] = x
        x.add_(1)
        del table["a"]
        return x * 2

    check_tables(fn, {"a": 1}, {}, {"a": 1}, {})


def test_new_keys_lie_in_the_order_in_which_they_were_written():
    def written(x, table):
        table["q"] = 1
        table["p"] = 2
        return x + 1

    def moved(x, table):
        table["q"] = 1
        table["p"] = 2
        table.pop("q")
        table["q"] = 3
        return x + 1

    def attributes(x, table):
        box = table["box"]
        box.second = 1
        box.first = 2
        return x + 1

    tables = [{}, {"p": 0}, {"q": 0}, {"p": 0, "q": 0}, {"q": 0, "p": 0}]
    for fn in (written, moved):
        for first in range(len(tables)):
            check_tables(fn, *tables[first:], *tables[:first])

    def call(w, names):
        box = Box(1)
        for name in names:
            setattr(box, name, 0)
        w.fn(rand(1), {"box": box})
        return list(vars(box).items())

    for names in (["first"], []):
        calls = [lambda w, n=n: call(w, n) for n in (names, [], ["second"], ["first", "second"], ["first"])]
        check(lambda: World(fn=attributes), calls, expect=None)


def test_a_cached_function_makes_a_tensor_once():
    """The first call fills the cache while it is recorded; what fills it is no part of the graph."""

    def world():
        @functools.lru_cache
        def table(n):
            return torch.ones(4) * n

        def fn(x, n):
            kept = table(n)
            kept.add_(1)
            return x * kept

        return World(fn=fn, table=table)

    check_calls(world, (1,), (1,), (1,), (2,), (2,), (1,))


def test_a_list_that_only_grows_keeps_the_rest_of_it():
    """Its first item is a number that changes, so the second recording puts a symbol in its place."""

    def fn(x, numbers):
        numbers.append("end")
        return x * numbers[0], numbers

    lists = ([1], [3, 1], [1], [5, 6, 7], [3, 2])
    calls = [lambda w, seed=seed, given=given: w.fn(rand(seed), [*given]) for seed, given in enumerate(lists)]
    check(lambda: World(fn=fn), calls, expect="miss miss hit hit hit")


def test_a_truth_is_no_number_where_identities_are_compared():
    numbers = {"n": 7}

    def fn(x, flag):
        if numbers["n"] is True:
            return x, flag
        numbers["n"] = 1
        return x * 2, flag

    compiled = stator.compile(fn, backend="eager", dynamic=True)
    for flag in (True, True, True, False, True):
        assert compiled(rand(1), flag)[1] is flag
    assert compiled.stator.hits == 2


def test_an_argument_that_becomes_a_number_behind_a_break():
    """Two empty places were one object, and the guards say so."""

    def fn(x, y, flag):
        kept = flag
        stator.graph_break()
        y += 2
        return x * 2, y, kept

    makers = (lambda: (torch.arange(1), []), lambda: (7, 1), lambda: ([], []), lambda: (8, 1), lambda: (2.5, 2.5))
    calls = [lambda w, seed=seed, make=make: w.fn(rand(seed), *make()) for seed, make in enumerate(makers)]
    check(lambda: World(fn=fn), calls, expect=None, raises=TypeError)


def test_an_exception_is_not_kept_by_the_recording():
    """With its frames, and all that they hold."""

    def world():
        w = World(log=[], talk=None)

        def talk():
            try:
                while True:
                    yield 1
            finally:
                w.log.append("closed")

        def fn(x):
            w.talk = talk()
            return x + w.missing

        w.fn = fn
        return w

    def call(w):
        held = w.talk  # until this frame is gone
        with contextlib.suppress(AttributeError):
            w.fn(rand(1))
        return next(w.talk), held is None

    collects = gc.isenabled()
    gc.disable()
    try:
        check(world, [call] * 5, expect=None, observe=lambda w: [*w.log])
    finally:
        if collects:
            gc.enable()


def test_tuples_of_classes_and_modules_are_new_in_every_call():
    """Unless they come from outside. (Tuples of numbers and texts may be constants of the code.)"""

    def world():
        w = World(pair=(torch, 1), kept=[])

        def fn(x, given):
            w.kept.append((torch.float32, "a"))
            return x * 2, (given, 4), [(int, (str, 1))], w.pair, given, (given,)

        w.fn = fn
        return w

    def call(w, seed, given):
        results = w.fn(rand(seed), given)
        return results, results[3] is w.pair, results[4] is given, [a is b for a in w.kept for b in w.kept]

    def replace(w, seed):
        w.pair = (torch, 1)
        return call(w, seed, torch)

    calls = [lambda w, seed=seed: [call(w, seed, torch), call(w, seed, (int, 2))] for seed in range(3)]
    check(world, [*calls, lambda w: replace(w, 4), *calls], expect="miss hit hit hit hit hit hit", graphs=2)


def test_a_tuple_of_classes_that_a_dict_lacks():
    """What is looked up in the dict is not what lies there."""

    def world():
        w = World(table={})

        def fn(x, given):
            key = (int, given)
            if key not in w.table:
                stator.graph_break()
                w.table[key] = x * 2
            return w.table[key], key

        w.fn = fn
        return w

    calls = [lambda w, n=n: w.fn(rand(n), torch.float32 if n % 3 else n) for n in range(7)]
    clear = [lambda w: w.table.clear()]
    check(world, [*calls, *clear, *calls, *clear, *calls], expect=None)


def test_whole_numbers_are_added_to_behind_inference_mode():
    """All sizes are plain there, whatever was a symbol before."""

    def make():
        tensors = [torch.tensor(1), torch.tensor(2)]

        def fn(x):
            with torch.inference_mode():
                tensors[0] * 2
            for t in tensors:
                t.add_(1)
            return x + tensors[0]

        return fn, tensors

    (plain, wanted), (fn, found) = make(), make()
    compiled = stator.compile(fn, backend="eager", dynamic=True, options={"suppress_errors": False})
    for n in (2, 3, 4, 3):
        assert torch.equal(compiled(rand(n, n)), plain(rand(n, n))) and found == wanted
    assert compiled.stator.hits == 1


def test_an_infinite_number_among_those_that_change():
    def fn(x, f):
        x -= x
        return 300 + torch.tensor(f)

    for backend in ("eager", "aot_eager"):
        compiled = stator.compile(fn, backend=backend, dynamic=True, options={"suppress_errors": False})
        for n, f in ((2, 3.25), (3, float("inf")), (4, 2.5), (5, float("-inf")), (3, float("inf")), (7, 2.5)):
            x, y = (torch.arange(n * 4).reshape(n, 4) for _ in range(2))
            assert torch.equal(compiled(x, f), fn(y, f)) and torch.equal(x, y)
        assert compiled.stator.hits == 2


def test_the_sign_of_a_zero_that_becomes_a_tensor():
    for backend in ("eager", "aot_eager"):
        compiled = stator.compile(lambda x, f: (x * 2, torch.tensor(f)), backend=backend, dynamic=True)
        for n, f in enumerate((-0.0, -0.0, 2.0, -0.0, -0.0, 0.0, -0.0, 0.0, 2.0), start=2):
            found = compiled(rand(n, n), f)
            assert torch.equal(found[0], rand(n, n) * 2) and found[1].signbit() == torch.tensor(f).signbit()
            assert found[1] == f


def test_a_number_that_a_caller_has_on_its_stack_at_a_break():
    """The index and what was read are one object in the first call."""

    def world():
        w = World(numbers=[5, 1])

        def inner(x):
            stator.graph_break()
            return x.shape[0], 1

        def fn(x):
            w.numbers[1] += inner(x)[0]
            return x * w.numbers[1], [w.numbers[1], inner(x)]

        w.fn = fn
        return w

    check(world, [lambda w, seed=seed: w.fn(rand(seed, 3)) for seed in range(6)], expect=None)


def test_a_text_that_is_made_of_a_text_behind_a_break():
    def world():
        w = World(written=[], of=1)

        def printed(x, n):
            stator.graph_break()
            w.written.append(f"{n}{w.of}")
            return x * 2

        def returned(x, n):
            stator.graph_break()
            return f"{n}-{x.dim()}"

        def handed_on(x, n):
            text = f"<{n}>"
            stator.graph_break()
            return x + 1, f"{text}{text}", [f"{text}!"]

        w.fn = lambda x, n: (printed(x, n), returned(x, n), handed_on(x, n))
        return w

    numbers = (7, 2.5, 7, 7, 8, 9, 2.5, "text", "other", 300, 301, 2.5)
    calls = [lambda w, seed=seed, n=n: w.fn(rand(seed), n) for seed, n in enumerate(numbers)]
    check(world, calls, expect=None)


def test_a_break_among_the_defaults_of_a_function():
    """What was made of them before it is outside when the function is called."""

    def world():
        w = World(tensor=rand(9))

        def broken():
            stator.graph_break()

        def fn(x, n):
            def named(a=broken(), *, b=n):  # noqa: B008
                return b, x + 1

            return named()

        def fn_of_tensors(x, n):
            def both(a=w.tensor, b=n, *, c=w.tensor, d=broken(), e=n):  # noqa: B008
                return a * 2, b, c + x, e

            return both()

        w.functions = fn, fn_of_tensors
        return w

    def of(number):
        def chosen():
            w = world()
            w.fn = w.functions[number]
            return w

        return chosen

    def call(w, n, seed):
        w.tensor = rand(seed)
        return w.fn(rand(seed), n)

    values = ("abc", "abd", "abd", 3, 4, 4, 3, "abc")
    for number in range(2):
        seen = check(of(number), [lambda w, n=n, k=k: call(w, n, k) for k, n in enumerate(values)], expect=None)
        assert seen.outcomes.count("hit") >= 3


def test_what_a_variable_of_an_outer_function_is_behind_a_break():
    def world():
        last = None

        def fn(x, text):
            nonlocal last
            stator.graph_break()
            before, last = last, text
            return x * 2, last is before

        return World(fn=fn)

    texts = ("abc", "abc", "abc", "abd", "abd", "abd", 3, 3, 3)
    check(world, [lambda w, text=text, k=k: w.fn(rand(k), text) for k, text in enumerate(texts)], expect=None)


def test_a_key_that_cannot_be_one():
    def world():
        table = {1: 1}

        def fn(x, key, change):
            if change:
                table[1] = table[1] + 1
            try:
                return table.get(key), x + 1
            except TypeError as error:
                try:
                    return table[key], x + 2
                except TypeError:
                    return str(error), x + 3

        return World(fn=fn, table=table)

    def keys():
        return [1], (1, [1]), slice(1, 2), (1, slice(2)), {}, 1

    for change in (False, True):
        calls = [lambda w, n=n, change=change: w.fn(rand(n), keys()[n // 3], change) for n in range(3 * len(keys()))]
        check(world, calls, expect=None)


def test_an_operation_raises_while_another_exception_is_handled():
    """It is not among those that were handled before it."""

    def world():
        tensor, numbers = torch.arange(1), iter([1, 2])

        def fn(x):
            try:
                {}[1]
            except KeyError:
                try:
                    tensor.view(3)
                except RuntimeError:
                    return next(numbers), x + 1

        return World(fn=fn)

    def chain(error):
        return [] if error is None else [type(error), *chain(error.__context__)]

    def call(w):
        try:
            return w.fn(rand(1))
        except StopIteration as error:
            return chain(error)

    check(world, [call] * 6, expect=None)

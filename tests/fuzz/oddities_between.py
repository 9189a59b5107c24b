"""What changes the world of `odd_world.py` between calls: templates, as in `oddities.py`."""

from __future__ import annotations

from statements import templates

BETWEEN = templates("""
2
poke(LAST)

0.5
odd_error.args = (5, <I>)

0.3
odd_space.n = <I>

0.3
odd_counter['b'] += 1

0.3
odd_ordered.move_to_end('a', last=False)

0.3
odd_chain.maps.append({'q': 1})

0.3
odd_bytes.append(7)

0.3
odd_var.set(<I>)

0.3
odd_linear.eval()

0.3
odd_linear.weight = nn.Parameter(make(4, 4, 4))

0.3
odd_views[0] = odd_views[1].clone()

0.3
odd_missing['q'] = 1

0.3
odd_number.n = <I>

0.3
Number.__add__ = lambda self, other: Number(7)

0.3
Number.__bool__ = lambda self: False

0.3
odd_whole = 3

0.3
odd_color = Color.BLUE

0.3
Counted.made = <I>

0.3
odd_text = 'hey'

0.3
odd_walker.at = 0

0.3
odd_bag.kept = {'a': 1}

0.3
dispatching.register(str)(lambda value: 7)

0.3
doubled.__wrapped__.__defaults__ = (3,)

0.3
odd_up()

0.3
odd_up(k=4)

0.3
odd_param = nn.Parameter(make(5, 4))

0.3
odd_param.requires_grad_(not odd_param.requires_grad)

0.3
odd_partial = functools.partial(odd_partial.func, c=7)

0.3
odd_slice = slice(1, None)

0.3
odd_local.n = 10

0.3
Point.b = 5

0.3
odd_heap.insert(0, 0)
""")

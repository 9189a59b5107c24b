"""Statements of random programs: templates with weights. `grammar.py` says what a hole is."""

from __future__ import annotations


def templates(text: str) -> list[tuple[float, str]]:
    """Templates of several lines, with an empty line between them; the first line of each is its weight."""
    parts = [part.strip("\n").partition("\n") for part in text.split("\n\n")]
    return [(float(weight), lines) for weight, _, lines in parts]


BINDING = [
    (6, "<=T> = <T>"),
    (3, "<=I> = <I>"),
    (2, "<=F> = <F>"),
    (1, "<=B> = <B>"),
    (1, "<=S> = <S>"),
    (1, "<=R> = <R>"),
    (2, "<=L> = <L>"),
    (1, "<=D> = <D>"),
    (1, "<=Q> = <Q>"),
    (2, "<=J> = <J>"),
    (1, "<=K> = <K>"),
    (1, "<=M> = <M>"),
    (1, "<=V> = <V>"),
    (0.5, "<=DQ> = <DQ>"),
    (0.5, "<=DD> = <DD>"),
    (2, "<=O> = <O>"),
    (1, "<=FN> = <FN>"),
    (0.5, "<=G> = <G>"),
    (1, "<=T>, <=T> = <T>, <T>"),
    (0.5, "<=T>, *<=L> = <L>"),
    (1, "<=I>, <=J> = <I>, <J>"),
    (1, "<=T> = <=T> = <T>"),
    (2, "<!T> = <T>"),
    (2, "<!I> = <I>"),
    (1, "<!F> = <F>"),
    (1, "<!J> = <J>"),
    (1, "<!L> = <L>"),
    (1, "<!O> = <O>"),
    (1, "<!FN> = <FN>"),
    (1, "<!D> = <D>"),
    (1, "<!S> = <S>"),
    (1, "<!B> = <B>"),
    (0.3, "<!G> = <G>"),
]
UPDATING = [
    (3, "<!T> <op>= <T>"),
    (3, "<!I> += <I>"),
    (1, "<!I> -= <small>"),
    (1, "<!F> *= <real>"),
    (1, "<!S> += '<key>'"),
    (1, "<!L> += [<T>]"),
    (1, "<!J> += [<I>]"),
    (1, "<!J> *= 2"),
    (1, "<!K> |= {<I>}"),
    (1, "<!Q> += (<T>,)"),
    (3, "<~T>.<inplace>(<F>)"),
    (2, "<~T>.<inplace>(<R>)"),
    (1, "<~T>.zero_()"),
    (2, "<~T>[..., <i>] = <F>"),
    (1, "<~T>[..., 1:3] += <I>"),
    (1, "<~T>[..., :2] = <R>"),
    (1, "<~T>.view(-1)[<i>] = <R>"),
    (1, "<~T>.copy_(<R>)"),
    (1, "<=T> = <T>.view(-1, 4)[0]\n<T>.add_(1)"),
    (1, "torch.add(<T>, <F>, out=torch.empty(0))"),
]
CHANGING = [
    (3, "<~L>.append(<T>)"),
    (1, "<~L>[<i>] = <T>"),
    (1, "<~L>.insert(0, <T>)"),
    (1, "<~L>.extend(<Q>)"),
    (1, "<~L>.reverse()"),
    (0.1, "<~L>.clear()"),
    (1, "<~L>[1:] = [<T>]"),
    (0.5, "del <~L>[-1:]"),
    (3, "<~J>.append(<I>)"),
    (1, "<~J>[<i>] = <I>"),
    (1, "<~J>[<i>] += <I>"),
    (1, "<~J>.sort()"),
    (1, "<~J>.sort(key=lambda a: <I|a:I>)"),
    (1, "<~J>.remove(<I>) if <I> > 3 else None"),
    (1, "<~J>[:] = <J>"),
    (0.2, "<~J>[::2] = [0] * len(<J>[::2])"),
    (0.5, "<~J>.append(<J>.pop(0) if <J> else 0)"),
    (0.5, "del <~J>[-1:]"),
    (3, "<~D>['<key>'] = <T>"),
    (1, "<~D>['<key>'] += <F>"),
    (1, "<~D>.update(<D>)"),
    (1, "<~D>.update(a=<T>)"),
    (1, "<~D>.pop('<key>', None)"),
    (0.2, "del <~D>['<key>']"),
    (0.5, "<~D>.popitem()"),
    (2, "<~M>[<N>] = <I>"),
    (1, "<~M>[<N>] = <M>.get(<N>, 0) + 1"),
    (1, "<~M>.update({<N>: <I>})"),
    (1, "<~M>.pop(<N>, None)"),
    (2, "<~K>.add(<I>)"),
    (1, "<~K>.discard(<I>)"),
    (1, "<~K>.update(<J>)"),
    (2, "<~V>[<i>].append(<I>)"),
    (1, "<~V>.append(<J>)"),
    (1, "<~DQ>.append(<I>)"),
    (1, "<~DQ>.appendleft(<I>)"),
    (1, "<~DQ>.rotate(1)"),
    (2, "<~DD>['<key>'].append(<I>)"),
    (2, "<~O>.n = <I>"),
    (1, "<~O>.n += 1"),
    (2, "<~O>.t = <T>"),
    (1, "<~O>.t += <F>"),
    (1, "<~O>.extra = <T>"),
    (1, "<~O>.items.append(<I>)"),
    (0.5, "<~O>.items = <J>"),
    (1, "setattr(<O>, '<attribute>', <T>)"),
    (0.1, "del <~O>.extra"),
    (1, "vars(<O>).update(extra=<T>) if hasattr(<O>, '__dict__') else None"),
    (0.3, "<class>.shared = <I>"),
    (0.3, "<class>.shared.append(<I>) if isinstance(<class>.shared, list) else None"),
    (0.5, "LOG.append(<I>)"),
    (0.5, "LOG.append((<S>, <I>))"),
    (0.3, "LOG.append(<T>)"),
    (0.5, "<~L>.append(<L>[0])"),
    (0.3, "<~T>.note = <I>"),
]
BREAKING = [
    (1, "print(<I>, <S>)"),
    (0.5, "print('at', <B>)"),
    (0.3, "print(<J>)"),
    (0.3, "print(f'{<$I>}', end=' ')"),
    (1, "stator.graph_break()"),
    (0.7, "<=F> = <R>.item()"),
    (0.5, "<=I> = int(<R>)"),
    (0.3, "<=F> = random.random()"),
    (0.3, "<=J> = <T>.view(-1)[:2].tolist()"),
    (0.3, "<!I> += int(<R> > <F>)"),
    (0.2, "next(<~G>, None)"),
    (0.3, "sys.stdout.write('-')"),
]
CONTROL = templates("""
3
if <B>:
    <block>

3
if <B>:
    <block>
else:
    <block>

1
if <B>:
    <block>
elif <B>:
    <block>
else:
    <block>

1
if <R> > <F>:
    <block>
else:
    <block>

1
if <T>.sum() > <F>:
    <block>

2
for <=I> in range(<I> % 4):
    <loop>

1
for <=I> in range(3):
    <loop>

1
for <=T> in <L>[:3]:
    <loop>

1
for <=T> in list(<L>)[:3]:
    <loop>
else:
    <block>

1
for <=I>, <=T> in enumerate(<L>[:3]):
    <loop>

1
for <=T>, <=T> in zip(<L>, <L>[:3]):
    <loop>

1
for <=S>, <=T> in sorted(<D>.items(), key=lambda p: p[0]):
    <loop>

1
for <=S>, <=T> in list(<D>.items()):
    <loop>

1
for <=T> in <D>.values():
    <loop>

1
for <=I> in <J>[:4]:
    <loop>

0.5
for <=I> in <~G>:
    <loop>
    if <B>: break

0.5
for <=I> in count_up(<I> % 4):
    <loop>

0.5
for <=J> in <V>[:3]:
    <loop>

0.5
for <=I> in <M>.values():
    <loop>

0.5
for <=I> in reversed(<J>[:3]):
    <loop>

1
<=W> = 3
while <@W> > 0:
    <@W> -= 1
    <loop>

0.5
<=W> = 0
while True:
    <@W> += 1
    if <@W> > 3: break
    <loop>

0.5
for <=I> in itertools.count():
    if <@I> > 3 or len(LOG) > 40: break
    LOG.append(0)
    <loop>

2
if <B>: break

2
if <B>: continue

0.3
if <R> > <F>: break

1
match <I>:
    case 0 | 1:
        <block>
    case n if n > 3:
        <block>
    case _:
        <block>

1
match <J>:
    case [a, b, *rest]:
        <block|a:I|b:I|rest:J>
    case [a]:
        <block|a:I>

1
match <D>:
    case {'a': a, **rest}:
        <block|a:T|rest:D>
    case {}:
        <block>

1
match <O>:
    case <class>(n=0):
        <block>
    case <class>(n=n, t=t):
        <block|n:I|t:T>

0.5
match <S>:
    case 'a' | 'b':
        <block>
    case str():
        <block>

0.5
match <N>:
    case True:
        <block>
    case 1 | 2.5:
        <block>
    case None:
        <block>
""")
RAISING = templates("""
2
try:
    <block>
    if <B>: raise <error>('<key>', <I>)
    <block>
except <error> as e:
    <block>

1
try:
    <block>
except Exception as e:
    LOG.append(type(e).__name__)

1
try:
    <block>
finally:
    <block>

1
try:
    <=T> = <D>['<key>']
except KeyError:
    <block>
else:
    <block>
finally:
    <block>

1
try:
    <block>
    <=I> = <M>[<N>]
except (KeyError, TypeError):
    <block>

1
try:
    <=T> = <O>.missing
except AttributeError as e:
    LOG.append(str(e))

0.3
try:
    <block>
    if <B>: raise <error>(<S>)
except <error> as e:
    raise <error>('again') from e

0.3
if <B> and <B>:
    raise <error>(<S>, <I>)

0.1
assert <B>, <S>

1
with Scope('<key>') as <=I>:
    <block>

1
with Scope('<key>', True):
    <block>
    if <B>: raise <error>(<I>)

1
with managed(<J>) as <=J>:
    <block>

1
with contextlib.suppress(<error>, KeyError):
    <block>
    if <B>: raise <error>(<I>)

1
with torch.no_grad():
    <block>

0.3
with torch.enable_grad():
    <block>

1
try:
    <=I> = next(<~G>)
except StopIteration:
    <block>

0.5
try:
    <T>.view(-1, 3, 7)
except RuntimeError:
    <block>

0.5
for <=I> in range(2):
    try:
        <block>
        if <B>: continue
        if <B>: break
    finally:
        <loop>
""")
CALLING = templates("""
2
def <=FN>(a, b=<I>):
    <body T|a:T|b:I>

1
def <=FN>(a, *rest, k=<T>, **more):
    <body T|a:T|rest:L|k:T|more:D>

2
<=T> = helper(<T>, <I>)

1
<=T> = helper(<T>, n=<I>, scale=<F>)

1
<=T> = helper(*(<T>, <I>), **{'scale': <F>})

1
<=T> = spread(<T>, *<L>, k=<I>, **<D>)

1
<=T> = spread(*<Q>)

1
<=T> = remember(<T>)

1
<=T> = recurse(<T>, <I> % 3)

1
<=FN> = make_scaler(<F>)
<=T> = <@FN>(<T>)

1
<=FN> = make_counter(<I>)
<=T> = <@FN>(<@FN>(<T>))

1
<=I> = cached(<I>)
""")
STATEMENTS = [*BINDING, *UPDATING, *CHANGING, *BREAKING, *CONTROL, *RAISING, *CALLING]

# Between the calls, at module level: changes of everything that a function may have read.
BETWEEN = [
    (3, "g_n = <I>"),
    (2, "g_n += 1"),
    (1, "g_n = <key_like>"),
    (2, "g_f = <F>"),
    (2, "g_flag = not g_flag"),
    (1, "g_s = <S>"),
    (2, "g_t = <T>"),
    (1, "g_t = make(<small>, 4)"),
    (2, "g_t.add_(1)"),
    (1, "g_t = g_list[0]"),
    (1, "g_t = g_d['a']"),
    (2, "g_list.append(<T>)"),
    (1, "g_list = list(g_list)"),
    (1, "g_list = tuple(g_list)"),
    (1, "g_list[0] = g_list[-1]"),
    (2, "g_j.append(<I>)"),
    (1, "g_j.clear()"),
    (1, "g_j = [True, 1.0, 1]"),
    (1, "g_j = g_v[0]"),
    (2, "g_d['<key>'] = <T>"),
    (1, "g_d['a'] = g_d.pop('a')"),
    (1, "g_d.pop('b', None)"),
    (2, "g_m[<N>] = <I>"),
    (1, "g_m = dict(reversed(g_m.items()))"),
    (1, "g_m.pop(1, None)\ng_m[True] = 5"),
    (1, "g_m.pop(1, None)\ng_m[1.0] = 5"),
    (1, "g_k.add(<I>)"),
    (1, "g_k = set()"),
    (1, "g_v[0].append(<I>)"),
    (1, "g_v[0] = g_v[-1]"),
    (1, "g_dq.append(<I>)"),
    (1, "g_dd['<key>'].append(<I>)"),
    (2, "g_o = <O>"),
    (1, "g_o = g_p"),
    (2, "g_o.n = <I>"),
    (1, "g_o.t = <T>"),
    (1, "g_o.extra = <T>"),
    (1, "g_o.items = <J>"),
    (1, "g_p.t = g_o.t"),
    (1, "<class>.shared = <small>"),
    (1, "<class>.step = lambda self, a: a * 2"),
    (1, "<class>.total = property(lambda self: <small>)"),
    (1, "<class>.extra = make(<small>, 4)"),
    (1, "g_fn = <FN>"),
    (1, "helper.__defaults__ = (<I>, <F>)"),
    (1, "helper = lambda x, n=1, scale=1.0: x + n * scale"),
    (1, "remember.__defaults__[0].append(<T>)"),
    (1, "g_g = iter([<I>, <I>, 4])"),
    (0.5, "next(g_g, None)"),
    (0.5, "g_t = g_t.requires_grad_(not g_t.requires_grad) if g_t.is_leaf else g_t.detach()"),
    (0.5, "torch.set_grad_enabled(not torch.is_grad_enabled())"),
    (0.3, "torch.set_default_dtype(torch.float64)"),
    (0.3, "len = lambda a: 2"),
    (0.3, "count_up = lambda n: iter(range(n + 1))"),
    (0.3, "if 'len' in globals(): del len"),
]

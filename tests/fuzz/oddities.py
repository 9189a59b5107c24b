"""What programs seldom do and a watcher easily misses: templates that use the world of `odd_world.py`.

`grammar.py` says what a hole is.
"""

from __future__ import annotations

from statements import templates

STATEMENTS = templates("""
1
odd_error.add_note('<key>')

1
odd_error.args = (<I>,)

1
<=I> = len(odd_error.args) + odd_error.args[-1]

1
try:
    raise odd_error
except Oops as e:
    LOG.append(str(e))
    <block>

1
try:
    raise odd_error from KeyError('<key>')
except Oops as e:
    LOG.append(repr(e.__cause__))

1
try:
    try:
        <block>
        raise KeyError(<I>)
    finally:
        LOG.append(sys.exc_info()[0].__name__)
        <block>
except KeyError as e:
    LOG.append(e.args)
    LOG.append(e.__traceback__ is not None)

1
try:
    raise ExceptionGroup('g', [ValueError(<I>), KeyError('<key>')])
except* ValueError as group:
    <=I> = len(group.exceptions)
except* KeyError:
    pass

0.5
odd_space.n += <I>

0.5
odd_space.t = <T>

0.5
odd_space.sub.k.append(<I>)

0.5
odd_space.<key> = <I>

1
<=I> = odd_space.n + len(odd_space.sub.k)

0.5
odd_counter.update(<S>)

0.5
odd_counter['<key>'] += 1

0.5
<=I> = odd_counter.most_common(1)[0][1] + odd_counter['zz']

0.5
odd_ordered.move_to_end('<key>') if '<key>' in odd_ordered else None

0.5
odd_ordered['<key>'] = odd_ordered.pop('a', <I>)

0.5
<=S> = ''.join(odd_ordered) + str(odd_ordered == {'a': 1})

0.5
odd_chain['<key>'] = <I>

0.5
<=I> = odd_chain.get('<key>', 0) + len(odd_chain)

0.5
odd_bytes.append(<i>)
<=I> = odd_bytes[0] + len(odd_bytes)

1
<=I> = next(odd_count)

0.5
<=I> = next(odd_cycle)

0.5
<=T> = <T> * next(odd_count)

0.5
odd_var.set(odd_var.get() + 1)

0.5
<=T> = <T> * odd_var.get()

0.5
odd_local.n = getattr(odd_local, 'n', 0) + 1
<=I> = odd_local.n

0.5
odd_weak['<key>'] = g_o
<=I> = len(odd_weak)

0.5
heapq.heappush(odd_heap, <I>)
<=I> = heapq.heappop(odd_heap)

0.5
bisect.insort(odd_heap, <I>)

0.5
<=I> = bisect.bisect(odd_heap, <I>)

0.5
<=J> = <J>[odd_slice]

0.5
<=I> = len(odd_range) + sum(odd_range)

0.5
odd_array.append(3)
<=I> = odd_array[0] + len(odd_array)

0.5
<=T> = odd_partial(<T>, 2)

1
odd_param.data.add_(1)

1
with torch.no_grad():
    odd_param.mul_(0.5)
<=T> = <T> * odd_param

0.5
<=T> = odd_linear(<T>.float())

0.5
odd_linear.weight.data.mul_(0.5)
<=T> = odd_linear(g_t)

0.5
<=T> = odd_norm(<T>.float().view(-1, 4)) if <T>.numel() > 4 else <T>

0.3
odd_norm.train(<B>)

0.5
<=T> = odd_drop(<T>)

0.3
odd_drop.train(<B>)

0.5
for <=O> in odd_modules:
    LOG.append(<@O>.training)

0.3
odd_modules.append(nn.Tanh()) if len(odd_modules) < 4 else None

1
odd_views[<i>].add_(1)
<=T> = odd_views[2].view(-1, 4) + <T>

1
odd_views[1].copy_(<R>)
<=R> = odd_views[0].sum()

0.5
odd_views[1] = odd_views[0][1]

1
<=I> = odd_missing['<key>']

0.5
<=I> = odd_missing.get('<key>', 7)

0.5
odd_missing['<key>'] += 1

1
odd_loud.n = odd_loud.n + 1

0.5
odd_loud.<key> = <I>

0.5
dropping(lambda: odd_loud.__delattr__('<key>'))

1
odd_number += <I>
<=I> = odd_number.n

0.5
<=I> = (odd_number + odd_number).n + (5 if odd_number else 6) + len(odd_number)

0.5
<=I> = <J>[odd_number] if len(<J>) > 1 else 0

0.5
<=B> = <I> in odd_number

0.5
<=T> = odd_number(<T>)

0.5
<=S> = f'{odd_number:>3}' + '%.1f' % float(odd_number)

0.5
<=J> = list(odd_number)

0.5
odd_numbers.sort()

0.5
odd_numbers.append(odd_numbers[0] + 1)
<=I> = max(odd_numbers).n + odd_numbers.index(odd_numbers[-1])

0.5
<=I> = sum(odd_numbers, Number(0)).n

0.5
odd_keyed[Number(<I>)] = <I>

0.5
<=I> = odd_keyed.get(Number(<I>), 0) + len(odd_keyed)

0.5
odd_color = Color.BLUE if odd_color is Color.RED else Color.RED
<=I> = odd_color + 1

0.5
odd_flags ^= Perm.W
<=B> = Perm.W in odd_flags

0.5
<=T> = <T> * odd_color

0.5
odd_point = odd_point.moved()
<=I> = odd_point.a + hash(odd_point) % 3

0.5
match odd_point:
    case Point(1, b):
        <block|b:I>
    case Point(a=a):
        <block|a:I>

0.5
Counted.instances.append(Counted())
<=I> = Counted.made + Counted.twice

0.5
<=I> = Counted.build().number + Counted.fixed()

0.3
<=X> = type('Made', (Counted,), {'k': 3})

0.3
class Inner(Plain):
    k = 3
    def step(self, x):
        return x * self.k
<=T> = Inner(<T>, 2).step(<T>)

0.5
odd_text.mark += 1
<=I> = odd_text.mark + len(odd_text)

0.5
odd_whole = odd_whole + <I>
<=T> = <T> * odd_whole

1
<=J> = list(odd_walker)

0.5
for <=I> in odd_walker:
    if <B>: break
    <block>

0.5
odd_bag['<key>'] = <I>
<=I> = odd_bag['<key>'] + ('b' in odd_bag)

0.3
<=S> = ''.join(odd_bag)

0.3
dropping(lambda: odd_bag.__delitem__('<key>'))

1
<=I> = next(odd_talk, 0)

0.5
<=I> = dropping(lambda: odd_talk.send(<I>)) or 0

0.3
dropping(lambda: odd_talk.throw(ValueError('x')))

0.3
odd_talk.close()

0.3
odd_talk = talk()

0.5
<=I> = next(odd_chained, 0)

1
<=T> = next(odd_tensors, g_t)

0.5
odd_tensors = tensors_of(<T>)

0.5
<=I> = dispatching(<I>) + dispatching(<J>) + dispatching(<S>)

0.5
<=T> = doubled(<T>)
<=I> = doubled.calls

0.5
<=T> = doubled(<T>, k=<I>)

0.5
<=T> = no_gradients(<T>)

1
<=I> = odd_up()

0.5
<=T> = <T> * odd_get()

0.5
odd_up, odd_get = pair_of_closures(<I>)

0.5
<=X>, <=X> = pair_of_closures(<I>)
LOG.append(<@X>)

0.5
<=I> = dropping(lambda: <J>[9]) or 0

0.5
<=I> = globals()['g_n']

0.5
globals()['g_n'] = <I>

0.3
<=I> = eval('g_n + 1')

0.3
<=I> = locals().get('n', 3) if isinstance(locals().get('n', 3), int) else 0

0.5
<=I> = <~O>.__dict__.get('n', 0) if hasattr(<~O>, '__dict__') else 0

0.5
object.__setattr__(<~O>, 'n', <I>)

0.5
<=FN> = [lambda a: a * k for k in range(3)][<i>]

0.5
<=L> = [f(<T>) for f in [lambda a, k=k: a + k for k in range(2)]]

1
<=I> = <I>
def <=FN>(a):
    nonlocal <@I>
    <@I> += 1
    return a * <@I>
<=T> = <@FN>(<T>)
LOG.append(lambda: <@I>)

1
<=G> = (<I|a:I> for a in <~J>)
<~J>.append(<I>)
<=I> = next(<@G>, 0)

0.5
<=J> = [k for k, g in itertools.groupby(sorted(<J>))]

0.5
<=G> = itertools.takewhile(lambda a: a < 3, <J>)

0.5
<=J> = [a * b for a, b in itertools.product(<J>[:2], repeat=2)]

0.5
<=I> = sum(1 for _ in itertools.zip_longest(<J>, <J>))

0.5
<=G> = iter(lambda: g_j.pop() if g_j else None, None)

0.5
with contextlib.ExitStack() as stack:
    stack.callback(LOG.append, 'done')
    stack.enter_context(Scope('<key>'))
    <block>

0.5
with torch.autocast('cpu', dtype=torch.bfloat16):
    <=X> = <T>.float().view(-1, 4) @ torch.eye(4)

0.5
with torch.inference_mode():
    <=X> = <T> * 2

0.5
torch.manual_seed(<i>)
<=T> = torch.rand(4) + <T>

0.5
random.seed(<i>)
<=F> = random.random()

0.5
<=X> = <T>.numpy(force=True)
<=F> = float(<@X>.sum())

0.5
<=T> = torch.from_numpy(<T>.detach().clone().numpy())

0.5
<=T> = torch.nonzero(<T> > <F>).float().sum() + <T>

0.5
<=T> = <T>.masked_fill(<T> > <F>, <F>)

0.5
<=T> = nn.functional.dropout(<T>, 0.5, training=<B>)

0.5
<=T> = torch.zeros(4).index_add_(0, torch.tensor([0, 1]), torch.ones(2)) + <T>

0.5
<=T> = <T>.new_zeros(4).normal_()

0.5
<=X> = <T>.detach().clone().requires_grad_()
(<@X> * <F>).sum().backward()
<=T> = <@X>.grad

0.5
<=X> = <T>.detach().clone().requires_grad_()
<=T> = torch.autograd.grad((<@X> ** 2).sum(), <@X>)[0]

0.5
<=T> = <T>.expand(2, *<T>.shape)[0]

0.5
<=T> = torch.as_strided(<T>.contiguous(), (4,), (1,))

0.3
<=T> = <T>.data

0.5
<=I> = <T>._version

0.5
<=B> = <T>.grad_fn is None and <T>.is_leaf

0.5
<=I> = <T>.stride(0) + <T>.storage_offset()

0.5
<=T> = torch.empty_like(<T>).fill_(<F>)

0.5
<=T>, <=X> = torch.sort(<T>, -1)

0.5
<=T>, <=X> = <T>.min(-1, keepdim=True)[0] + <T>, None

0.5
<=I> = hash((<I>, <S>)) % 2

0.5
<=S> = '{0[0]} {1.n}'.format(<J> or [0], <O>)

0.5
<=S> = '%(a)s' % {'a': <I>}

0.5
<=I> = <I>.bit_length() + int(str(abs(int(<I>))))

0.5
<=S> = json.dumps(<J>)

0.5
<=S> = re.sub('[ab]', lambda m: m.group().upper(), <S>)

0.5
<=I> = functools.reduce(lambda a, b: a * 2 + b, <J>, 0)

0.5
<=I> = sorted(<J>, key=functools.cmp_to_key(lambda a, b: b - a))[0] if <J> else 0

0.5
<=I> = max(<J>, key=lambda a: (a % 3, a), default=0)

0.5
<=V> = list(map(list, zip(<J>, <J>)))

0.5
<~L>[:], <~J>[:] = <L>, <J>

0.5
<~L>[0], <~L>[-1] = <~L>[-1], <~L>[0]

0.5
<~D>['<key>'], <~D>['<key>'] = <T>, <T>

0.3
<~O>.__class__ = <class>

0.3
<=I> = inspect.signature(helper).parameters['n'].default

0.3
<=S> = helper.__name__ + helper.__qualname__ + str(helper.__code__.co_argcount)

0.3
helper.tag = getattr(helper, 'tag', 0) + 1

0.3
<=I> = helper.__defaults__[0]

0.3
import string as string_module
<=S> = string_module.digits[:<I> % 4]

0.3
warnings.warn('odd <key>')

0.3
<=I> = (lambda f: f(f, 3))(lambda f, n: 1 if n < 1 else n * f(f, n - 1))

0.3
del g_s
g_s = '<key>'

0.3
<=C> = complex(<F>, <I>)
<=F> = <@C>.real

0.3
<=X> = weakref.ref(g_o)
LOG.append(<@X>() is None)

0.3
<=X> = copy.deepcopy(<O>)

0.3
<=X> = copy.copy(<D>)
<@X>['<key>'] = <T>
""")

/* The probe: a constant of an instrumented copy, fired by `LOAD_CONST probe; UNARY_NEGATIVE;
 * POP_TOP`.
 *
 * A unary operator rather than a call, for three reasons: it polls no signals and lets no other
 * thread in, so the program is interrupted where it would be without us; `sys.monitoring` and
 * profilers report no call; and it takes one stack slot. A probe never raises and always leaves
 * None.
 *
 * Operands are read from the running frame: the depth of the value stack before an instruction is
 * known statically. What a probe reads is checked once, when its copy is adopted (codeinfo.c), and
 * a probe that is negated anywhere but at its own place in its own copy does nothing: no program
 * can make it read a stack that is not there.
 */
#include "native.h"
#include <structmember.h>

/* ---- where a value goes ---- */

static inline PyObject **
stack_at(Frame *f, int depth)
{
    return f->localsplus + frame_code(f)->co_nlocalsplus + depth;
}

static int
will_be_watched(Watcher *w, PyObject *function)
{
    Verdict v = codeinfo_classify(w, (PyCodeObject *)((PyFunctionObject *)function)->func_code);
    Py_XDECREF(v.payload);
    return v.kind == CODE_COPY;
}

/* Does this instruction call a function that is watched, without C code in between? */
static int
calls_watched_function(Watcher *w, Probe *p, PyObject **operands)
{
    PyObject *callable = p->kind == KIND_CALL ? *call_slots(operands, p->count).callable : NULL;
    if (callable != NULL && PyMethod_Check(callable)) {
        callable = PyMethod_GET_FUNCTION(callable);
    }
    return callable != NULL && PyFunction_Check(callable) && will_be_watched(w, callable);
}

int
probe_returns_to_python(Watcher *w, Probe *p)
{
    Level *level = thread_here.level;
    if (p->arg == Py_None || level == NULL || level->probe != p) {
        return 0;
    }
    Level *caller = level->below;
    if (caller == NULL) {
        return 1; /* from the root: it is the result */
    }
    Probe *call = caller->probe;
    return call != NULL && frame_caller(level->frame) == caller->frame &&
           calls_watched_function(w, call, stack_at(caller->frame, call->depth - call->span));
}

/* ---- delivering an event ---- */

static void
find_call_operands(Probe *p, Operands *ops)
{
    PyObject **top = ops->slots + p->span;
    if (p->kind == KIND_CALL) {
        ops->call = call_slots(ops->slots, p->count);
        ops->kwnames = p->span == p->count + 3 ? top[-1] : p->arg;
    }
    else {
        ops->call.callable = call_ex_callable(ops->slots);
        ops->starargs = ops->slots[2];
        ops->kwnames = p->span == 4 ? ops->slots[3] : NULL;
    }
}

static void
find_operands(Probe *p, Frame *f, Operands *ops)
{
    ops->nprefix = 0;
    ops->slots = stack_at(f, p->depth - p->span);
    ops->count = p->count;
    ops->step = p->step;
    switch (p->kind) {
    case KIND_CALL:
    case KIND_CALL_EX:
        find_call_operands(p, ops);
        break;
    case KIND_GLOBAL:
    case KIND_BUILD_CLASS:
        ops->prefix[1] = f->f_builtins;
        ops->prefix[0] = f->f_globals;
        ops->nprefix = 2;
        break;
    case KIND_STORE_GLOBAL:
    case KIND_DELETE_GLOBAL:
    case KIND_IMPORT_NAME:
        ops->prefix[0] = f->f_globals;
        ops->nprefix = 1;
        break;
    case KIND_DEREF:
    case KIND_STORE_DEREF:
    case KIND_DELETE_DEREF:
        ops->prefix[0] = f->localsplus[p->slot];
        ops->nprefix = 1;
        break;
    default:
        break;
    }
}

/* Calls handler(probe, *operands). The operands are held for the call: the handler may run
 * anything. */
static PyObject *
deliver(Watcher *w, PyObject *handler, Probe *p, Operands *ops)
{
    enum { SMALL = 12 };
    PyObject *small[SMALL], **args = small;
    size_t n = 1 + (size_t)ops->nprefix + (size_t)ops->count, i = 0;
    if (n > SMALL) {
        args = PyMem_New(PyObject *, n);
        if (args == NULL) {
            PyErr_NoMemory();
            watcher_lost(w);
            return NULL;
        }
    }
    args[i++] = (PyObject *)p;
    for (int k = 0; k < ops->nprefix; k++) {
        args[i++] = ops->prefix[k];
    }
    for (int k = 0; k < ops->count; k++) {
        args[i++] = ops->slots[k * ops->step];
    }
    int whole = 1;
    for (size_t k = 0; k < n; k++) {
        whole &= args[k] != NULL;
        Py_XINCREF(args[k]);
    }
    PyObject *result = whole ? watcher_call(w, handler, args, n) : NULL;
    for (size_t k = 0; k < n; k++) {
        Py_XDECREF(args[k]);
    }
    if (args != small) {
        PyMem_Free(args);
    }
    return result;
}

static PyObject *
call_arguments(CallSlots *call)
{
    PyObject *args = PyTuple_New(call->nargs);
    for (int i = 0; args != NULL && i < call->nargs; i++) {
        PyTuple_SET_ITEM(args, i, Py_NewRef(call->args[i]));
    }
    return args;
}

/* Calls handler(probe, callable, args, kwnames) or, for CALL_EX, handler(probe, callable, args,
 * kwargs). */
static void
deliver_call(Watcher *w, PyObject *handler, Probe *p, Operands *ops)
{
    PyObject *args = p->kind == KIND_CALL ? call_arguments(&ops->call) : Py_NewRef(ops->starargs);
    PyObject *names = ops->kwnames;
    if (p->kind == KIND_CALL && (names == NULL || names == Py_None)) {
        names = PyTuple_New(0);
    }
    else {
        names = Py_NewRef(names == NULL ? Py_None : names);
    }
    if (args == NULL || names == NULL) {
        watcher_lost(w);
        Py_XDECREF(args);
        Py_XDECREF(names);
        return;
    }
    PyObject *callable = Py_NewRef(*ops->call.callable);
    PyObject *stack[4] = {(PyObject *)p, callable, args, names};
    PyObject *result = watcher_call(w, handler, stack, 4);
    if (result != NULL && result != Py_None) {
        /* The slot owns its callable. In the method form the self beneath it stays and becomes the
         * first argument. */
        Py_SETREF(*ops->call.callable, Py_NewRef(result));
    }
    Py_XDECREF(result);
    Py_DECREF(callable);
    Py_DECREF(args);
    Py_DECREF(names);
}

static void
note_function(Watcher *w, Frame *f, Probe *p)
{
    PyObject *func = *stack_at(f, p->depth - 1);
    if (func != NULL && ptrset_add(&w->fresh, func) < 0) {
        PyErr_Clear(); /* not fresh is the careful answer */
    }
    ptrset_remove(&w->entered, func); /* an earlier function at this address is gone */
}

/* Calls on_return(probe, value). */
static void
tell_return(Watcher *w, Frame *f, Probe *p)
{
    PyObject *value = p->kind == KIND_RETURN ? p->arg : *stack_at(f, p->depth - 1);
    PyObject *args[2] = {(PyObject *)p, Py_NewRef(value)};
    Py_XDECREF(watcher_call(w, w->on_return, args, 2));
    Py_DECREF(args[1]);
}

/* A return gets an ESCAPE probe that says so, or, of a constant, a RETURN probe. */
static inline int
is_return(Probe *p)
{
    return p->kind == KIND_RETURN || (p->kind == KIND_ESCAPE && p->arg != Py_None);
}

/* Do the operands stay on the stack while the instruction runs? CALL_FUNCTION_EX replaces what is
 * no tuple and no dict, BUILD_SET lets go of equal keys. */
static inline int
stays_intact(Probe *p, Operands *ops)
{
    if (p->kind == KIND_CALL_EX) {
        return ops->starargs != NULL && PyTuple_CheckExact(ops->starargs) &&
               (ops->kwnames == NULL || PyDict_CheckExact(ops->kwnames));
    }
    return p->kind != KIND_HASH;
}

/* Bound methods and the like put their own first argument into the slot before the arguments while
 * they run. (A bound method alone is taken apart for good: function, self.) */
static inline int
calls_in_place(Probe *p, Operands *ops)
{
    PyObject *callable = *ops->call.callable;
    if (callable != NULL && PyMethod_Check(callable)) {
        return ops->call.nargs == p->count;
    }
    return callable == NULL || PyFunction_Check(callable) || PyCFunction_Check(callable) ||
           PyType_Check(callable) || Py_IS_TYPE(callable, &PyMethodDescr_Type);
}

static inline void
note_operands(Level *level, Probe *p, Operands *ops)
{
    level->intact = stays_intact(p, ops);
    PyObject *held = level->held;
    level->held = NULL;
    level->held_at = -1;
    if (p->kind == KIND_WITH) { /* replaced by its __exit__ */
        level->held = Py_XNewRef(ops->slots[0]);
        level->held_at = 0;
    }
    else if (p->kind == KIND_CALL && !calls_in_place(p, ops)) {
        PyObject **slot = ops->call.args - 1;
        level->held = Py_XNewRef(*slot);
        level->held_at = (int)(slot - ops->slots);
    }
    Py_XDECREF(held);
}

static inline int
at_its_place(Probe *p, Frame *f)
{
    return f != NULL && frame_code(f) == p->home && frame_unit(f) == p->site;
}

static inline int
noted_in_c(Watcher *w, Probe *p, Operands *ops)
{
    return p->kind == KIND_ATTR && w->ledger != NULL && watcher_read_attribute(w, p, ops->slots[0]);
}

static void
tell(Watcher *w, PyObject *handler, Probe *p, Operands *ops)
{
    w->calls++;
    if (p->kind == KIND_CALL || p->kind == KIND_CALL_EX) {
        deliver_call(w, handler, p, ops);
        return;
    }
    /* POP_JUMP_IF_NONE compares with what is not on the stack */
    if (p->kind == KIND_IS && p->count == 1) {
        ops->prefix[0] = ops->slots[0];
        ops->prefix[1] = Py_None;
        ops->nprefix = 2;
        ops->count = 0;
    }
    Py_XDECREF(deliver(w, handler, p, ops));
}

/* Of the operands of a call of a watched function, those from which on they may end up in its
 * `*args` or `**kwargs`. */
static int
first_packed(Probe *p, PyObject **operands)
{
    CallSlots call = call_slots(operands, p->count);
    PyObject *callable = *call.callable;
    int self = PyMethod_Check(callable);
    PyObject *function = self ? PyMethod_GET_FUNCTION(callable) : callable;
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(function);
    int named = p->arg != Py_None && PyTuple_Check(p->arg) ? (int)PyTuple_GET_SIZE(p->arg) : 0;
    int packed = call.nargs;
    if (named > 0 && (code->co_flags & CO_VARKEYWORDS)) {
        packed -= named;
    }
    if ((code->co_flags & CO_VARARGS) && code->co_argcount - self < packed) {
        packed = code->co_argcount > self ? code->co_argcount - self : 0;
    }
    return (int)(call.args - operands) + packed;
}

enum { CONTAINERS_SEARCHED = 6 };

/* Loose numbers: known objects whose value nothing has depended on so far. An instruction that is
 * about to use one as more than something to be moved about settles it. What a watched function is
 * given, and what is stored in a variable by itself, is moved only. In a container it is
 * specialized: C code would find it there. Symbolic numbers are treated likewise, in containers
 * too. */
static void
specialize_operands(Watcher *w, Probe *p, PyObject **operands)
{
    if (p->kind == KIND_STORE_DEREF || p->kind == KIND_STORE_GLOBAL ||
        (p->kind == KIND_ESCAPE && probe_returns_to_python(w, p))) {
        return;
    }
    int first = calls_watched_function(w, p, operands) ? first_packed(p, operands) : 0;
    for (int i = first; i < p->span && thread_here.state == STATE_WATCHING; i++) {
        PyObject *value = operands[i];
        int matters =
            value != NULL && (ptrset_remove(&w->unguarded, value) ||
                              (w->on_symbol != NULL && holds_symbol(value, CONTAINERS_SEARCHED)));
        if (matters && w->handlers[KIND_PACK] != NULL) {
            PyObject *args[2] = {(PyObject *)p, Py_NewRef(value)};
            Py_XDECREF(watcher_call(w, w->handlers[KIND_PACK], args, 2));
            Py_DECREF(value);
        }
    }
}

/* Instructions that write are specialized before their handler notes the change: it may turn out
 * that the recording ends before them. (Others may be given another callable by their handler,
 * which decides what is specialized.) */
static inline int
is_settled_first(Probe *p)
{
    switch (p->kind) {
    case KIND_STORE_SUBSCR:
    case KIND_STORE_SLICE:
    case KIND_DELETE_SUBSCR:
    case KIND_STORE_ATTR:
    case KIND_INSERT:
    case KIND_EXTEND:
        return 1;
    default:
        return 0;
    }
}

static inline int
may_be_specialized(Thread *t)
{
    return t->state == STATE_WATCHING &&
           (t->watcher->unguarded.used > 0 || t->watcher->on_symbol != NULL);
}

static void
note_last(Watcher *w, Probe *p)
{
    if (w->last_probe != (PyObject *)p) {
        PyObject *old = w->last_probe; /* a probe's death runs no Python code */
        w->last_probe = Py_NewRef((PyObject *)p);
        Py_XDECREF(old);
    }
}

static void
fire(Thread *t, Probe *p)
{
    Watcher *w = t->watcher;
    Frame *f = current_frame(PyThreadState_Get());
    if (!at_its_place(p, f)) {
        return;
    }
    if (!hook_reached(t)) {
        watcher_displaced(t);
        return;
    }
    w->events++;
    note_last(w, p);
    if (p->kind == KIND_FUNCTION) {
        note_function(w, f, p);
        return;
    }
    if (w->returns && w->on_return != Py_None && is_return(p)) {
        tell_return(w, f, p);
        if (t->state != STATE_WATCHING) {
            return;
        }
        w = t->watcher;
    }
    Operands ops;
    find_operands(p, f, &ops);
    if (t->level != NULL && t->level->frame == f) {
        t->level->probe = p;
        note_operands(t->level, p, &ops);
    }
    if (p->mark != NULL && p->mark != Py_None && w->on_mark != Py_None) {
        PyObject *mark = Py_NewRef(p->mark);
        Py_XDECREF(watcher_call(w, w->on_mark, &mark, 1));
        Py_DECREF(mark);
        if (t->state != STATE_WATCHING) {
            return;
        }
        w = t->watcher;
    }
    PyObject **operands = ops.slots;
    int first = is_settled_first(p);
    if (first && may_be_specialized(t)) {
        specialize_operands(w, p, operands);
        if (t->state != STATE_WATCHING) {
            return;
        }
        w = t->watcher;
    }
    PyObject *handler = p->kind == KIND_PACK ? NULL : w->handlers[p->kind];
    if (handler != NULL &&
        (w->unfiltered || (filters[p->kind](w, p, &ops) && !noted_in_c(w, p, &ops)))) {
        tell(w, handler, p, &ops);
    }
    if (!first && may_be_specialized(t)) {
        specialize_operands(t->watcher, p, operands);
    }
}

static PyObject *
probe_fire(PyObject *self)
{
    Thread *t = &thread_here;
    Probe *p = (Probe *)self;
    Frame *outer = t->firing;
    if (t->watcher != NULL && t->state != STATE_OFF && !watcher_can_go_on(t->watcher)) {
        Py_RETURN_NONE;
    }
    if (t->state == STATE_WATCHING) {
        t->firing = current_frame(PyThreadState_Get());
        fire(t, p);
    }
    else if (t->state == STATE_PENDING && t->waiting != NULL && p->kind != KIND_FUNCTION) {
        Frame *f = t->firing = current_frame(PyThreadState_Get());
        if (f == t->waiting->frame && at_its_place(p, f) && pending_over(t, p)) {
            fire(t, p);
        }
    }
    t->firing = outer;
    Py_RETURN_NONE;
}
/* ---- the type ---- */

static PyObject *
probe_new(PyTypeObject *type, PyObject *args, PyObject *kwds)
{
    static char *names[] = {"kind",   "depth", "count", "arg",  "offset", "code",
                            "stores", "span",  "step",  "slot", NULL};
    int kind, depth, count, offset, span = -1, step = 1, slot = -1;
    PyObject *arg, *code, *stores;
    if (!PyArg_ParseTupleAndKeywords(args, kwds, "iiiOiO!O|iii:Probe", names, &kind, &depth, &count,
                                     &arg, &offset, &PyCode_Type, &code, &stores, &span, &step,
                                     &slot)) {
        return NULL;
    }
    if (span < 0) {
        span = count;
    }
    int cell = kind == KIND_DEREF || kind == KIND_STORE_DEREF || kind == KIND_DELETE_DEREF;
    int call = kind == KIND_CALL, ex = kind == KIND_CALL_EX;
    if (kind < 0 || kind >= KIND_COUNT || count < 0 || span < 0 || span > depth || step < 1 ||
        offset < 0 || cell != (slot >= 0) || (call && span != count + 2 && span != count + 3) ||
        (ex && span != 3 && span != 4) ||
        (!call && !ex && count > 0 && (count - 1) * step >= span)) {
        PyErr_SetString(PyExc_ValueError, "Probe: operands outside of the stack");
        return NULL;
    }
    Probe *p = (Probe *)type->tp_alloc(type, 0);
    if (p == NULL) {
        return NULL;
    }
    p->kind = kind;
    p->depth = depth;
    p->span = span;
    p->step = step;
    p->count = ex ? 0 : count;
    p->slot = slot;
    p->offset = offset;
    p->arg = Py_NewRef(arg);
    p->stores = Py_NewRef(stores);
    p->code = PyWeakref_NewRef(code, NULL);
    if (p->code == NULL) {
        Py_DECREF(p);
        return NULL;
    }
    return (PyObject *)p;
}

static void
probe_dealloc(PyObject *self)
{
    Probe *p = (Probe *)self;
    Py_XDECREF(p->arg);
    Py_XDECREF(p->stores);
    Py_XDECREF(p->mark);
    Py_XDECREF(p->code);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *
probe_code(PyObject *self, void *Py_UNUSED(closure))
{
    return weakref_get(((Probe *)self)->code);
}

static PyObject *
probe_lineno(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *code = weakref_get(((Probe *)self)->code);
    if (code == NULL || code == Py_None) {
        return code;
    }
    int line = PyCode_Addr2Line((PyCodeObject *)code, ((Probe *)self)->offset);
    Py_DECREF(code);
    if (line < 0) {
        Py_RETURN_NONE;
    }
    return PyLong_FromLong(line);
}

static PyObject *
probe_repr(PyObject *self)
{
    Probe *p = (Probe *)self;
    return PyUnicode_FromFormat("<probe %s %R at %d>", kind_names[p->kind], p->arg, p->offset);
}

static PyMemberDef probe_members[] = {
    {"kind", T_INT, offsetof(Probe, kind), READONLY, NULL},
    {"depth", T_INT, offsetof(Probe, depth), READONLY, NULL},
    {"count", T_INT, offsetof(Probe, count), READONLY, NULL},
    {"span", T_INT, offsetof(Probe, span), READONLY, NULL},
    {"offset", T_INT, offsetof(Probe, offset), READONLY, NULL},
    {"arg", T_OBJECT, offsetof(Probe, arg), READONLY, NULL},
    {"stores", T_OBJECT, offsetof(Probe, stores), READONLY, NULL},
    {"mark", T_OBJECT, offsetof(Probe, mark), 0,
     "Whatever a recorder has learned of this instruction; `on_mark` is told."},
    {NULL},
};

static PyGetSetDef probe_getset[] = {
    {"code", probe_code, NULL, "The original code object; None once it is gone.", NULL},
    {"lineno", probe_lineno, NULL, "The line of the original instruction, or None.", NULL},
    {NULL},
};

static PyNumberMethods probe_number = {.nb_negative = probe_fire};

PyTypeObject ProbeType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator._native.Probe",
    .tp_basicsize = sizeof(Probe),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "One watched instruction. `-probe` inside its instrumented copy fires it.",
    .tp_new = probe_new,
    .tp_dealloc = probe_dealloc,
    .tp_repr = probe_repr,
    .tp_as_number = &probe_number,
    .tp_members = probe_members,
    .tp_getset = probe_getset,
};

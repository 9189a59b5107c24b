/* The watcher: one recording of one thread. It owns the handlers and the sets that the filters ask,
 * and switches the thread's state. What the states mean is in hook.c.
 */
#include "native.h"
#include <structmember.h>

/* ---- run and stop ---- */

void
watcher_stop(Watcher *w)
{
    w->stopped = 1;
    if (w->thread != NULL) {
        w->thread->state = STATE_OFF;
    }
    if (w->holds_hook) {
        w->holds_hook = 0;
        hook_release();
    }
}

void
watcher_displaced(Thread *t)
{
    Watcher *w = t->watcher;
    w->displaced = 1;
    Shield s;
    shield_up(&s, t, w);
    PyErr_SetString(PyExc_RuntimeError, "the frame hook was displaced during the recording");
    watcher_failed(w);
    shield_down(&s);
    watcher_stop(t->watcher);
}

/* What the filters remember is of no use any more, and the program may look whether it is gone. */
void
watcher_let_die(Watcher *w)
{
    pairset_clear(&w->seen);
    pairset_clear(&w->registered);
    ptrset_clear(&w->approved);
}

static int
slot_count(PyCodeObject *code)
{
    return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) +
           ((code->co_flags & CO_VARKEYWORDS) != 0);
}

static PyObject *
root_copy(Watcher *w, PyCodeObject *code)
{
    PyObject *reason = NULL, *copy = codeinfo_copy(w, code, &reason);
    /* there is no program yet for it to arrive in */
    if (copy == NULL && w->error != NULL && w->interrupted) {
        PyThreadState_SetAsyncExc(PyThreadState_Get()->thread_id, NULL);
        error_put(Py_NewRef(w->error));
    }
    else if (copy == NULL) {
        PyErr_SetObject(Unwatchable, reason == NULL ? Py_None : reason);
    }
    Py_XDECREF(reason);
    return copy;
}

/* The run is over: nobody on the C stack refers to those who took it over any more. */
static void
release_successors(Watcher *w)
{
    Watcher *next = w->successor;
    w->successor = NULL;
    while (next != NULL) {
        Watcher *after = next->successor;
        next->successor = NULL;
        Py_DECREF(next);
        next = after;
    }
}

/* The values of a tuple or list, as `given`. Lists are emptied when the function has them: then it
 * alone holds them. */
static int
take_slots(RunArguments *given, PyObject *slots, PyObject *also)
{
    given->count = PySequence_Fast_GET_SIZE(slots);
    given->values = PyMem_Calloc((size_t)given->count + 1, sizeof(PyObject *));
    if (given->values == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < given->count; i++) {
        given->values[i] = Py_NewRef(PySequence_Fast_GET_ITEM(slots, i));
    }
    given->lists[0] = PyList_Check(slots) ? slots : NULL;
    given->lists[1] = also;
    return 0;
}

static PyObject *
run_copy(Watcher *w, Thread *t, PyFunctionObject *func, PyObject *copy, RunArguments *given)
{
    PyObject *call = hook_function(func, copy, func->func_globals, func->func_builtins);
    if (call == NULL) {
        return NULL;
    }
    w->stopped = w->misled = w->displaced = w->interrupted = 0;
    Py_CLEAR(w->error);
    w->thread = t;
    t->watcher = w;
    t->saw_copy = 0;
    t->given = given;
    w->holds_hook = 1;
    hook_acquire(t);
    t->state = STATE_WATCHING;
    /* should the recording end here already, the copy's probes are silent */
    (void)hook_enter(w, func);
    PyObject *result = PyObject_Vectorcall(call, given->values, (size_t)given->count, NULL);
    t->given = NULL;
    Watcher *last = t->watcher; /* held by the one before it */
    if (!last->stopped && !(t->saw_copy && hook_reached(t))) {
        watcher_displaced(t);
    }
    watcher_stop(last);
    last->thread = NULL;
    t->watcher = NULL;
    release_successors(w);
    Py_DECREF(call);
    return result;
}

static PyObject *
watcher_run(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Watcher *w = (Watcher *)self;
    Thread *t = &thread_here;
    if ((nargs != 2 && nargs != 3) || !PyFunction_Check(args[0]) ||
        !(PyTuple_Check(args[1]) || PyList_Check(args[1])) ||
        (nargs == 3 && !PyList_Check(args[2]))) {
        PyErr_SetString(
            PyExc_TypeError,
            "run(func, slots[, also]) takes a Python function, a tuple or list, and a list");
        return NULL;
    }
    if (w->enter == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this watcher was garbage already");
        return NULL;
    }
    if (t->watcher != NULL || w->thread != NULL || w->successor != NULL) {
        PyErr_SetString(PyExc_RuntimeError, w->thread != NULL
                                                ? "this watcher is running already"
                                                : "this thread is being watched already");
        return NULL;
    }
    PyFunctionObject *func = (PyFunctionObject *)args[0];
    PyCodeObject *code = (PyCodeObject *)func->func_code;
    if (PySequence_Fast_GET_SIZE(args[1]) != slot_count(code)) {
        PyErr_Format(PyExc_TypeError, "%U has %d argument slots, %zd values were given",
                     func->func_qualname, slot_count(code), PySequence_Fast_GET_SIZE(args[1]));
        return NULL;
    }
    RunArguments given;
    if (take_slots(&given, args[1], nargs == 3 ? args[2] : NULL) < 0) {
        return NULL;
    }
    Py_INCREF(w);
    PyObject *copy = root_copy(w, code);
    PyObject *result = copy == NULL ? NULL : run_copy(w, t, func, copy, &given);
    for (Py_ssize_t i = 0; i < given.count; i++) {
        Py_XDECREF(given.values[i]);
    }
    PyMem_Free(given.values);
    Py_XDECREF(copy);
    Py_DECREF(w);
    return result;
}

static PyObject *
watcher_stop_method(PyObject *self, PyObject *Py_UNUSED(none))
{
    watcher_stop((Watcher *)self);
    watcher_let_die((Watcher *)self);
    Py_RETURN_NONE;
}

/* ---- calls in another state ---- */

static PyObject *
watcher_paused(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t nargs,
               PyObject *kwnames)
{
    Thread *t = &thread_here;
    Py_ssize_t npos = nargs;
    if (npos < 1) {
        PyErr_SetString(PyExc_TypeError, "paused(func, *args) needs a function");
        return NULL;
    }
    int state = t->state;
    t->state = STATE_OFF;
    PyObject *result = PyObject_Vectorcall(args[0], args + 1, (size_t)(npos - 1), kwnames);
    if (state != STATE_OFF) {
        watcher_restore(t, state);
    }
    return result;
}

/* Remember the traceback that the leaf itself gave its exception, so that hook.c can hide the
 * handler's frames. */
static void
remember_leaf_error(Thread *t)
{
    PyObject *exc = error_take();
    if (exc == NULL) {
        return;
    }
    Py_XSETREF(t->leaf_error, Py_NewRef(exc));
    Py_XSETREF(t->leaf_traceback, PyException_GetTraceback(exc));
    error_put(exc);
}

/* Call the program's code in a state, from a handler or from a leaf. */
static PyObject *
call_in(Watcher *w, int inside, PyObject *func, PyObject *args, PyObject *kwargs)
{
    Thread *t = &thread_here;
    t->leaf_ran = 1;
    if (t->watcher != w || w->stopped) {
        return PyObject_Call(func, args, kwargs);
    }
    PyThreadState *ts = PyThreadState_Get();
    int state = t->state, hidden = t->hidden;
    /* The leaf is the program's: tracers see it even when a handler calls it. */
    for (int i = 0; i < hidden; i++) {
        PyThreadState_LeaveTracing(ts);
    }
    t->hidden = 0;
    t->state = inside;
    PyObject *result = PyObject_Call(func, args, kwargs);
    watcher_restore(t, state);
    t->hidden = hidden;
    for (int i = 0; i < hidden; i++) {
        PyThreadState_EnterTracing(ts);
    }
    if (result == NULL && hidden) {
        remember_leaf_error(t);
    }
    return result;
}

PyObject *
watcher_leaf(Watcher *w, PyObject *func, PyObject *args, PyObject *kwargs)
{
    return call_in(w, STATE_SENTINEL, func, args, kwargs);
}

static PyObject *
call_with(PyObject *self, int inside, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3 || !PyTuple_Check(args[1]) || !(args[2] == Py_None || PyDict_Check(args[2]))) {
        PyErr_SetString(PyExc_TypeError, "a function, a tuple, and a dict or None are wanted");
        return NULL;
    }
    return call_in((Watcher *)self, inside, args[0], args[1], args[2] == Py_None ? NULL : args[2]);
}

static PyObject *
watcher_call_leaf(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    return call_with(self, STATE_SENTINEL, args, nargs);
}

static PyObject *
watcher_call_watched(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    return call_with(self, STATE_WATCHING, args, nargs);
}

static PyObject *
watcher_interrupt(PyObject *self, PyObject *exc)
{
    if (!PyExceptionInstance_Check(exc)) {
        PyErr_SetString(PyExc_TypeError, "interrupt(error) takes an exception");
        return NULL;
    }
    error_put(Py_NewRef(exc));
    watcher_give_up((Watcher *)self);
    Py_RETURN_NONE;
}

/* ---- the sets ---- */

static PyObject *
add_to(PtrSet *set, PyObject *object)
{
    if (ptrset_add(set, object) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
watcher_know(PyObject *self, PyObject *object)
{
    return add_to(&((Watcher *)self)->known, object);
}

static PyObject *
watcher_forget(PyObject *self, PyObject *object)
{
    ptrset_remove(&((Watcher *)self)->known, object);
    Py_RETURN_NONE;
}

static PyObject *
watcher_knows(PyObject *self, PyObject *object)
{
    return PyBool_FromLong(ptrset_has(&((Watcher *)self)->known, object));
}

static PyObject *
watcher_fresh(PyObject *self, PyObject *object)
{
    return PyBool_FromLong(ptrset_has(&((Watcher *)self)->fresh, object));
}

static PyObject *
watcher_leave_unguarded(PyObject *self, PyObject *object)
{
    return add_to(&((Watcher *)self)->unguarded, object);
}

/* What was noted once is told again: the caller wants to know who reads what from here on. */
static PyObject *
watcher_look_anew(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    watcher_let_die((Watcher *)self);
    Py_RETURN_NONE;
}

static PyObject *
watcher_approve(PyObject *self, PyObject *object)
{
    return add_to(&((Watcher *)self)->approved, object);
}

static PyObject *
watcher_take_whole(PyObject *self, PyObject *object)
{
    return add_to(&((Watcher *)self)->whole, object);
}

static PyObject *
watcher_intercept(PyObject *self, PyObject *code)
{
    if (!PyCode_Check(code)) {
        PyErr_SetString(PyExc_TypeError, "intercept(code) takes a code object");
        return NULL;
    }
    return add_to(&((Watcher *)self)->intercepted, code);
}

/* ---- the type ---- */

static int
take_handlers(Watcher *w, PyObject *handlers)
{
    PyObject *key, *value;
    Py_ssize_t pos = 0;
    while (PyDict_Next(handlers, &pos, &key, &value)) {
        long kind = PyLong_AsLong(key);
        if (kind == -1 && PyErr_Occurred()) {
            return -1;
        }
        if (kind < 0 || kind >= KIND_COUNT) {
            PyErr_Format(PyExc_ValueError, "no such kind of probe: %ld", kind);
            return -1;
        }
        Py_XSETREF(w->handlers[kind], Py_NewRef(value));
    }
    return 0;
}

static PyObject *
watcher_new(PyTypeObject *type, PyObject *args, PyObject *kwds)
{
    static char *names[] = {"handlers",  "enter",   "classify",    "leaf",      "blind",
                            "foreign",   "failed",  "transparent", "on_resume", "on_lost",
                            "on_return", "on_mark", NULL};
    PyObject *handlers,
        *f[11] = {[6] = Py_None, [7] = Py_None, [8] = Py_None, [9] = Py_None, [10] = Py_None};
    if (!PyArg_ParseTupleAndKeywords(args, kwds, "O!|$OOOOOOOOOOO:Watcher", names, &PyDict_Type,
                                     &handlers, &f[0], &f[1], &f[2], &f[3], &f[4], &f[5], &f[6],
                                     &f[7], &f[8], &f[9], &f[10])) {
        return NULL;
    }
    for (int i = 0; i < 6; i++) {
        if (f[i] == NULL) {
            return PyErr_Format(PyExc_TypeError, "Watcher: '%s' is missing", names[i + 1]);
        }
    }
    Watcher *w = (Watcher *)type->tp_alloc(type, 0);
    if (w == NULL) {
        return NULL;
    }
    w->enter = Py_NewRef(f[0]);
    w->classify = Py_NewRef(f[1]);
    w->leaf = Py_NewRef(f[2]);
    w->blind = Py_NewRef(f[3]);
    w->foreign = Py_NewRef(f[4]);
    w->failed = Py_NewRef(f[5]);
    w->transparent = Py_NewRef(f[6]);
    w->on_resume = Py_NewRef(f[7]);
    w->on_lost = Py_NewRef(f[8]);
    w->on_return = Py_NewRef(f[9]);
    w->on_mark = Py_NewRef(f[10]);
    w->last_probe = Py_NewRef(Py_None);
    w->approved.owning = w->intercepted.owning = 1;
    if (take_handlers(w, handlers) < 0) {
        Py_DECREF(w);
        return NULL;
    }
    return (PyObject *)w;
}

static int
watcher_traverse(PyObject *self, visitproc visit, void *arg)
{
    Watcher *w = (Watcher *)self;
    for (int i = 0; i < KIND_COUNT; i++) {
        Py_VISIT(w->handlers[i]);
    }
    Py_VISIT(w->enter);
    Py_VISIT(w->classify);
    Py_VISIT(w->leaf);
    Py_VISIT(w->blind);
    Py_VISIT(w->foreign);
    Py_VISIT(w->failed);
    Py_VISIT(w->transparent);
    Py_VISIT(w->on_resume);
    Py_VISIT(w->on_lost);
    Py_VISIT(w->on_return);
    Py_VISIT(w->on_mark);
    Py_VISIT(w->on_symbol);
    Py_VISIT(w->successor);
    Py_VISIT(w->last_probe);
    Py_VISIT(w->error);
    Py_VISIT(w->ledger);
    int stop = ptrset_traverse(&w->approved, visit, arg);
    stop = stop ? stop : ptrset_traverse(&w->intercepted, visit, arg);
    stop = stop ? stop : pairset_traverse(&w->registered, visit, arg);
    return stop ? stop : pairset_traverse(&w->seen, visit, arg);
}

static int
watcher_clear(PyObject *self)
{
    Watcher *w = (Watcher *)self;
    for (int i = 0; i < KIND_COUNT; i++) {
        Py_CLEAR(w->handlers[i]);
    }
    Py_CLEAR(w->enter);
    Py_CLEAR(w->classify);
    Py_CLEAR(w->leaf);
    Py_CLEAR(w->blind);
    Py_CLEAR(w->foreign);
    Py_CLEAR(w->failed);
    Py_CLEAR(w->transparent);
    Py_CLEAR(w->on_resume);
    Py_CLEAR(w->on_lost);
    Py_CLEAR(w->on_return);
    Py_CLEAR(w->on_mark);
    Py_CLEAR(w->on_symbol);
    Py_CLEAR(w->successor);
    Py_CLEAR(w->last_probe);
    Py_CLEAR(w->error);
    Py_CLEAR(w->ledger);
    ptrset_clear(&w->known);
    ptrset_clear(&w->fresh);
    ptrset_clear(&w->entered);
    ptrset_clear(&w->whole);
    ptrset_clear(&w->unguarded);
    ptrset_clear(&w->approved);
    ptrset_clear(&w->intercepted);
    pairset_clear(&w->seen);
    pairset_clear(&w->registered);
    return 0;
}

static void
watcher_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    watcher_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef watcher_methods[] = {
    {"run", FAST(watcher_run),
     "Call a function's instrumented copy, watched. Lists are emptied when it has begun."},
    {"interrupt", watcher_interrupt, METH_O,
     "The recording is over; the program gets this when our code has ended."},
    {"stop", watcher_stop_method, METH_NOARGS,
     "The recording is over; the program runs on unwatched."},
    {"know", watcher_know, METH_O, "Note an outside object; the caller keeps it alive."},
    {"forget", watcher_forget, METH_O, "The opposite of know."},
    {"knows", watcher_knows, METH_O, "Is this a known outside object?"},
    {"fresh", watcher_fresh, METH_O, "Was this function made during the recording?"},
    {"leave_unguarded", watcher_leave_unguarded, METH_O,
     "Tell of this number when something depends on it; the caller keeps it alive."},
    {"look_anew", watcher_look_anew, METH_NOARGS,
     "Tell the handlers of what they were told of before, too."},
    {"approve", watcher_approve, METH_O, "Calls of this object matter only with a known argument."},
    {"take_whole", watcher_take_whole, METH_O,
     "Frames of this function are leaves; the caller keeps it alive."},
    {"intercept", watcher_intercept, METH_O,
     "Report every call of a Python function with this code."},
    {"call_leaf", FAST(watcher_call_leaf), "Call in state SENTINEL."},
    {"call_watched", FAST(watcher_call_watched), "Call in state WATCHING."},
    {"paused", (PyCFunction)(void (*)(void))watcher_paused, METH_FASTCALL | METH_KEYWORDS,
     "Call in state OFF."},
    {"pend", FAST(pending_pend), "Watch nothing until a frame's next probe."},
    {"hand_over", pending_hand_over, METH_O, "Let another watcher record the rest of this run."},
    {"frames", frames_read, METH_NOARGS, "The frames of the run, and the exception being handled."},
    {"put", FAST(frames_put), "Set a slot of a frame that holds a value."},
    {"stack", FAST(frames_stack), "The lowest slots of a frame's value stack."},
    {NULL},
};

/* ---- where the program is ---- */

PyObject *
watcher_place(PyObject *probe, PyObject *last)
{
    Level *level = thread_here.level;
    if (level == NULL || (PyObject *)level->probe != probe || level->user == NULL ||
        level->user == level || level->user->probe == NULL) {
        return Py_NewRef(probe);
    }
    PyObject *by = (PyObject *)level->user->probe;
    if (last != NULL && PyTuple_CheckExact(last) && PyTuple_GET_ITEM(last, 0) == probe &&
        PyTuple_GET_ITEM(last, 1) == by) {
        return Py_NewRef(last);
    }
    PyObject *place = PyTuple_Pack(2, probe, by);
    if (place == NULL) {
        PyErr_Clear(); /* the probe alone says enough */
        return Py_NewRef(probe);
    }
    return place;
}

static PyObject *
watcher_here(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *last = ((Watcher *)self)->last_probe;
    return last == NULL ? Py_NewRef(Py_None) : watcher_place(last, NULL);
}

static PyGetSetDef watcher_getset[] = {
    {"here", watcher_here, NULL,
     "The last probe fired, or None; or a pair: with the one in the user's code that led there.",
     NULL},
    {NULL},
};

static PyMemberDef watcher_members[] = {
    {"on_symbol", T_OBJECT, offsetof(Watcher, on_symbol), 0,
     "Called with each operation on symbolic numbers, or None."},
    {"last_probe", T_OBJECT, offsetof(Watcher, last_probe), READONLY,
     "The last probe fired, or None."},
    {"error", T_OBJECT, offsetof(Watcher, error), READONLY,
     "What ended the recording so that nobody was told; or None."},
    {"events", T_ULONGLONG, offsetof(Watcher, events), READONLY, "Probes fired."},
    {"calls", T_ULONGLONG, offsetof(Watcher, calls), READONLY, "Probes that called a handler."},
    {"interior", T_BOOL, offsetof(Watcher, interior), 0,
     "Watch the frames of the program inside of a leaf."},
    {"unfiltered", T_BOOL, offsetof(Watcher, unfiltered), 0, "Call the handlers at every probe."},
    {"interrupted", T_BOOL, offsetof(Watcher, interrupted), READONLY, NULL},
    {"misled", T_BOOL, offsetof(Watcher, misled), READONLY,
     "Our own code could not run: what was recorded does not count."},
    {"displaced", T_BOOL, offsetof(Watcher, displaced), READONLY,
     "Another frame evaluator was in our place: what was recorded does not count."},
    {"returns", T_BOOL, offsetof(Watcher, returns), 0, "Tell on_return of every return."},
    {NULL},
};

PyTypeObject WatcherType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator._native.Watcher",
    .tp_basicsize = sizeof(Watcher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_doc = "One recording of one thread.",
    .tp_new = watcher_new,
    .tp_traverse = watcher_traverse,
    .tp_clear = watcher_clear,
    .tp_dealloc = watcher_dealloc,
    .tp_methods = watcher_methods,
    .tp_members = watcher_members,
    .tp_getset = watcher_getset,
};

/* The frame hook (PEP 523): what happens when a Python frame starts, by the thread's state.
 *
 * OFF       the frame runs as it would without us.
 * WATCHING  the frame's code is classified and, as a rule, its instrumented copy runs in its place:
 * the copy takes all argument slots as plain positional arguments, so a function made from it is
 * called with the frame's localsplus. That call's frame comes back here and is recognised. CPython
 * builds cells and generators. SENTINEL  inside a leaf: code that is not trusted there is reported,
 * nothing else. PENDING   as OFF; the next probe in the frame that waits ends it (pending.c).
 *
 * The hook is installed while at least one recording is on in any thread, since CPython inlines no
 * Python calls under a hook. Frames that are not ours to handle go to whoever is below in the chain
 * of evaluators (chain.c).
 */
#define _GNU_SOURCE
#include "native.h"
#include <pthread.h>

static inline PyObject *
pass_on(PyThreadState *ts, Frame *f, int throwflag)
{
    return chain_pass_on(&thread_here, ts, f, throwflag);
}

/* ---- the C stack ---- */

/* Under a hook a Python call takes C stack, which CPython's recursion limit does not bound. */
static char *
find_stack_low(void)
{
    pthread_attr_t attr;
    void *base = NULL;
    size_t size = 0, guard = 0;
    if (pthread_getattr_np(pthread_self(), &attr) != 0) {
        return (char *)1;
    }
    int found = pthread_attr_getstack(&attr, &base, &size) == 0;
    (void)pthread_attr_getguardsize(&attr, &guard);
    pthread_attr_destroy(&attr);
    if (!found || base == NULL) {
        return (char *)1;
    }
    size_t reserve = size / 4 < (1 << 20) ? size / 4 : (1 << 20);
    return (char *)base + guard + reserve;
}

static inline int
stack_low(Thread *t, PyThreadState *ts)
{
    if (t->stack_low == NULL) {
        t->stack_low = find_stack_low();
    }
    return (char *)__builtin_frame_address(0) < t->stack_low || c_recursion_low(ts);
}

/* ---- running a frame in another state ---- */

static PyObject *
run_in(int state, Thread *t, Watcher *w, PyThreadState *ts, Frame *f, int throwflag)
{
    int saved = t->state;
    if (state == STATE_SENTINEL) {
        code_delay_inlining(frame_code(f));
    }
    t->state = w->stopped ? STATE_OFF : state;
    PyObject *result = pass_on(ts, f, throwflag);
    watcher_restore(t, saved);
    return result;
}

static void
tell_blind(Watcher *w, PyCodeObject *code, PyObject *reason)
{
    PyObject *args[2] = {(PyObject *)code, reason};
    Py_XDECREF(watcher_call(w, w->blind, args, 2));
}

static void
tell_blind_because(Watcher *w, PyCodeObject *code, const char *why)
{
    SavedError error = error_save(); /* with throwflag the exception to be thrown in is set */
    PyObject *reason = PyUnicode_FromString(why);
    if (reason == NULL) {
        PyErr_Clear();
    }
    tell_blind(w, code, reason == NULL ? Py_None : reason);
    Py_XDECREF(reason);
    error_restore(error);
}

/* ---- running the copy ---- */

/* The function whose call runs the copy. Its __doc__ holds the original function: a generator keeps
 * its function alive, and here it is the original that has to live. */
PyObject *
hook_function(PyFunctionObject *original, PyObject *copy, PyObject *globals, PyObject *builtins)
{
    PyFunctionObject *func = (PyFunctionObject *)PyFunction_New(copy, globals);
    if (func == NULL) {
        return NULL;
    }
    Py_XSETREF(func->func_name, Py_NewRef(original->func_name));
    Py_XSETREF(func->func_qualname, Py_NewRef(original->func_qualname));
    Py_XSETREF(func->func_builtins, Py_NewRef(builtins));
    Py_XSETREF(func->func_closure, Py_XNewRef(original->func_closure));
    Py_XSETREF(func->func_doc, Py_NewRef((PyObject *)original));
    return (PyObject *)func;
}

/* Tells the recorder of a function the first time it is entered. -1 if the recording is over. */
int
hook_enter(Watcher *w, PyFunctionObject *func)
{
    int added = ptrset_add(&w->entered, func);
    if (added < 0) {
        PyErr_Clear(); /* told once more: harmless */
    }
    if (added != 0) {
        PyObject *args[1] = {(PyObject *)func};
        Py_XDECREF(watcher_call(w, w->enter, args, 1));
    }
    return w->stopped ? -1 : 0;
}

static PyObject *
run_copy(Thread *t, PyThreadState *ts, Frame *f, PyObject *copy)
{
    PyObject *func = hook_function(frame_func(f), copy, f->f_globals, f->f_builtins);
    PyObject *result = NULL;
    if (func != NULL) {
        t->pending = f;
        result = PyObject_Vectorcall(func, f->localsplus,
                                     (size_t)((PyCodeObject *)copy)->co_argcount, NULL);
        t->pending = NULL;
        Py_DECREF(func);
    }
    frame_discard(ts, f);
    return result;
}

/* The copy's frame holds the arguments now. The original frame lets go of them, or `del argument`
 * would free nothing. */
static void
take_over(Thread *t, PyCodeObject *copy)
{
    Frame *original = t->pending;
    t->pending = NULL;
    for (int i = 0; i < copy->co_argcount; i++) {
        Py_CLEAR(original->localsplus[i]);
    }
}

/* The same for the function of the run: whoever called it lets go of what it was given. */
void
hook_let_go(RunArguments *given)
{
    for (Py_ssize_t i = 0; i < given->count; i++) {
        Py_CLEAR(given->values[i]);
    }
    for (int i = 0; i < 2; i++) {
        PyObject *list = given->lists[i];
        if (list != NULL && PyList_SetSlice(list, 0, PyList_GET_SIZE(list), NULL) < 0) {
            PyErr_Clear(); /* it lives longer, nothing else */
        }
    }
}

static PyObject *run_leaf(Thread *t, Watcher *w, PyThreadState *ts, Frame *f, PyObject *payload);

static PyObject *
watch_copy(Thread *t, Watcher *w, PyThreadState *ts, Frame *f)
{
    PyCodeObject *code = frame_code(f);
    CodeInfo *info = codeinfo_find(code);
    if (info != NULL && info->finalizer) {
        tell_blind_because(w, code, "finalizer");
        return run_in(STATE_OFF, t, w, ts, f, 0);
    }
    PyObject *reason = NULL, *copy = codeinfo_copy(w, code, &reason);
    if (copy == NULL) {
        tell_blind(w, code, reason == NULL ? Py_None : reason);
        Py_XDECREF(reason);
        return run_in(STATE_OFF, t, w, ts, f, 0);
    }
    /* exec of a function's code: the mapping it was given would be lost */
    if (f->f_locals != NULL) {
        tell_blind_because(w, code, "locals");
        Py_DECREF(copy);
        return run_in(STATE_OFF, t, w, ts, f, 0);
    }
    PyObject *result;
    if (w->stopped || hook_enter(w, frame_func(f)) < 0) {
        result = pass_on(ts, f, 0);
    }
    else if (ptrset_has(&w->whole, frame_func(f))) {
        result = run_leaf(t, w, ts, f, Py_None);
    }
    else {
        result = run_copy(t, ts, f, copy);
    }
    Py_DECREF(copy);
    return result;
}

/* ---- leaves ---- */

static PyObject *
frame_slots(Frame *f)
{
    PyCodeObject *code = frame_code(f);
    int n = code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) +
            ((code->co_flags & CO_VARKEYWORDS) != 0);
    PyObject *slots = PyTuple_New(n);
    for (int i = 0; slots != NULL && i < n; i++) {
        PyTuple_SET_ITEM(slots, i, Py_NewRef(f->localsplus[i]));
    }
    return slots;
}

/* An exception that call_leaf let through goes on with the traceback it had there: the handler is
 * not in it. */
static void
trim_leaf_error(Thread *t)
{
    PyObject *ours = t->leaf_error, *traceback = t->leaf_traceback;
    t->leaf_error = t->leaf_traceback = NULL;
    PyObject *exc = ours == NULL ? NULL : error_take();
    if (exc != NULL) {
        if (exc == ours) {
            PyException_SetTraceback(exc, traceback == NULL ? Py_None : traceback);
        }
        error_put(exc);
    }
    Py_XDECREF(ours);
    Py_XDECREF(traceback);
}

static PyObject *
run_leaf(Thread *t, Watcher *w, PyThreadState *ts, Frame *f, PyObject *payload)
{
    PyObject *slots = frame_slots(f), *result = NULL;
    /* to be raised when the frame has run: it may be the end of a `with` block */
    PyObject *interrupt = NULL;
    int ran = 0;
    if (slots != NULL) {
        Shield s;
        shield_up(&s, t, w);
        t->leaf_ran = 0;
        PyObject *args[3] = {payload, (PyObject *)frame_func(f), slots};
        result = PyObject_Vectorcall(w->leaf, args, 3, NULL);
        ran = t->leaf_ran;
        if (result == NULL && !ran) { /* a fault of ours, and nothing has happened yet */
            watcher_failed(w);
            interrupt = t->interrupt;
            t->interrupt = NULL;
        }
        else if (result == NULL) {
            trim_leaf_error(t);
            /* none was set when the frame started; the leaf's is the program's now */
            error_drop(s.error);
            s.error = error_save();
        }
        shield_down(&s);
        Py_DECREF(slots);
    }
    else {
        watcher_lost(w);
    }
    if (result == NULL && !ran) {
        result = run_in(STATE_OFF, t, w, ts, f, 0);
        t->interrupt = interrupt;
        thread_interrupt(t);
        return result;
    }
    frame_discard(ts, f);
    return result;
}

/* 1: the recorder has noted what the frame is going to read. Calls of one outside object are noted
 * once. */
static int
transparent_noted(Watcher *w, Frame *f)
{
    PyCodeObject *code = frame_code(f);
    int is_call = code->co_argcount == 1; /* self, *args, **kwargs; else __getattr__(self, name) */
    PyObject *owner = f->localsplus[0];
    if (is_call && owner != NULL &&
        (filter_call_noted(w, owner, 0) || watcher_call_module(w, owner))) {
        return 1;
    }
    if (code->co_argcount == 2 && owner != NULL &&
        watcher_read_registered(w, owner, f->localsplus[1])) {
        return 1;
    }
    PyObject *slots = frame_slots(f);
    if (slots == NULL) {
        watcher_lost(w);
        return 0;
    }
    PyObject *args[2] = {(PyObject *)frame_func(f), slots};
    PyObject *answer = watcher_call(w, w->transparent, args, 2);
    int noted = answer == Py_True;
    Py_XDECREF(answer);
    if (noted && is_call) {
        filter_call_noted(w, PyTuple_GET_ITEM(slots, 0), 1);
    }
    Py_DECREF(slots);
    return noted;
}

/* A frame that runs as it is while its callees are watched: the recorder has noted what it is going
 * to read. */
static PyObject *
run_transparent(Thread *t, Watcher *w, PyThreadState *ts, Frame *f)
{
    int noted = transparent_noted(w, f);
    if (!noted && !w->stopped) {
        return watch_copy(t, w, ts, f);
    }
    /* else it has broken here */
    if (t->state == STATE_WATCHING && !w->stopped && hook_enter(w, frame_func(f)) == 0) {
        code_delay_inlining(frame_code(f));
    }
    return pass_on(ts, f, 0);
}

/* ---- the copy's own frame ---- */

static PyObject *
run_level(Thread *t, PyThreadState *ts, Frame *f, int trusted, int throwflag)
{
    Level level = {t->level, f, 1, NULL, NULL, -1, NULL};
    level.user = !trusted ? &level : t->level == NULL ? NULL : t->level->user;
    t->level = &level;
    PyObject *result = _PyEval_EvalFrameDefault(ts, f, throwflag);
    t->level = level.below;
    /* its death may run code of the program, which has an exception to be kept from it */
    if (level.held != NULL) {
        SavedError error = error_save();
        Py_CLEAR(level.held);
        error_restore(error);
    }
    if (t->waiting == &level) {
        pending_left(t, result == NULL);
    }
    return result;
}

/* ---- the hook ---- */

static PyObject *
watch_start(Thread *t, Watcher *w, PyThreadState *ts, Frame *f)
{
    Verdict v = codeinfo_classify(w, frame_code(f));
    PyObject *result = NULL;
    switch (w->stopped ? CODE_OURS : v.kind) {
    case CODE_COPY:
        result = watch_copy(t, w, ts, f);
        break;
    case CODE_SKIP: /* which function it is matters still, only its inside does not */
        result = hook_enter(w, frame_func(f)) < 0 ? pass_on(ts, f, 0)
                                                  : run_in(STATE_SENTINEL, t, w, ts, f, 0);
        break;
    case CODE_OURS:
        result = run_in(STATE_OFF, t, w, ts, f, 0);
        break;
    case CODE_CONSTANT:
        if (hook_enter(w, frame_func(f)) < 0) {
            result = pass_on(ts, f, 0);
            break;
        }
        result = Py_NewRef(v.payload);
        frame_discard(ts, f);
        break;
    case CODE_TRANSPARENT:
        result = run_transparent(t, w, ts, f);
        break;
    case CODE_LEAF:
        result = run_leaf(t, w, ts, f, v.payload);
        break;
    default:
        tell_blind(w, frame_code(f), v.payload == NULL ? Py_None : v.payload);
        result = run_in(STATE_OFF, t, w, ts, f, 0);
    }
    Py_XDECREF(v.payload);
    return result;
}

static PyObject *
watch(Thread *t, PyThreadState *ts, Frame *f, int throwflag)
{
    Watcher *w = t->watcher;
    if (throwflag || !frame_is_start(f)) {
        tell_blind_because(w, frame_code(f), "resumed");
        return run_in(STATE_OFF, t, w, ts, f, throwflag);
    }
    return watch_start(t, w, ts, f);
}

static PyObject *
sentinel(Thread *t, PyThreadState *ts, Frame *f, int throwflag)
{
    Watcher *w = t->watcher;
    PyCodeObject *code = frame_code(f);
    SavedError error = error_save(); /* with throwflag the exception to be thrown in is set */
    CodeInfo *info = codeinfo_find(code);
    PyObject *original = NULL;
    int copy = info != NULL && info->kind == CODE_INSTRUMENTED;
    if (copy) { /* a generator of the program's, resumed inside the leaf */
        original = weakref_get(info->original);
    }
    if (original == NULL || !PyCode_Check(original)) {
        PyErr_Clear();
        Py_XSETREF(original, Py_NewRef((PyObject *)code));
    }
    Verdict v = {CODE_BLIND, 0, NULL};
    if (original != (PyObject *)code || !copy) {
        v = codeinfo_classify(w, (PyCodeObject *)original);
    }
    if (!v.trusted && !w->stopped && w->interior && !copy && !throwflag && frame_is_start(f)) {
        Py_XDECREF(v.payload);
        Py_DECREF(original);
        error_restore(error);
        int saved = t->state;
        t->state = STATE_WATCHING;
        PyObject *result = watch_start(t, w, ts, f);
        watcher_restore(t, saved);
        return result;
    }
    if (!v.trusted && !w->stopped) {
        Py_XDECREF(watcher_call(w, w->foreign, &original, 1));
    }
    Py_XDECREF(v.payload);
    Py_DECREF(original);
    error_restore(error);
    if (v.kind == CODE_OURS) { /* what our own code calls is nobody's business */
        return run_in(STATE_OFF, t, w, ts, f, throwflag);
    }
    if (!copy) {
        code_delay_inlining(code);
    }
    return copy ? _PyEval_EvalFrameDefault(ts, f, throwflag) : pass_on(ts, f, throwflag);
}

/* This thread watches nothing just now, yet its Python calls take C stack. Where that runs out the
 * hook goes: its own recording is over, and those of other threads find at their end that the hook
 * was displaced. Our own code, which a handler runs, does not go deep: what called it will
 * notice. */
static PyObject *
off(Thread *t, PyThreadState *ts, Frame *f, int throwflag)
{
    if (!hook_wanted() || (t->hidden == 0 && stack_low(t, ts))) {
        if (t->watcher != NULL && !t->watcher->stopped) {
            t->watcher->misled = 1;
            watcher_stop(t->watcher);
        }
        hook_remove();
    }
    else if (t->callees != NULL && !throwflag && frame_is_start(f)) {
        return callees_start(t, ts, f);
    }
    return pass_on(ts, f, throwflag);
}

PyObject *
hook_evaluate(PyThreadState *ts, Frame *f, int throwflag)
{
    Thread *t = &thread_here;
    if (chain_take_ping(f)) {
        frame_discard(ts, f);
        return Py_NewRef(Py_None);
    }
    if (t->passing == f) { /* handed down to somebody who handed it down to us */
        return _PyEval_EvalFrameDefault(ts, f, throwflag);
    }
    if (t->state == STATE_OFF || t->state == STATE_PENDING) {
        return off(t, ts, f, throwflag);
    }
    if (ts->tracing) { /* a tracer or profiler at work: not the program */
        return run_in(STATE_OFF, t, t->watcher, ts, f, throwflag);
    }
    if (t->pending == NULL && !watcher_can_go_on(t->watcher)) {
        return off(t, ts, f, throwflag);
    }
    if (t->state == STATE_SENTINEL) {
        return sentinel(t, ts, f, throwflag);
    }
    CodeInfo *info = codeinfo_find(frame_code(f));
    int copy = info != NULL && info->kind == CODE_INSTRUMENTED,
        trusted = info != NULL && info->trusted;
    if (copy && t->pending != NULL) {
        take_over(t, frame_code(f));
    }
    else if (stack_low(t, ts)) {
        tell_blind_because(t->watcher, frame_code(f), "recursion");
        watcher_stop(t->watcher); /* without the hook a recursion takes no C stack */
    }
    else if (!copy) {
        return watch(t, ts, f, throwflag);
    }
    if (copy && t->given != NULL) {
        RunArguments *given = t->given;
        t->given = NULL;
        hook_let_go(given);
    }
    t->saw_copy |= copy;
    return copy ? run_level(t, ts, f, trusted, throwflag) : pass_on(ts, f, throwflag);
}

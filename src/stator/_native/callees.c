/* A step that calls a function which is left to Python, but not what it calls
 * (`disable(recursive=False)`): while the step is made, each Python function that starts in this
 * thread is asked about. It runs as it is; or so does all that it calls, too; or something else is
 * called in its place, with its argument slots.
 */
#include "native.h"

PyObject *
callees_call(PyObject *choose, PyObject *step, PyObject *const *args, size_t nargs)
{
    Thread *t = &thread_here;
    if (t->watcher != NULL) { /* recordings do not nest */
        return PyObject_Vectorcall(step, args, nargs, NULL);
    }
    PyObject *outer = t->callees, *outer_step = t->calls_them;
    t->callees = Py_NewRef(choose);
    t->calls_them = step;
    hook_acquire(t);
    PyObject *result = PyObject_Vectorcall(step, args, nargs, NULL);
    hook_release();
    t->callees = outer;
    t->calls_them = outer_step;
    Py_DECREF(choose);
    return result;
}

/* The argument slots; the frame lets go of them, or `del argument` would free nothing. */
static PyObject *
take_arguments(Frame *f)
{
    PyCodeObject *code = frame_code(f);
    int n = code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) +
            ((code->co_flags & CO_VARKEYWORDS) != 0);
    PyObject *slots = PyList_New(n);
    for (int i = 0; slots != NULL && i < n; i++) {
        PyList_SET_ITEM(slots, i, f->localsplus[i]);
        f->localsplus[i] = NULL;
    }
    return slots;
}

static PyObject *
call_instead(PyThreadState *ts, Frame *f, PyObject *callable)
{
    PyObject *slots = take_arguments(f), *function = (PyObject *)frame_func(f), *result = NULL;
    if (slots != NULL) {
        result = PyObject_CallFunctionObjArgs(callable, function, slots, NULL);
    }
    Py_XDECREF(slots);
    frame_discard(ts, f);
    return result;
}

static int
is_plain_function(PyCodeObject *code)
{
    int flags = code->co_flags;
    return (flags & CO_OPTIMIZED) && (flags & CO_NEWLOCALS) &&
           !(flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR));
}

PyObject *
callees_start(Thread *t, PyThreadState *ts, Frame *f)
{
    PyObject *choose = t->callees, *function = (PyObject *)frame_func(f), *result;
    if (function == t->calls_them || !is_plain_function(frame_code(f)) || f->f_locals != NULL) {
        return chain_pass_on(t, ts, f, 0);
    }
    t->callees = NULL;
    PyObject *answer = PyObject_CallOneArg(choose, function);
    if (answer == NULL) { /* raised by a signal handler */
        frame_discard(ts, f);
        result = NULL;
    }
    else if (answer == Py_None) {
        t->callees = choose;
        result = chain_pass_on(t, ts, f, 0);
    }
    else if (answer == Py_False) {
        result = chain_pass_on(t, ts, f, 0);
    }
    else {
        result = call_instead(ts, f, answer);
    }
    t->callees = choose;
    Py_XDECREF(answer);
    return result;
}

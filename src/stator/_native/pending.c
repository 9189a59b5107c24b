/* Between a break and the next probe of the same frame.
 *
 * A handler that ends its recording at an instruction calls pend(): from there on everything runs
 * as it would without us (state PENDING), until a probe fires in the frame that was the innermost
 * watched one then (or, with a number of calls, in one that has called it). This calls on_resume,
 * which may hand the run over to another watcher, and watching goes on with that very probe. If the
 * frame is left before that, on_lost is called, which may call pend() once more, for the caller's
 * frame; else watching is over.
 */
#include "native.h"

/* May watching go on? Not where the program has switched on another compiler: that would be given
 * our copies. Our own code runs with it off. */
static PyObject *
resume_or_lose(Watcher *w, Probe *p)
{
    PyObject *callback = chain_switch_off();
    if (callback == NULL) {
        error_settle();
        return NULL;
    }
    PyObject *args[1] = {callback == Py_None ? (PyObject *)p : Py_False};
    PyObject *handler = callback == Py_None ? w->on_resume : w->on_lost;
    PyObject *answer =
        chain_switch_on(callback, handler == Py_None ? NULL : watcher_call(w, handler, args, 1));
    error_settle();
    return answer;
}

/* The probe lies in the frame that waits. True: watching goes on with it. */
int
pending_over(Thread *t, Probe *p)
{
    Watcher *w = t->watcher;
    Level *waiting = t->waiting;
    t->waiting = NULL; /* the shield goes back to WATCHING */
    hook_go_on(t);
    PyObject *answer = resume_or_lose(w, p);
    int more = answer == Py_True;
    if (answer == NULL) {
        watcher_stop(t->watcher);
    }
    Py_XDECREF(answer);
    if (more && t->state == STATE_WATCHING) {
        t->waiting = waiting;
        t->state = STATE_PENDING;
    }
    return t->state == STATE_WATCHING;
}

void
pending_left(Thread *t, int raised)
{
    t->waiting = NULL;
    Watcher *w = t->watcher;
    if (w == NULL || w->stopped) {
        return;
    }
    if (w->on_lost != Py_None) {
        PyObject *args[1] = {raised ? Py_True : Py_False};
        Py_XDECREF(watcher_call(w, w->on_lost, args, 1));
    }
    if (t->waiting == NULL) {
        watcher_stop(t->watcher);
    }
}

static int
check_running(Watcher *w, Thread *t)
{
    if (t->watcher != w || w->stopped) {
        PyErr_SetString(PyExc_RuntimeError, "this watcher is not running in this thread");
        return -1;
    }
    return 0;
}

PyObject *
pending_pend(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Watcher *w = (Watcher *)self;
    Thread *t = &thread_here;
    Py_ssize_t calls = nargs == 1 ? PyLong_AsSsize_t(args[0]) : 0;
    if (nargs > 1 || calls < 0) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "pend(calls=0) takes a number of calls");
        }
        return NULL;
    }
    if (check_running(w, t) < 0) {
        return NULL;
    }
    Level *level = t->level == NULL ? NULL : frames_level(t, calls);
    if (level == NULL || w->on_resume == Py_None) {
        PyErr_SetString(PyExc_RuntimeError, level == NULL ? "no such watched frame is running"
                                                          : "this watcher has no on_resume");
        return NULL;
    }
    if (!hook_reached(t)) {
        w->displaced = 1;
        PyErr_SetString(PyExc_RuntimeError, "the frame hook was displaced during the recording");
        return NULL;
    }
    t->waiting = level;
    if (t->state == STATE_WATCHING) {
        t->state = STATE_PENDING;
    }
    watcher_let_die(w);
    Py_RETURN_NONE;
}

PyObject *
pending_hand_over(PyObject *self, PyObject *object)
{
    Watcher *w = (Watcher *)self;
    Thread *t = &thread_here;
    if (!PyObject_TypeCheck(object, &WatcherType)) {
        PyErr_SetString(PyExc_TypeError, "hand_over(watcher) takes a watcher");
        return NULL;
    }
    Watcher *other = (Watcher *)object;
    if (check_running(w, t) < 0) {
        return NULL;
    }
    if (other->thread != NULL || other->enter == NULL || other->successor != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the other watcher is running already, or was garbage");
        return NULL;
    }
    if (t->waiting != NULL && other->on_resume == Py_None) {
        PyErr_SetString(PyExc_RuntimeError,
                        "the run is waiting, and the other watcher has no on_resume");
        return NULL;
    }
    other->stopped = 0;
    other->thread = t;
    other->holds_hook = w->holds_hook;
    w->holds_hook = 0;
    w->stopped = 1;
    w->thread = NULL;
    /* for the rest of the run: watcher.c releases it */
    w->successor = (Watcher *)Py_NewRef(object);
    t->watcher = other;
    Py_RETURN_NONE;
}

/* Our own Python code, called in the middle of the program: the thread's state around it, and what
 * becomes of its exceptions.
 */
#include "native.h"

__thread Thread thread_here;

/* ---- what is not for us ---- */

/* Not KeyboardInterrupt and the like, nor what another thread has put in: they are sent to the
 * program and not raised by what it, or we, do. No exception is raised while this is asked. */
static int
is_fault(PyObject *exc)
{
    if (!PyErr_GivenExceptionMatches(exc, PyExc_Exception)) {
        return 0;
    }
    PyObject *module = PyImport_ImportModule("stator.interrupts");
    PyObject *answer =
        module == NULL ? NULL : PyObject_CallMethod(module, "is_put_in", "O", exc);
    Py_XDECREF(module);
    int fault = answer != Py_True;
    Py_XDECREF(answer);
    PyErr_Clear();
    return fault;
}

void
error_send_on(PyObject *exc)
{
    if (!is_fault(exc)) {
        PyThreadState_SetAsyncExc(PyThreadState_Get()->thread_id, (PyObject *)Py_TYPE(exc));
    }
}

void
error_settle(void)
{
    PyObject *exc = error_take();
    if (exc != NULL) {
        error_send_on(exc);
        Py_DECREF(exc);
    }
    PyErr_Clear();
}

/* ---- running our own Python code ---- */

void
shield_up(Shield *s, Thread *t, Watcher *w)
{
    s->thread = t;
    s->watcher = w;
    s->ts = PyThreadState_Get();
    s->state = t->state;
    s->error = error_save();
    s->outer = t->hidden++ == 0;
    s->handled = t->handled;
    s->interrupted = t->interrupted;
    if (s->outer) {
        t->handled = PyErr_GetHandledException();
        t->interrupted = s->state;
    }
    t->state = STATE_OFF;
    PyThreadState_EnterTracing(s->ts);
}

void
thread_interrupt(Thread *t)
{
    PyObject *interrupt = t->interrupt;
    t->interrupt = NULL;
    if (interrupt != NULL) {
        PyThreadState_SetAsyncExc(PyThreadState_Get()->thread_id, interrupt);
        Py_DECREF(interrupt);
    }
}

void
shield_down(Shield *s)
{
    if (--s->thread->hidden == 0) {
        Py_CLEAR(s->thread->leaf_error); /* nobody asked for it; it would keep its frames alive */
        Py_CLEAR(s->thread->leaf_traceback);
        thread_interrupt(s->thread);
    }
    if (s->outer) {
        Py_XSETREF(s->thread->handled, s->handled);
        s->thread->interrupted = s->interrupted;
    }
    PyThreadState_LeaveTracing(s->ts);
    error_restore(s->error);
    watcher_restore(s->thread, s->state);
}

/* Back to `state`, unless the recording was stopped in between, or waits for a probe, or has just
 * ended waiting. Another watcher may have taken over: it counts. */
void
watcher_restore(Thread *t, int state)
{
    if (t->watcher == NULL || t->watcher->stopped) {
        t->state = STATE_OFF;
    }
    else if (t->waiting != NULL) {
        t->state = state == STATE_WATCHING || state == STATE_PENDING ? STATE_PENDING : STATE_OFF;
    }
    else {
        t->state = state == STATE_PENDING ? STATE_WATCHING : state;
    }
}

/* The raised exception cannot be handled by our own Python code: the recording is over and not to
 * be trusted. What is no fault of ours (KeyboardInterrupt, or whatever another thread sends)
 * reaches the program where such things do: between two of its instructions. */
void
watcher_give_up(Watcher *w)
{
    PyObject *exc = error_take();
    if (exc == NULL) {
        PyErr_Clear();
        return;
    }
    Thread *t = &thread_here;
    int sent = !is_fault(exc);
    if (sent) {
        Py_XSETREF(t->interrupt, Py_NewRef((PyObject *)Py_TYPE(exc)));
        if (t->hidden == 0) {
            thread_interrupt(t);
        }
    }
    /* it may have been handed over meanwhile */
    Watcher *now = thread_here.watcher != NULL ? thread_here.watcher : w;
    now->interrupted |= (char)sent;
    if (now->error == NULL) {
        now->error = Py_NewRef(exc);
    }
    Py_DECREF(exc);
    watcher_stop(now);
}

void
watcher_failed(Watcher *w)
{
    if (w->failed == Py_None || !PyErr_ExceptionMatches(PyExc_Exception)) {
        watcher_give_up(w);
        return;
    }
    PyObject *exc = error_take();
    PyObject *result = exc == NULL ? NULL : PyObject_CallOneArg(w->failed, exc);
    Py_XDECREF(exc);
    if (result == NULL && PyErr_ExceptionMatches(PyExc_RecursionError)) {
        /* At the program's limit of recursion nothing of ours can run, and it is not to notice. */
        PyErr_Clear();
        w->misled = 1;
        watcher_stop(w);
    }
    else if (result == NULL) {
        watcher_give_up(w);
    }
    Py_XDECREF(result);
}

void
watcher_lost(Watcher *w)
{
    PyObject *exc = error_take(); /* ours, not the program's: the shield must not keep it */
    Shield s;
    shield_up(&s, &thread_here, w);
    if (exc != NULL) {
        error_put(exc);
        watcher_failed(w);
    }
    shield_down(&s);
}

int
watcher_can_go_on(Watcher *w)
{
    if (builtins_intact()) {
        return 1;
    }
    w->misled = 1;
    watcher_stop(w);
    return 0;
}

/* A handler's result, or NULL after its exception went to `failed`. */
PyObject *
watcher_call(Watcher *w, PyObject *callable, PyObject *const *args, size_t nargs)
{
    if (!watcher_can_go_on(w)) {
        return NULL;
    }
    Shield s;
    shield_up(&s, &thread_here, w);
    PyObject *result = PyObject_Vectorcall(callable, args, nargs, NULL);
    if (result == NULL) {
        watcher_failed(w);
    }
    shield_down(&s);
    return result;
}

/* Did the raised exception come before anything was written that nobody has kept? It may have been
 * raised before, from another place. */
void
error_mark_unwritten(int yes)
{
    static PyObject *name; /* interned once */
    PyObject *error = error_take();
    if (error == NULL) {
        PyErr_NoMemory();
        return;
    }
    if ((name == NULL && (name = PyUnicode_InternFromString("__stator_unwritten__")) == NULL) ||
        PyObject_GenericSetAttr(error, name, yes ? Py_True : NULL) < 0) {
        PyErr_Clear(); /* without a mark it is taken for the worse */
    }
    error_put(error);
}

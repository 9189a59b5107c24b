/* Reading the frames of a watched run, from its root to the innermost watched frame.
 *
 * Called from a handler, so all these frames are alive below it and do not move. What is read is
 * returned as owned references. How deep a frame's value stack is, CPython does not say while it
 * runs; the caller knows it statically, from the code and the place, and is trusted with it as the
 * instrumenter is.
 */
#include "native.h"

static Frame *
root_frame(Thread *t)
{
    Level *root = t->level;
    while (root->below != NULL) {
        root = root->below;
    }
    return root->frame;
}

/* The caller's frame, or NULL if f is the root. Frames that CPython puts between are passed
 * over. */
static Frame *
caller(Frame *f, Frame *root)
{
    do {
        f = f == root ? NULL : f->previous;
    } while (f != NULL && !frame_is_python(f));
    return f;
}

/* The frame so many calls away from the innermost watched one, or NULL. */
static Frame *
frame_below(Thread *t, Py_ssize_t calls)
{
    Frame *root = root_frame(t), *f = t->level->frame;
    for (; f != NULL && calls > 0; calls--) {
        f = caller(f, root);
    }
    return f;
}

static PyObject *
slot_list(PyObject **slots, Py_ssize_t n)
{
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; list != NULL && i < n; i++) {
        PyList_SET_ITEM(list, i, Py_NewRef(slots[i] == NULL ? missing : slots[i]));
    }
    return list;
}

static Level *
level_of(Thread *t, Frame *f)
{
    Level *level = t->level;
    while (level != NULL && level->frame != f) {
        level = level->below;
    }
    return level;
}

Level *
frames_level(Thread *t, Py_ssize_t calls)
{
    Frame *f = frame_below(t, calls);
    return f == NULL ? NULL : level_of(t, f);
}

/* (kind, code, original, code unit, function, fast locals, intact, held, which operand that is,
 * last probe or None) */
static PyObject *
describe(Thread *t, Frame *f)
{
    PyCodeObject *code = frame_code(f);
    CodeInfo *info = codeinfo_find(code);
    int kind = info == NULL ? CODE_UNKNOWN : info->kind;
    PyObject *original = NULL, *function = (PyObject *)frame_func(f);
    if (kind == CODE_INSTRUMENTED) {
        original = weakref_get(info->original);
        function = ((PyFunctionObject *)function)->func_doc; /* see hook_function */
    }
    else {
        original = Py_NewRef((PyObject *)code);
    }
    PyObject *locals = original == NULL ? NULL : slot_list(f->localsplus, code->co_nlocalsplus);
    if (locals == NULL) {
        Py_XDECREF(original);
        return NULL;
    }
    Level *level = level_of(t, f);
    PyObject *intact = level != NULL && level->intact ? Py_True : Py_False;
    PyObject *held = level == NULL || level->held == NULL ? missing : level->held;
    PyObject *probe = level == NULL || level->probe == NULL ? Py_None : (PyObject *)level->probe;
    int held_at = level == NULL ? -1 : level->held_at;
    return Py_BuildValue("(iONnONOOiO)", kind, code, original, frame_unit(f),
                         function == NULL ? Py_None : function, locals, intact, held, held_at,
                         probe);
}

static Thread *
running(PyObject *watcher)
{
    Thread *t = &thread_here;
    if (t->watcher != (Watcher *)watcher || t->level == NULL) {
        PyErr_SetString(PyExc_RuntimeError,
                        "no watched frame of this watcher is running in this thread");
        return NULL;
    }
    return t;
}

PyObject *
frames_read(PyObject *watcher, PyObject *Py_UNUSED(none))
{
    Thread *t = running(watcher);
    if (t == NULL) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    if (list == NULL) {
        return NULL;
    }
    Frame *root = root_frame(t);
    for (Frame *f = t->level->frame; f != NULL; f = caller(f, root)) {
        PyObject *entry = describe(t, f);
        int failed = entry == NULL || PyList_Append(list, entry) < 0;
        Py_XDECREF(entry);
        if (failed) {
            Py_DECREF(list);
            return NULL;
        }
    }
    if (PyList_Reverse(list) < 0) {
        Py_DECREF(list);
        return NULL;
    }
    PyObject *handled = t->hidden ? Py_XNewRef(t->handled) : PyErr_GetHandledException();
    if (handled == NULL) {
        handled = Py_NewRef(Py_None);
    }
    return Py_BuildValue("(NN)", list, handled);
}

PyObject *
frames_put(PyObject *watcher, PyObject *const *args, Py_ssize_t nargs)
{
    Thread *t = running(watcher);
    if (t == NULL) {
        return NULL;
    }
    if (nargs != 3) {
        PyErr_SetString(PyExc_TypeError, "put(calls, slot, value) takes two numbers and a value");
        return NULL;
    }
    Py_ssize_t calls = PyLong_AsSsize_t(args[0]), slot = PyLong_AsSsize_t(args[1]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Frame *f = calls < 0 ? NULL : frame_below(t, calls);
    PyCodeObject *code = f == NULL ? NULL : frame_code(f);
    if (f == NULL || slot < 0 || slot >= code->co_nlocalsplus + code->co_stacksize ||
        f->localsplus[slot] == NULL) {
        PyErr_SetString(PyExc_IndexError, "there is no such frame, or nothing in that slot");
        return NULL;
    }
    if (calls == 0 && slot >= code->co_nlocalsplus && f != t->firing) {
        /* an instruction is at work, and may be using what lies on the stack without owning it */
        Py_RETURN_NONE;
    }
    PyObject *old = f->localsplus[slot];
    f->localsplus[slot] = Py_NewRef(args[2]);
    Py_DECREF(old);
    Py_RETURN_NONE;
}

PyObject *
frames_stack(PyObject *watcher, PyObject *const *args, Py_ssize_t nargs)
{
    Thread *t = running(watcher);
    if (t == NULL) {
        return NULL;
    }
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "stack(calls, depth) takes two numbers");
        return NULL;
    }
    Py_ssize_t calls = PyLong_AsSsize_t(args[0]), depth = PyLong_AsSsize_t(args[1]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Frame *f = calls < 0 ? NULL : frame_below(t, calls);
    if (f == NULL || depth < 0 || depth > frame_code(f)->co_stacksize) {
        PyErr_SetString(PyExc_IndexError, "there is no such frame, or its stack is not as deep");
        return NULL;
    }
    return slot_list(f->localsplus + frame_code(f)->co_nlocalsplus, depth);
}

/* Is this object an argument of a frame, or one of those in its `*args`? They are read where they
 * lie: asking for `f_locals` would leave a dict at the frame, which would keep the frame and what
 * it had, if an exception from there is among that. */
PyObject *
frame_takes(PyObject *Py_UNUSED(none), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyFrame_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "frame_takes(frame, object) takes a frame and an object");
        return NULL;
    }
    Frame *f = ((PyFrameObject *)args[0])->f_frame;
    PyCodeObject *code = frame_code(f);
    int more = (code->co_flags & CO_VARARGS) != 0;
    int count = code->co_argcount + code->co_kwonlyargcount + more;
    for (int i = 0; i < count; i++) {
        PyObject *value = f->localsplus[i];
        if (value != NULL && PyCell_Check(value)) { /* a function inside uses it */
            value = PyCell_GET(value);
        }
        if (value == args[1]) {
            Py_RETURN_TRUE;
        }
        if (more && i == count - 1 && value != NULL && PyTuple_CheckExact(value)) {
            for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(value); j++) {
                if (PyTuple_GET_ITEM(value, j) == args[1]) {
                    Py_RETURN_TRUE;
                }
            }
        }
    }
    Py_RETURN_FALSE;
}

/* Arguments of a call, bound as the function that is compiled binds them. */
#include "compiled.h"

void
slots_clear(SlotBuffer *s)
{
    for (Py_ssize_t i = 0; i < s->count; i++) {
        Py_XDECREF(s->values[i]);
    }
}

/* The slot of a keyword. Names in code are interned, as keywords mostly are: then another string is
 * another name. */
static Py_ssize_t
find_parameter(PyCodeObject *code, PyObject *name)
{
    int first = code->co_posonlyargcount, end = code->co_argcount + code->co_kwonlyargcount;
    for (int i = first; i < end; i++) {
        if (PyTuple_GET_ITEM(code->co_localsplusnames, i) == name) {
            return i;
        }
    }
    for (int i = PyUnicode_CHECK_INTERNED(name) ? end : first; i < end; i++) {
        if (PyUnicode_Compare(PyTuple_GET_ITEM(code->co_localsplusnames, i), name) == 0) {
            return i;
        }
    }
    return -1;
}

/* Fill what the call left open from the function's defaults. 0 if something is missing. */
static int
bind_defaults(PyFunctionObject *f, PyCodeObject *code, SlotBuffer *s)
{
    Py_ssize_t defaults = f->func_defaults == NULL ? 0 : PyTuple_GET_SIZE(f->func_defaults);
    for (Py_ssize_t i = 0; i < code->co_argcount; i++) {
        if (s->values[i] == NULL) {
            Py_ssize_t at = i - (code->co_argcount - defaults);
            if (at < 0) {
                return 0;
            }
            s->values[i] = Py_NewRef(PyTuple_GET_ITEM(f->func_defaults, at));
        }
    }
    for (Py_ssize_t i = code->co_argcount; i < code->co_argcount + code->co_kwonlyargcount; i++) {
        if (s->values[i] == NULL) {
            PyObject *name = PyTuple_GET_ITEM(code->co_localsplusnames, i);
            PyObject *found = f->func_kwdefaults == NULL
                                  ? NULL
                                  : PyDict_GetItemWithError(f->func_kwdefaults, name);
            if (found == NULL) {
                return 0;
            }
            s->values[i] = Py_NewRef(found);
        }
    }
    return 1;
}

/* Bind arguments as the function does. 1: bound; 0: not without a question. In both cases the slots
 * must be cleared. */
int
bind(Compiled *c, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, SlotBuffer *s)
{
    PyFunctionObject *f = c->function;
    PyCodeObject *code = (PyCodeObject *)f->func_code;
    s->count = 0;
    if (f->func_code != c->code) {
        return 0;
    }
    Py_ssize_t named = code->co_argcount + code->co_kwonlyargcount;
    Py_ssize_t star = (code->co_flags & CO_VARARGS) != 0,
               stars = (code->co_flags & CO_VARKEYWORDS) != 0;
    Py_ssize_t keywords = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    if (named + star + stars > MAX_SLOTS || (nargs > code->co_argcount && !star)) {
        return 0;
    }
    s->count = named + star + stars + 1;
    s->made = stars ? named + star : -1;
    memset(s->values, 0, (size_t)s->count * sizeof(PyObject *));
    Py_ssize_t positional = nargs < code->co_argcount ? nargs : code->co_argcount;
    for (Py_ssize_t i = 0; i < positional; i++) {
        s->values[i] = Py_NewRef(args[i]);
    }
    if (c->self_is != NULL) {
        if (positional < 1 || args[0] != c->self_is || Py_TYPE(args[0]) != c->self_type) {
            return 0;
        }
        Py_SETREF(s->values[0], Py_NewRef(c->self_becomes));
    }
    if (star) {
        PyObject *rest = s->values[named] = PyTuple_New(nargs - positional);
        for (Py_ssize_t i = positional; rest != NULL && i < nargs; i++) {
            PyTuple_SET_ITEM(rest, i - positional, Py_NewRef(args[i]));
        }
        if (rest == NULL) {
            return 0;
        }
    }
    PyObject *more = NULL;
    if (stars && (more = s->values[named + star] = PyDict_New()) == NULL) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < keywords; i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        Py_ssize_t at = find_parameter(code, name);
        if (at >= 0 ? s->values[at] != NULL
                    : more == NULL || PyDict_SetItem(more, name, args[nargs + i]) < 0) {
            return 0;
        }
        if (at >= 0) {
            s->values[at] = Py_NewRef(args[nargs + i]);
        }
    }
    s->values[s->count - 1] = Py_NewRef(f);
    return (keywords == 0 && nargs == code->co_argcount && code->co_kwonlyargcount == 0) ||
           bind_defaults(f, code, s);
}

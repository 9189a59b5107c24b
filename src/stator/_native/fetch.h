/* Reaching values and comparing constants without running Python code: what walk.c does at each
 * node.
 *
 * A header, so that it is compiled into the walk.
 */
#ifndef STATOR_FETCH_H
#define STATOR_FETCH_H

#include "guard.h"

enum { OWNED_IN_PLACE = 16, MAX_PATH = 16 };

typedef struct {
    PyObject *const *slots;
    Py_ssize_t slot_count, made; /* `made`: the slot whose value nobody else has; -1: none */
    PyObject **owned;            /* values that perhaps nobody else holds: */
    PyObject *in_place[OWNED_IN_PLACE];
    int owned_count, owned_room;
    int unsure; /* Python code might have to run */
    int ask;    /* a check is left to Python */
} Walk;

/* ---- constants ---- */

/* Are two constants equal in type and value? 1, 0, or -1: cannot tell. Tells -0.0 from 0.0, and
 * a NaN from any other: in a container it is found by identity. */
static int
same_float(double a, double b)
{
    return a == a && memcmp(&a, &b, sizeof a) == 0;
}

static int
same_constant(PyObject *found, PyObject *expected)
{
    if (found == expected) {
        return 1;
    }
    PyTypeObject *type = Py_TYPE(expected);
    if (Py_TYPE(found) != type) {
        return 0;
    }
    if (type == &PyUnicode_Type) {
        return PyUnicode_GET_LENGTH(found) == PyUnicode_GET_LENGTH(expected) &&
               PyUnicode_Compare(found, expected) == 0;
    }
    if (type == &PyLong_Type || type == &PyBytes_Type) {
        int same = PyObject_RichCompareBool(found, expected, Py_EQ);
        PyErr_Clear();
        return same > 0;
    }
    if (type == &PyFloat_Type) {
        return same_float(PyFloat_AS_DOUBLE(found), PyFloat_AS_DOUBLE(expected));
    }
    if (type == &PyComplex_Type) {
        Py_complex a = ((PyComplexObject *)found)->cval, b = ((PyComplexObject *)expected)->cval;
        return same_float(a.real, b.real) && same_float(a.imag, b.imag);
    }
    if (type == &PyBool_Type || type == Py_TYPE(Py_None)) {
        return 0; /* another object, then */
    }
    if (!PyTuple_CheckExact(expected)) {
        return -1;
    }
    if (PyTuple_GET_SIZE(found) != PyTuple_GET_SIZE(expected)) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(expected); i++) {
        int same = same_constant(PyTuple_GET_ITEM(found, i), PyTuple_GET_ITEM(expected, i));
        if (same != 1) {
            return same;
        }
    }
    return 1;
}

/* ---- dicts ---- */

/* Is a key of a dict equal to a str or int? 1, 0, or -1: only its own code can tell. */
static int
same_key(PyObject *found, PyObject *key)
{
    if (found == key || Py_IS_TYPE(found, Py_TYPE(key))) {
        return same_constant(found, key);
    }
    PyTypeObject *type = Py_TYPE(found);
    /* 1 == 1.0 == True */
    if (type == &PyBool_Type || type == &PyFloat_Type || type == &PyComplex_Type) {
        return PyLong_CheckExact(key) && PyObject_RichCompareBool(found, key, Py_EQ) == 1;
    }
    int plain = type == &PyLong_Type || type == &PyUnicode_Type || type == &PyTuple_Type ||
                type == &PyBytes_Type || type->tp_richcompare == PyBaseObject_Type.tp_richcompare;
    return plain ? 0 : -1;
}

/* The entry of a str or int, or NULL. A key of the same hash that only its own code can compare
 * makes the walk unsure. */
static PyObject *
dict_find(Walk *w, PyObject *dict, PyObject *key, Py_hash_t hash)
{
    if (dict_is_text(dict)) {
        return PyUnicode_CheckExact(key) ? _PyDict_GetItem_KnownHash(dict, key, hash) : NULL;
    }
    size_t rest = (size_t)hash;
    for (size_t at = dict_first_slot(dict, hash);; at = dict_next_slot(dict, at, &rest)) {
        Py_ssize_t index = dict_slot(dict, at);
        if (index == DKIX_EMPTY) {
            return NULL;
        }
        const PyDictKeyEntry *entry =
            index < 0 ? NULL : &DK_ENTRIES(((PyDictObject *)dict)->ma_keys)[index];
        int same = entry == NULL || entry->me_hash != hash ? 0 : same_key(entry->me_key, key);
        if (same != 0) {
            w->unsure |= same < 0;
            return same < 0 ? NULL : entry->me_value;
        }
    }
}

/* The entry whose key is this very object, which may be gone: its address is compared with those of
 * living keys. */
static PyObject *
dict_find_object(PyObject *dict, const PyObject *key, Py_ssize_t *hint)
{
    PyObject *k, *value;
    Py_ssize_t pos = *hint;
    if (PyDict_Next(dict, &pos, &k, &value) && k == key) {
        return value;
    }
    pos = 0;
    for (Py_ssize_t start = 0; PyDict_Next(dict, &pos, &k, &value); start = pos) {
        if (k == key) {
            *hint = start;
            return value;
        }
    }
    return NULL;
}

/* The next key of a dict or set. */
static int
next_key(PyObject *container, Py_ssize_t *pos, PyObject **key)
{
    PyObject *value;
    Py_hash_t hash;
    return PyDict_Check(container) ? PyDict_Next(container, pos, key, &value)
                                   : _PySet_NextEntry(container, pos, key, &hash);
}

/* An OrderedDict has an order of its own, which does not matter with one key. */
static int
same_keys(Walk *w, PyObject *found, PyObject *expected)
{
    Py_ssize_t count = PyTuple_GET_SIZE(expected), i = 0, pos = 0;
    if (!PyDict_CheckExact(found) && !PyAnySet_CheckExact(found) &&
        !(PyODict_CheckExact(found) && count <= 1)) {
        w->unsure = 1;
        return 0;
    }
    if ((PyDict_Check(found) ? PyDict_GET_SIZE(found) : PySet_GET_SIZE(found)) != count) {
        return 0;
    }
    PyObject *key;
    for (; i < count && next_key(found, &pos, &key); i++) {
        int same = same_constant(key, PyTuple_GET_ITEM(expected, i));
        if (same != 1) {
            w->unsure |= same < 0;
            return 0;
        }
    }
    return i == count;
}

/* ---- values ---- */

static PyObject *
function_part(PyObject *value, Py_ssize_t part)
{
    if (!PyFunction_Check(value)) {
        return NULL;
    }
    PyFunctionObject *f = (PyFunctionObject *)value;
    PyObject *parts[PART_COUNT] = {f->func_code,     f->func_defaults,   f->func_kwdefaults,
                                   f->func_closure,  f->func_globals,    f->func_name,
                                   f->func_qualname, f->func_annotations};
    if (part == PART_ANNOTATIONS) { /* made when they are first asked for */
        return parts[part] != NULL && PyDict_Check(parts[part]) ? parts[part] : NULL;
    }
    return parts[part] == NULL ? Py_None : parts[part];
}

/* What a member descriptor finds, not owned: only members that are objects get here. NULL: it is
 * empty, or no owner. */
static PyObject *
member(PyObject *owner, PyObject *descriptor)
{
    PyMemberDescrObject *d = (PyMemberDescrObject *)descriptor;
    if (!PyObject_TypeCheck(owner, d->d_common.d_type)) {
        return NULL;
    }
    PyObject *value = *(PyObject **)((char *)owner + d->d_member->offset);
    return value == NULL && d->d_member->type == T_OBJECT ? Py_None : value;
}

/* The entry of a name in a class or its bases, not owned. A key that only its own code can compare
 * makes the walk unsure. */
static PyObject *
class_find(Walk *w, PyTypeObject *type, PyObject *name)
{
    if (!class_is_text(type)) {
        w->unsure = 1;
        return NULL;
    }
    return _PyType_Lookup(type, name);
}

/* The same for the classes behind a given one, as `super()` looks. */
static PyObject *
entry_behind(Walk *w, PyObject *cls, PyObject *key)
{
    if (!class_is_text((PyTypeObject *)cls)) {
        w->unsure = 1;
        return NULL;
    }
    PyObject *mro = ((PyTypeObject *)cls)->tp_mro, *start = PyTuple_GET_ITEM(key, 0),
             *name = PyTuple_GET_ITEM(key, 1);
    Py_ssize_t i = 0, count = mro == NULL ? 0 : PyTuple_GET_SIZE(mro);
    while (i < count && PyTuple_GET_ITEM(mro, i) != start) {
        i++;
    }
    while (++i < count) {
        PyObject *dict = class_dict((PyTypeObject *)PyTuple_GET_ITEM(mro, i));
        PyObject *found = dict == NULL ? NULL : PyDict_GetItemWithError(dict, name);
        if (found != NULL) {
            return found;
        }
    }
    return NULL;
}

/* Keeps a value to the end of the walk. Steals it, and gives it back; NULL if there is none, or no
 * memory. */
static PyObject *
own(Walk *w, PyObject *value)
{
    if (value != NULL && w->owned_count == w->owned_room) {
        size_t bytes = (size_t)w->owned_room * sizeof(PyObject *);
        PyObject **more = PyMem_Realloc(w->owned == w->in_place ? NULL : w->owned, 4 * bytes);
        if (more == NULL) {
            Py_DECREF(value);
            w->unsure = 1;
            return NULL;
        }
        if (w->owned == w->in_place) {
            memcpy(more, w->in_place, bytes);
        }
        w->owned = more;
        w->owned_room *= 4;
    }
    if (value != NULL) {
        w->owned[w->owned_count++] = value;
    }
    return value;
}

static void
let_go(Walk *w)
{
    for (int i = 0; i < w->owned_count; i++) {
        Py_DECREF(w->owned[i]);
    }
    if (w->owned != w->in_place) {
        PyMem_Free(w->owned);
    }
}

/* A part of an object that lies in its struct; borrowed. */
static inline PyObject *
fetch_part(Node *n, PyObject *parent)
{
    switch (n->edge) {
    case FETCH_MEMBER:
        return member(parent, n->key);
    case FETCH_FUNCTION:
        return function_part(parent, n->number);
    case FETCH_SELF:
        return PyCFunction_CheckExact(parent) ? PyCFunction_GET_SELF(parent) : NULL;
    case FETCH_CELL:
        return PyCell_Check(parent) ? PyCell_GET(parent) : NULL;
    default:
        return NULL;
    }
}

/* The value of a node, not owned; NULL: there is none, or the walk is unsure. */
static inline PyObject *
fetch(Walk *w, Node *n, PyObject *parent)
{
    switch (n->edge) {
    case FETCH_LOCAL:
        return n->number < w->slot_count ? w->slots[n->number] : NULL;
    case FETCH_CONST:
        return n->key;
    case FETCH_NAMESPACE:
        return instance_dict(parent);
    case FETCH_KEY:
        return PyDict_Check(parent) ? dict_find(w, parent, n->key, n->number) : NULL;
    case FETCH_INDEX:
        if (PyTuple_Check(parent)) {
            return n->number < PyTuple_GET_SIZE(parent) ? PyTuple_GET_ITEM(parent, n->number)
                                                        : NULL;
        }
        return PyList_Check(parent) && n->number < PyList_GET_SIZE(parent)
                   ? PyList_GET_ITEM(parent, n->number)
                   : NULL;
    case FETCH_MRO:
        return PyType_Check(parent) ? class_find(w, (PyTypeObject *)parent, n->key) : NULL;
    case FETCH_SUPER:
        return PyType_Check(parent) ? entry_behind(w, parent, n->key) : NULL;
    case FETCH_CALL:
        return own(w, PyObject_CallNoArgs(parent));
    case FETCH_GRAD:
        /* to them `.grad` is an operation, and they are Python code */
        if (state_has_function_modes()) {
            w->unsure = 1;
            return NULL;
        }
        return own(w, tensor_grad(parent));
    default:
        return fetch_part(n, parent);
    }
}

#endif

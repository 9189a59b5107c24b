/* Which events reach Python: one filter per kind of probe, true if the handler is to be called.
 *
 * The rule behind all of them: an object that came from outside (`known`) always matters; of a
 * fresh object only its type matters, and of a type each (type, what is read) pair only once per
 * recording and version of the type. Types that cannot be changed
 * (`int`, `dict`, ...) need no watching. Where memory runs out a filter answers true: a needless
 * call is sound.
 */
#include "native.h"
#include <string.h>

static inline int
known(Watcher *w, PyObject *x)
{
    return x != NULL && ptrset_has(&w->known, x);
}

/* A type whose attributes a program can change. */
static inline int
mutable_type(PyTypeObject *t)
{
    return (t->tp_flags & (Py_TPFLAGS_HEAPTYPE | Py_TPFLAGS_IMMUTABLETYPE)) == Py_TPFLAGS_HEAPTYPE;
}

/* A type that has no version, and can get none, is never seen. */
static inline int
unseen_type(Watcher *w, PyTypeObject *type, uintptr_t tag)
{
    Pair pair = {(uintptr_t)type, tag, type_version_tag(type)};
    return pair.version == 0 || pairset_add(&w->seen, pair) != 0;
}

static inline int
unseen(Watcher *w, PyObject *object, uintptr_t tag)
{
    if (PyType_Check(object)) {
        return unseen_type(w, (PyTypeObject *)object, tag);
    }
    return pairset_add(&w->seen, (Pair){(uintptr_t)object, tag, 0}) != 0;
}

/* A class may be met as the owner of an attribute and as the type of one: two facts, two tags. */
#define NAME_TAG(p) ((uintptr_t)(p)->arg)
#define OWNER_TAG(p) ((uintptr_t)(p)->arg | 3)
#define ITSELF_TAG(p) (KIND_TAG(p) + 1024)
#define WRITE_TAG(p) ((uintptr_t)(p)->arg | ((p)->kind == KIND_STORE_ATTR ? 1 : 2))
#define KIND_TAG(p) ((uintptr_t)(p)->kind + 1)
#define CALL_TAG ((uintptr_t)KIND_CALL + 1)
#define ARGUMENT_TAG ((uintptr_t)KIND_COUNT + 1)
#define TRANSPARENT_TAG ((uintptr_t)KIND_COUNT + 2)
#define CELL_TAG ((uintptr_t)0)

/* Is a call of this outside object noted already? `note`: it is now. */
int
filter_call_noted(Watcher *w, PyObject *owner, int note)
{
    if (PyType_Check(owner) || !known(w, owner)) {
        return 0;
    }
    Pair pair = {(uintptr_t)owner, TRANSPARENT_TAG, 0};
    return note ? pairset_add(&w->seen, pair) >= 0 : pairset_has(&w->seen, pair);
}

static int
always(Watcher *Py_UNUSED(w), Probe *Py_UNUSED(p), Operands *Py_UNUSED(ops))
{
    return 1;
}

static PtrSet entered; /* types, told by Python code; empty: any object may be of one */

/* enter(types): C code that compares, hashes or shows an object of one of these reads what it
 * holds. */
PyObject *
filter_enter(PyObject *Py_UNUSED(module), PyObject *types)
{
    if (!PyTuple_Check(types)) {
        PyErr_SetString(PyExc_TypeError, "a tuple of types is expected");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(types); i++) {
        PyObject *type = PyTuple_GET_ITEM(types, i);
        if (!PyType_Check(type)) {
            PyErr_SetString(PyExc_TypeError, "a tuple of types is expected");
            return NULL;
        }
        if (ptrset_add(&entered, Py_NewRef(type)) < 0) { /* for good */
            Py_DECREF(type);
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

static int
is_holder(PyObject *x)
{
    for (PyTypeObject *type = Py_TYPE(x); type != NULL; type = type->tp_base) {
        if (ptrset_has(&entered, type)) {
            return 1;
        }
    }
    return entered.used == 0;
}

/* A fresh object that may hold an outside one: C code that compares, formats or hashes it goes all
 * the way down. */
static int
may_hold_known(Watcher *w, PyObject *x)
{
    if (is_holder(x)) {
        return 1;
    }
    if (!PyTuple_Check(x) && !PyList_Check(x)) {
        return (PyDict_Check(x) && PyDict_GET_SIZE(x) > 0) ||
               (PyAnySet_Check(x) && PySet_GET_SIZE(x) > 0);
    }
    PyObject **items = PySequence_Fast_ITEMS(x);
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(x); i++) {
        PyObject *item = items[i];
        if (item != NULL && (known(w, item) || PyTuple_Check(item) || PyList_Check(item) ||
                             PyDict_Check(item) || PyAnySet_Check(item) || is_holder(item))) {
            return 1;
        }
    }
    return 0;
}

static int
on_deep(Watcher *w, Probe *p, Operands *ops)
{
    int call = 0;
    PyObject **slot = ops->slots;
    for (int i = 0; i < ops->count; i++, slot += ops->step) {
        PyObject *x = *slot;
        if (x != NULL) {
            PyTypeObject *type = Py_TYPE(x);
            call |= known(w, x) | (mutable_type(type) && unseen_type(w, type, KIND_TAG(p))) |
                    may_hold_known(w, x);
        }
    }
    return call;
}

/* Of what has a text of its own, and holds nothing else. */
static inline int
is_plain_text(PyObject *x)
{
    return x == NULL || x == Py_None || PyUnicode_CheckExact(x) || PyLong_CheckExact(x) ||
           PyFloat_CheckExact(x) || PyBool_Check(x) || PyType_Check(x);
}

/* The text of a fresh object may show its address. */
static int
on_format(Watcher *w, Probe *p, Operands *ops)
{
    PyObject **slot = ops->slots;
    for (int i = 0; i < ops->count; i++, slot += ops->step) {
        if (!is_plain_text(*slot)) {
            return 1;
        }
    }
    return on_deep(w, p, ops);
}

/* `text % value` formats. */
static int
on_binary(Watcher *w, Probe *p, Operands *ops)
{
    PyObject *left = ops->slots[0];
    if (left != NULL && (PyUnicode_Check(left) || PyBytes_Check(left)) && p->arg != NULL &&
        PyUnicode_Check(p->arg) && PyUnicode_CompareWithASCIIString(p->arg, "%") == 0) {
        return 1;
    }
    return on_deep(w, p, ops);
}

static int
on_operands(Watcher *w, Probe *p, Operands *ops)
{
    int call = 0;
    PyObject **slot = ops->slots;
    for (int i = 0; i < ops->count; i++, slot += ops->step) {
        PyObject *x = *slot;
        if (x == NULL) {
            continue;
        }
        PyTypeObject *type = Py_TYPE(x);
        /* No early exit: the handler is told of all operands at once, so all pairs count as
         * seen. */
        call |= known(w, x) | (mutable_type(type) && unseen_type(w, type, KIND_TAG(p)));
    }
    return call;
}

/* Kinds with one operand of which the same is noted every time: once per outside object is
 * enough. */
static int
on_one(Watcher *w, Probe *p, Operands *ops)
{
    PyObject *x = ops->slots[0];
    if (x == NULL) {
        return 0;
    }
    if (known(w, x)) {
        return unseen(w, x, ITSELF_TAG(p));
    }
    return mutable_type(Py_TYPE(x)) && unseen_type(w, Py_TYPE(x), KIND_TAG(p));
}

/* A value leaves a frame, perhaps for C code that reads it: only outside containers can hold
 * something unread. */
static int
on_escape(Watcher *w, Probe *p, Operands *ops)
{
    PyObject *x = ops->slots[0];
    if (x == NULL ||
        !(PyList_Check(x) || PyTuple_Check(x) || PyDict_Check(x) || PyAnySet_Check(x))) {
        return 0;
    }
    return known(w, x) && !probe_returns_to_python(w, p) && unseen(w, x, KIND_TAG(p));
}

static int
on_known(Watcher *w, Probe *Py_UNUSED(p), Operands *ops)
{
    PyObject **slot = ops->slots;
    for (int i = 0; i < ops->count; i++, slot += ops->step) {
        if (known(w, *slot)) {
            return 1;
        }
    }
    return 0;
}

static int
on_truth(Watcher *w, Probe *p, Operands *ops)
{
    PyObject *x = ops->slots[0];
    if (x == Py_True || x == Py_False || x == Py_None) {
        return 0;
    }
    return on_one(w, p, ops);
}

static int
on_attr(Watcher *w, Probe *p, Operands *ops)
{
    PyObject *owner = ops->slots[0];
    if (owner == NULL) {
        return 0;
    }
    PyTypeObject *type = Py_TYPE(owner);
    int is_class = PyType_Check(owner);
    if (known(w, owner) || (is_class && mutable_type((PyTypeObject *)owner))) {
        /* again once an entry of its class, or of a base, was set; no two classes have one
         * version */
        Pair pair = {(uintptr_t)owner, OWNER_TAG(p), type_version_tag(type)};
        int call = mutable_type(type) && (pair.version == 0 || pairset_add(&w->seen, pair) != 0);
        return unseen(w, owner, OWNER_TAG(p)) || call;
    }
    if (is_class) {
        return 0;
    }
    if (type == &PySuper_Type) {
        return 1;
    }
    if (PyModule_Check(owner)) {
        return unseen(w, owner, OWNER_TAG(p));
    }
    if (PyFunction_Check(owner) || PyFrame_Check(owner) || PyGen_Check(owner)) {
        return 1; /* even a fresh one leads to globals */
    }
    return mutable_type(type) && unseen_type(w, type, NAME_TAG(p));
}

static int
on_store_attr(Watcher *w, Probe *p, Operands *ops)
{
    PyObject *owner = ops->slots[ops->count - 1];
    if (owner == NULL) {
        return 0;
    }
    if (known(w, owner) || PyType_Check(owner)) {
        return 1;
    }
    return mutable_type(Py_TYPE(owner)) && unseen_type(w, Py_TYPE(owner), WRITE_TAG(p));
}

static int
on_global(Watcher *w, Probe *p, Operands *ops)
{
    return unseen(w, ops->prefix[0], NAME_TAG(p));
}

static int
on_import(Watcher *w, Probe *p, Operands *ops)
{
    return unseen(w, ops->prefix[0], (uintptr_t)p);
}

static int
on_import_from(Watcher *w, Probe *p, Operands *ops)
{
    return ops->slots[0] != NULL && unseen(w, ops->slots[0], NAME_TAG(p));
}

static int
on_cell_read(Watcher *w, Probe *Py_UNUSED(p), Operands *ops)
{
    return known(w, ops->prefix[0]) && unseen(w, ops->prefix[0], CELL_TAG);
}

static int
on_cell_write(Watcher *w, Probe *Py_UNUSED(p), Operands *ops)
{
    return known(w, ops->prefix[0]);
}

/* ---- calls ---- */

static PyObject *
python_function(PyObject *callable)
{
    if (PyMethod_Check(callable)) {
        callable = PyMethod_GET_FUNCTION(callable);
    }
    return PyFunction_Check(callable) ? callable : NULL;
}

/* Instances with a __call__ written in Python: the frame hook sees the call, so the type matters
 * only once. */
static int
python_call_slot(PyTypeObject *type)
{
    static PyObject *name = NULL;
    if (name == NULL) {
        name = PyUnicode_InternFromString("__call__");
        if (name == NULL) {
            PyErr_Clear();
            return 0;
        }
    }
    PyObject *found = _PyType_Lookup(type, name);
    return found != NULL && PyFunction_Check(found);
}

/* 0: a Python frame will follow and needs no call now; 1: call the handler; -1: ask about the
 * arguments. */
static int
on_callable(Watcher *w, PyObject *callable)
{
    PyObject *func = python_function(callable);
    if (func != NULL) {
        /* A bound method from outside leads to a function that nobody has read yet. */
        return ptrset_has(&w->intercepted, PyFunction_GET_CODE(func)) ||
               (func != callable && known(w, callable));
    }
    PyTypeObject *type = Py_TYPE(callable);
    if (mutable_type(type)) {
        if (pairset_has(&w->seen, (Pair){(uintptr_t)type, CALL_TAG, type_version_tag(type)})) {
            return 0;
        }
        if (python_call_slot(type)) {
            return unseen_type(w, type, CALL_TAG);
        }
    }
    if (PyCFunction_Check(callable)) {
        PyObject *self = PyCFunction_GET_SELF(callable);
        if (self != NULL && !PyModule_Check(self)) {
            return 1;
        }
    }
    return ptrset_has(&w->approved, callable) ? -1 : 1;
}

static inline int
is_named(PyObject *names, PyObject *name)
{
    if (names == NULL || names == Py_None) {
        return 0;
    }
    if (PyDict_CheckExact(names)) {
        return PyDict_GetItem(names, name) != NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        if (PyTuple_GET_ITEM(names, i) == name) {
            return 1;
        }
    }
    return 0;
}

/* Does a Python function take these arguments? If not no frame follows, and nobody else would note
 * the function. `names`: of keyword arguments, a tuple or a dict; "no" in doubt. */
int
filter_surely_binds(PyObject *function, Py_ssize_t given, PyObject *names)
{
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(function);
    PyObject *defaults = PyFunction_GET_DEFAULTS(function),
             *kwdefaults = PyFunction_GET_KW_DEFAULTS(function);
    if (given > code->co_argcount && !(code->co_flags & CO_VARARGS)) {
        return 0;
    }
    Py_ssize_t unmatched = names == NULL || names == Py_None ? 0 : PyObject_Length(names);
    Py_ssize_t required = code->co_argcount - (defaults == NULL ? 0 : PyTuple_GET_SIZE(defaults));
    for (Py_ssize_t i = given; i < code->co_argcount + code->co_kwonlyargcount; i++) {
        PyObject *name = PyTuple_GET_ITEM(code->co_localsplusnames, i);
        if (i >= code->co_posonlyargcount && is_named(names, name)) {
            unmatched--;
        }
        else if (i < code->co_argcount ? i < required : !is_named(kwdefaults, name)) {
            return 0;
        }
    }
    return unmatched == 0 || (code->co_flags & CO_VARKEYWORDS);
}

/* An argument that C code may read: an outside object, or one whose class may have special methods
 * in Python. */
static inline int
argument_matters(Watcher *w, PyObject *x)
{
    if (x == NULL) {
        return 0;
    }
    PyTypeObject *type = Py_TYPE(x);
    return known(w, x) | (mutable_type(type) && unseen_type(w, type, ARGUMENT_TAG)) |
           may_hold_known(w, x);
}

static int
on_call(Watcher *w, Probe *Py_UNUSED(p), Operands *ops)
{
    PyObject *callable = *ops->call.callable;
    if (callable == NULL) {
        return 0;
    }
    int answer = on_callable(w, callable);
    PyObject *function = answer == 0 ? python_function(callable) : NULL;
    if (function != NULL && known(w, function)) {
        return !filter_surely_binds(function, ops->call.nargs + (function != callable),
                                    ops->kwnames);
    }
    if (answer < 0) {
        for (int i = 0; i < ops->call.nargs; i++) {
            if (argument_matters(w, ops->call.args[i])) {
                answer = 1; /* no early exit: the handler is told of all of them */
            }
        }
    }
    return answer > 0;
}

static int
on_call_ex(Watcher *w, Probe *Py_UNUSED(p), Operands *ops)
{
    PyObject *callable = *ops->call.callable, *args = ops->starargs, *kwargs = ops->kwnames;
    if (callable == NULL || args == NULL) {
        return 0;
    }
    if (known(w, args) || known(w, kwargs)) {
        return 1; /* they are going to be iterated, whoever is called */
    }
    int answer = on_callable(w, callable);
    PyObject *function = answer == 0 ? python_function(callable) : NULL;
    if (function != NULL && known(w, function)) {
        int plain = PyTuple_CheckExact(args) && (kwargs == NULL || PyDict_CheckExact(kwargs));
        return !plain || !filter_surely_binds(
                             function, PyTuple_GET_SIZE(args) + (function != callable), kwargs);
    }
    if (answer < 0 && PyTuple_CheckExact(args)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) {
            if (argument_matters(w, PyTuple_GET_ITEM(args, i))) {
                answer = 1;
            }
        }
    }
    else if (answer < 0) {
        answer = 1; /* some other iterable: what it holds is not known here */
    }
    if (answer < 0 && kwargs != NULL) {
        PyObject *key, *value;
        Py_ssize_t pos = 0;
        if (!PyDict_CheckExact(kwargs)) {
            return 1;
        }
        while (answer < 0 && PyDict_Next(kwargs, &pos, &key, &value)) {
            answer = argument_matters(w, value) ? 1 : -1;
        }
    }
    return answer > 0;
}

/* Into a list goes anything; what goes into a set or a dict is hashed. */
static int
on_insert(Watcher *w, Probe *p, Operands *ops)
{
    PyObject *container = ops->slots[0];
    if (known(w, container) || (container != NULL && PyList_CheckExact(container))) {
        return known(w, container);
    }
    Operands item = *ops;
    item.slots += item.step;
    item.count = 1;
    return on_deep(w, p, &item);
}

const Filter filters[KIND_COUNT] = {
    [KIND_ATTR] = on_attr,
    [KIND_SUPER_ATTR] = always,
    [KIND_GLOBAL] = on_global,
    [KIND_DEREF] = on_cell_read,
    [KIND_SUBSCR] = on_operands,
    [KIND_SLICE] = on_operands,
    [KIND_CALL] = on_call,
    [KIND_CALL_EX] = on_call_ex,
    [KIND_BINARY] = on_binary,
    [KIND_COMPARE] = on_deep,
    [KIND_CONTAINS] = on_deep,
    [KIND_IS] = on_known,
    [KIND_UNARY] = on_operands,
    [KIND_TRUTH] = on_truth,
    [KIND_ITER] = on_one,
    [KIND_NEXT] = on_operands,
    [KIND_UNPACK] = on_one,
    [KIND_EXTEND] = on_operands,
    [KIND_HASH] = on_deep,
    [KIND_INSERT] = on_insert,
    [KIND_WITH] = on_operands,
    [KIND_WITH_EXIT] = always,
    [KIND_FORMAT] = on_format,
    [KIND_AWAIT] = on_operands,
    [KIND_STORE_ATTR] = on_store_attr,
    [KIND_DELETE_ATTR] = on_store_attr,
    [KIND_STORE_SUBSCR] = on_operands,
    [KIND_STORE_SLICE] = on_operands,
    [KIND_DELETE_SUBSCR] = on_operands,
    [KIND_STORE_GLOBAL] = always,
    [KIND_DELETE_GLOBAL] = always,
    [KIND_STORE_DEREF] = on_cell_write,
    [KIND_DELETE_DEREF] = on_cell_write,
    [KIND_IMPORT_NAME] = on_import,
    [KIND_IMPORT_FROM] = on_import_from,
    [KIND_BUILD_CLASS] = always,
    [KIND_MATCH] = on_operands,
    [KIND_MATCH_CLASS] = on_operands,
    [KIND_MATCH_KEYS] = on_operands,
    [KIND_RAISE] = on_operands,
    [KIND_EXC_MATCH] = on_operands,
    [KIND_INTRINSIC] = on_operands,
    [KIND_ESCAPE] = on_escape,
    [KIND_FUNCTION] = NULL, /* has no handler: probe.c notes the function */
    [KIND_RETURN] = always,
    [KIND_PACK] = NULL, /* has no handler of its own: probe.c specializes unguarded numbers */
};

/* The table of known outside objects: mechanism of watch/objects/ledger.py, which says what it is
 * for.
 *
 * All that is kept per object is one Origin. Objects are found by address; `alive` holds every one
 * of them, so that an address names one object only as long as the ledger lives. Hashing and
 * comparing keys may run code of the program, so all this is called in state OFF: by a handler, or
 * inside a shield. Origins are passed around borrowed: the list of them is given up by `close`
 * alone, which refuses while `busy`.
 */
#include "ledger.h"
#include <structmember.h>

/* ---- origins ---- */

/* Nobody is meant to delete the member, but somebody can. */
static inline PyObject *
place_ref(Ledger *l)
{
    PyObject *place =
        l->place == NULL ? Py_NewRef(Py_None) : watcher_place(l->place, l->last_place);
    if (place != l->place) {
        Py_XSETREF(l->last_place, Py_NewRef(place));
    }
    return place;
}

/* A new origin at the end of the list, which owns it: a borrowed reference. */
static Origin *
add_origin(Ledger *l, PyObject *edge, PyObject *parent, PyObject *key)
{
    Origin *o = (Origin *)OriginType.tp_alloc(&OriginType, 0);
    if (o == NULL) {
        return NULL;
    }
    o->index = PyList_GET_SIZE(l->origins);
    o->edge = Py_NewRef(edge);
    o->parent = Py_NewRef(parent == NULL ? Py_None : parent);
    o->key = Py_NewRef(key);
    o->place = place_ref(l);
    o->checks = PyList_New(0);
    if (o->checks != NULL) {
        PyObject_GC_UnTrack(o->checks); /* see visit_check in origin.c */
    }
    int failed = o->checks == NULL || PyList_Append(l->origins, (PyObject *)o) < 0;
    Py_DECREF(o);
    return failed ? NULL : o;
}

Origin *
ledger_find(const Ledger *l, const void *value)
{
    return map_get(&l->known, value);
}

/* ---- entries ---- */

int
ledger_check(Ledger *l, Origin *origin, PyObject *fact, PyObject *expected)
{
    PyTypeObject *type = (PyTypeObject *)l->check;
    PyObject *check = type->tp_alloc(type, 3);
    if (check == NULL) {
        return -1;
    }
    PyTuple_SET_ITEM(check, 0, Py_NewRef(fact));
    PyTuple_SET_ITEM(check, 1, Py_NewRef(expected));
    PyTuple_SET_ITEM(check, 2, place_ref(l));
    PyObject_GC_UnTrack(check); /* see visit_check in origin.c */
    int result = PyList_Append(origin->checks, check);
    Py_DECREF(check);
    return result;
}

static int
tell_tensor(Ledger *l, PyObject *tensor)
{
    PyObject *note = Py_NewRef(l->note_tensor);
    l->busy++;
    PyObject *done = PyObject_CallOneArg(note, tensor);
    l->busy--;
    Py_DECREF(note);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static int
know(Ledger *l, Origin *origin, PyObject *value)
{
    /* Held first: an address in a map is never that of a dead object. */
    if (PyList_Append(l->alive, value) < 0 || map_add(&l->known, value, origin) < 0) {
        return -1;
    }
    if (ptrset_add(&l->watcher->known, value) < 0) {
        return -1;
    }
    return l->note_tensor != NULL && is_tensor(value) ? tell_tensor(l, value) : 0;
}

/* How a value is checked as a constant (a fact), or None: a new reference. */
static PyObject *
kind_of(Ledger *l, PyObject *value)
{
    PyObject *type = tells_by_identity(value) ? (PyObject *)Py_TYPE(value) : NULL;
    PyObject *kind = type == NULL ? NULL : PyDict_GetItemWithError(l->kinds, type);
    if (kind != NULL && kind != Py_NotImplemented) {
        return Py_NewRef(kind);
    }
    int unknown = type != NULL && kind == NULL;
    if (unknown && PyErr_Occurred()) {
        return NULL;
    }
    kind = PyObject_CallOneArg(l->ask_kind, value);
    if (kind != NULL && unknown && PyDict_SetItem(l->kinds, type, kind) < 0) {
        Py_CLEAR(kind);
    }
    return kind;
}

static int
same_as(Ledger *l, Origin *origin, Origin *first)
{
    PyObject *index = PyLong_FromSsize_t(first->index);
    int result = index == NULL ? -1 : ledger_check(l, origin, l->facts[FACT_SAME], index);
    Py_XDECREF(index);
    return result;
}

/* A number that is known to change is not checked: the recording is made for others, too. 1: it has
 * been seen to. */
static int
generalised(Ledger *l, Origin *origin, PyObject *value)
{
    if (l->generalise == NULL ||
        !(PyLong_CheckExact(value) || PyFloat_CheckExact(value) || PyTuple_Check(value))) {
        return 0;
    }
    PyObject *ask = Py_NewRef(l->generalise), *arguments[] = {(PyObject *)origin, value};
    PyObject *answer = PyObject_Vectorcall(ask, arguments, 2, NULL);
    int yes = answer == NULL ? -1 : answer == Py_True;
    Py_XDECREF(answer);
    Py_DECREF(ask);
    return yes;
}

/* What the value is: a constant by its fact, an object by its identity. An object has one origin,
 * the first one; reaching it by another one adds a check that both are the same object. */
static int
identify(Ledger *l, Origin *origin, PyObject *value)
{
    /* another recording has put it there, or this one at another place: it is its value */
    if (is_symbol(value)) {
        PyObject *plain = symbol_value(value);
        int result = plain == NULL ? -1 : ledger_check(l, origin, l->facts[FACT_EQUAL], plain);
        Py_XDECREF(plain);
        return result;
    }
    l->busy++;
    int general = generalised(l, origin, value);
    PyObject *kind = general != 0 ? NULL : kind_of(l, value);
    l->busy--;
    if (kind == NULL) {
        return general > 0 ? 0 : -1;
    }
    int constant = kind != Py_None, equal = kind == l->facts[FACT_EQUAL];
    int result = constant ? ledger_check(l, origin, kind, value) : 0;
    Py_DECREF(kind);
    if (result < 0 || equal) {
        return result;
    }
    Origin *first = map_get(&l->known, value);
    if (first == NULL) {
        return know(l, origin, value);
    }
    return constant ? 0 : same_as(l, origin, first);
}

static PyObject *
child_dict(PyObject **children)
{
    if (*children == NULL) {
        *children = PyDict_New();
    }
    return *children;
}

Origin *
ledger_read(Ledger *l, Origin *parent, int edge, PyObject *key, PyObject *value)
{
    l->busy++;
    PyObject *children = child_dict(edge == EDGE_ITEM ? &parent->items : &parent->others);
    PyObject *name = edge == EDGE_ITEM ? Py_NewRef(key) : PyTuple_Pack(2, l->edges[edge], key);
    Origin *origin = NULL;
    if (children == NULL || name == NULL) {
        goto done;
    }
    origin = (Origin *)PyDict_GetItemWithError(children, name);
    if (origin != NULL || PyErr_Occurred()) {
        goto done;
    }
    origin = add_origin(l, l->edges[edge], (PyObject *)parent, key);
    if (origin != NULL && (identify(l, origin, value) < 0 ||
                           PyDict_SetItem(children, name, (PyObject *)origin) < 0)) {
        origin = NULL; /* it stays in the list: more is fetched than needed */
    }
done:
    Py_XDECREF(name);
    l->busy--;
    return origin;
}

int
ledger_touch(Ledger *l, Origin *origin, PyObject *value)
{
    if (origin->touched) {
        return 0;
    }
    origin->touched = 1;
    PyTypeObject *type = Py_TYPE(value);
    if (ledger_check(l, origin, l->facts[FACT_TYPE], (PyObject *)type) < 0) {
        return -1;
    }
    int plain = PyLong_CheckExact(value) || PyFloat_CheckExact(value) ||
                PyComplex_CheckExact(value) || PyUnicode_CheckExact(value) ||
                PyBytes_CheckExact(value);
    int valued = PyLong_Check(value) || PyFloat_Check(value) || PyComplex_Check(value) ||
                 PyUnicode_Check(value) || PyBytes_Check(value);
    if (plain || !valued) {
        return 0;
    }
    l->busy++;
    PyObject *expected = PyObject_CallOneArg(l->ask_value, value);
    l->busy--;
    int result = expected == NULL ? -1 : ledger_check(l, origin, l->facts[FACT_VALUE], expected);
    Py_XDECREF(expected);
    return result;
}

/* ---- the methods ---- */

static int
is_origin(PyObject *x, const char *method)
{
    if (Py_TYPE(x) != &OriginType) {
        PyErr_Format(PyExc_TypeError, "%s: an origin is expected, not %.100s", method,
                     Py_TYPE(x)->tp_name);
        return 0;
    }
    return 1;
}

static int
is_ready(Ledger *l)
{
    if (l->watcher == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this ledger is closed, or was never opened");
        return 0;
    }
    return 1;
}

static PyObject *
find_method(PyObject *self, PyObject *value)
{
    Origin *origin = ledger_find((Ledger *)self, value);
    return Py_NewRef(origin == NULL ? Py_None : (PyObject *)origin);
}

static PyObject *
local_method(PyObject *self, PyObject *args)
{
    Ledger *l = (Ledger *)self;
    PyObject *index, *name, *value;
    if (!is_ready(l) || !PyArg_ParseTuple(args, "OOO:local", &index, &name, &value)) {
        return NULL;
    }
    PyObject *key = PyTuple_Pack(2, index, name);
    Origin *origin = key == NULL ? NULL : add_origin(l, l->edges[EDGE_LOCAL], NULL, key);
    Py_XDECREF(key);
    if (origin == NULL || identify(l, origin, value) < 0) {
        return NULL;
    }
    return Py_NewRef((PyObject *)origin);
}

static PyObject *
constant_method(PyObject *self, PyObject *value)
{
    Ledger *l = (Ledger *)self;
    Origin *origin = map_get(&l->constants, value);
    if (origin != NULL) {
        return Py_NewRef((PyObject *)origin);
    }
    if (!is_ready(l)) {
        return NULL;
    }
    origin = add_origin(l, l->edges[EDGE_CONST], NULL, value); /* its key keeps the value alive */
    if (origin == NULL || map_add(&l->constants, value, origin) < 0) {
        return NULL;
    }
    if (ledger_find(l, value) == NULL && know(l, origin, value) < 0) {
        return NULL;
    }
    return Py_NewRef((PyObject *)origin);
}

static PyObject *
read_method(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Ledger *l = (Ledger *)self;
    if (nargs != 4) {
        PyErr_SetString(PyExc_TypeError, "read(parent, edge, key, value) takes four arguments");
        return NULL;
    }
    if (!is_ready(l) || !is_origin(args[0], "read")) {
        return NULL;
    }
    for (int edge = 0; edge < EDGE_COUNT; edge++) {
        if (args[1] == l->edges[edge]) {
            return Py_XNewRef(
                (PyObject *)ledger_read(l, (Origin *)args[0], edge, args[2], args[3]));
        }
    }
    PyErr_SetString(PyExc_TypeError, "read: not an edge");
    return NULL;
}

static PyObject *
check_method(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Ledger *l = (Ledger *)self;
    if (nargs != 3 || !is_ready(l) || !is_origin(args[0], "check")) {
        return PyErr_Occurred() ? NULL
                                : PyErr_Format(PyExc_TypeError,
                                               "check(origin, fact, expected): three arguments");
    }
    if (ledger_check(l, (Origin *)args[0], args[1], args[2]) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
lacks_method(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Ledger *l = (Ledger *)self;
    if (nargs != 2 || !is_ready(l) || !is_origin(args[0], "lacks")) {
        return PyErr_Occurred()
                   ? NULL
                   : PyErr_Format(PyExc_TypeError, "lacks(origin, key) takes two arguments");
    }
    if (ledger_check(l, (Origin *)args[0], l->facts[FACT_LACKS], args[1]) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
touch_method(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Ledger *l = (Ledger *)self;
    if (nargs != 2 || !is_ready(l) || !is_origin(args[0], "touch")) {
        return PyErr_Occurred()
                   ? NULL
                   : PyErr_Format(PyExc_TypeError, "touch(origin, value) takes two arguments");
    }
    if (ledger_touch(l, (Origin *)args[0], args[1]) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
note_change_method(PyObject *self, PyObject *target)
{
    Ledger *l = (Ledger *)self;
    if (!is_ready(l) || PyList_Append(l->alive, target) < 0 ||
        ptrset_add(&l->changed, target) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

typedef int (*Shortcut)(Ledger *l, PyObject *owner, PyObject *name);

static PyObject *
take_shortcut(PyObject *self, PyObject *const *args, Py_ssize_t nargs, Shortcut shortcut)
{
    Ledger *l = (Ledger *)self;
    if (nargs != 2 || !PyUnicode_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "an object and a name are expected");
        return NULL;
    }
    int taken = is_ready(l) ? shortcut(l, args[0], args[1]) : -1; /* the caller holds both */
    return taken < 0 ? NULL : PyBool_FromLong(taken);
}

static PyObject *
attribute_method(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    return take_shortcut(self, args, nargs, shortcut_attribute);
}

static PyObject *
registered_method(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    return take_shortcut(self, args, nargs, shortcut_registered);
}

/* ---- beginning and end ---- */

static int
take_members(PyObject **members, PyObject *given, Py_ssize_t count)
{
    if (PyTuple_GET_SIZE(given) != count) {
        PyErr_SetString(PyExc_ValueError, "Ledger: as many edges and facts as recording.py has");
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_XSETREF(members[i], Py_NewRef(PyTuple_GET_ITEM(given, i)));
    }
    return 0;
}

static int
ledger_init(PyObject *self, PyObject *args, PyObject *kwds)
{
    static char *names[] = {"watcher", "check",    "edges",     "facts",
                            "kinds",   "ask_kind", "ask_value", NULL};
    Ledger *l = (Ledger *)self;
    PyObject *watcher, *check, *edges, *facts, *kinds, *ask_kind, *ask_value;
    if (!PyArg_ParseTupleAndKeywords(args, kwds, "O!O!O!O!O!OO:Ledger", names, &WatcherType,
                                     &watcher, &PyType_Type, &check, &PyTuple_Type, &edges,
                                     &PyTuple_Type, &facts, &PyDict_Type, &kinds, &ask_kind,
                                     &ask_value)) {
        return -1;
    }
    if (l->origins != NULL || !PyType_IsSubtype((PyTypeObject *)check, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "Ledger: opened once, with checks that are tuples");
        return -1;
    }
    if (take_members(l->edges, edges, EDGE_COUNT) < 0 ||
        take_members(l->facts, facts, FACT_COUNT) < 0) {
        return -1;
    }
    l->check = Py_NewRef(check);
    l->kinds = Py_NewRef(kinds);
    l->ask_kind = Py_NewRef(ask_kind);
    l->ask_value = Py_NewRef(ask_value);
    l->place = Py_NewRef(Py_None);
    l->alive = PyList_New(0);
    l->plans = PyDict_New();
    l->callable_modules = PyDict_New();
    l->origins = PyList_New(0);
    if (l->alive == NULL || l->plans == NULL || l->callable_modules == NULL || l->origins == NULL) {
        return -1;
    }
    l->watcher = (Watcher *)Py_NewRef(watcher);
    Py_XSETREF(l->watcher->ledger, Py_NewRef(self));
    return 0;
}

static int
ledger_traverse(PyObject *self, visitproc visit, void *arg)
{
    Ledger *l = (Ledger *)self;
    PyObject *members[] = {(PyObject *)l->watcher,
                           l->origins,
                           l->alive,
                           l->place,
                           l->check,
                           l->kinds,
                           l->ask_kind,
                           l->ask_value,
                           l->plans,
                           l->callable_modules,
                           l->generalise,
                           l->last_place,
                           l->note_tensor};
    for (size_t i = 0; i < sizeof(members) / sizeof(*members); i++) {
        Py_VISIT(members[i]);
    }
    for (int i = 0; i < EDGE_COUNT; i++) {
        Py_VISIT(l->edges[i]);
    }
    for (int i = 0; i < FACT_COUNT; i++) {
        Py_VISIT(l->facts[i]);
    }
    return 0;
}

static int
ledger_clear(PyObject *self)
{
    Ledger *l = (Ledger *)self;
    map_clear(&l->known);
    map_clear(&l->constants);
    ptrset_clear(&l->changed);
    if (l->watcher != NULL) {
        Watcher *watcher = l->watcher;
        l->watcher = NULL;
        if (watcher->ledger == self) {
            Py_CLEAR(watcher->ledger);
        }
        Py_DECREF(watcher);
    }
    Py_CLEAR(l->origins);
    Py_CLEAR(l->alive);
    Py_CLEAR(l->place);
    Py_CLEAR(l->last_place);
    Py_CLEAR(l->check);
    Py_CLEAR(l->kinds);
    Py_CLEAR(l->ask_kind);
    Py_CLEAR(l->ask_value);
    Py_CLEAR(l->generalise);
    Py_CLEAR(l->note_tensor);
    Py_CLEAR(l->plans);
    Py_CLEAR(l->callable_modules);
    for (int i = 0; i < EDGE_COUNT; i++) {
        Py_CLEAR(l->edges[i]);
    }
    for (int i = 0; i < FACT_COUNT; i++) {
        Py_CLEAR(l->facts[i]);
    }
    return 0;
}

/* The origins stay good; they forget their children, so that nothing waits for the collector. */
static PyObject *
close_method(PyObject *self, PyObject *Py_UNUSED(none))
{
    Ledger *l = (Ledger *)self;
    if (l->busy) {
        PyErr_SetString(PyExc_RuntimeError, "this ledger is in use");
        return NULL;
    }
    for (Py_ssize_t i = 0; l->origins != NULL && i < PyList_GET_SIZE(l->origins); i++) {
        PyObject *origin = PyList_GET_ITEM(l->origins, i);
        if (Py_TYPE(origin) == &OriginType) {
            Py_INCREF(origin);
            origin_prune((Origin *)origin);
            Py_DECREF(origin);
        }
    }
    Py_INCREF(self);
    (void)ledger_clear(self);
    Py_DECREF(self);
    Py_RETURN_NONE;
}

static void
ledger_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    (void)ledger_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef ledger_methods[] = {
    {"find", find_method, METH_O, "The origin of a known object, or None."},
    {"local", local_method, METH_VARARGS, "The origin of an argument slot: index, name, value."},
    {"constant", constant_method, METH_O, "The origin of what is its own guard: a class, a dict."},
    {"read", FAST(read_method), "Note that a value was found at a child."},
    {"check", FAST(check_method), "Add a check: origin, fact, expected."},
    {"lacks", FAST(lacks_method), "A dict of names has no such name."},
    {"touch", FAST(touch_method), "The program depends on an object's type."},
    {"note_change", note_change_method, METH_O, "An object is changed: no shortcuts."},
    {"read_attribute", FAST(attribute_method),
     "Note a read by plan; False: nothing is noted, or not all."},
    {"read_registered", FAST(registered_method),
     "Note a read of a module's part; False: nothing is noted, or not all."},
    {"close", close_method, METH_NOARGS, "Let go of everything but the origins that others hold."},
    {NULL},
};

static PyMemberDef ledger_members[] = {
    {"origins", T_OBJECT_EX, offsetof(Ledger, origins), READONLY, "Parents before children."},
    {"alive", T_OBJECT_EX, offsetof(Ledger, alive), READONLY, "Every object that was ever known."},
    {"place", T_OBJECT, offsetof(Ledger, place), 0, "What the next entries are due to."},
    {"generalise", T_OBJECT, offsetof(Ledger, generalise), 0,
     "Called with an origin and a number or tuple; True: no check."},
    {"note_tensor", T_OBJECT, offsetof(Ledger, note_tensor), 0, "Called with each known tensor."},
    {"plans", T_OBJECT_EX, offsetof(Ledger, plans), READONLY, "{type: {name: plan}}"},
    {"callable_modules", T_OBJECT_EX, offsetof(Ledger, callable_modules), READONLY, "{type: bool}"},
    {NULL},
};

PyTypeObject LedgerType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator._native.Ledger",
    .tp_basicsize = sizeof(Ledger),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_doc = "The table of known outside objects of one recording.",
    .tp_new = PyType_GenericNew,
    .tp_init = ledger_init,
    .tp_traverse = ledger_traverse,
    .tp_clear = ledger_clear,
    .tp_dealloc = ledger_dealloc,
    .tp_methods = ledger_methods,
    .tp_members = ledger_members,
};

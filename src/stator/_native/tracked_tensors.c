/* The tensors of a segment: looked up before an operation, compared and entered after it. See
 * watch/tensors/tensor_mode.py. */
#include "tracer.h"
#include <structmember.h>

/* ---- alias sets ---- */

static int
alias_set_init(PyObject *self, PyObject *args, PyObject *kwds)
{
    static char *names[] = {"version", "outside", NULL};
    PyObject *version;
    int outside;
    if (!PyArg_ParseTupleAndKeywords(args, kwds, "O$p:AliasSet", names, &version, &outside)) {
        return -1;
    }
    AliasSet *f = (AliasSet *)self;
    Py_XSETREF(f->version, Py_NewRef(version));
    f->outside = (char)outside;
    return 0;
}

static void
alias_set_dealloc(PyObject *self)
{
    Py_XDECREF(((AliasSet *)self)->version);
    Py_XDECREF((PyObject *)((AliasSet *)self)->memory);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef alias_set_members[] = {
    {"version", T_OBJECT, offsetof(AliasSet, version), 0, NULL},
    {"epoch", T_PYSSIZET, offsetof(AliasSet, epoch), 0, "Number of recorded writes."},
    {"outside", T_BOOL, offsetof(AliasSet, outside), 0, "Does its memory belong to an input?"},
    {"uncounted", T_BOOL, offsetof(AliasSet, uncounted), READONLY,
     "Were there writes that its version counter does not show?"},
    {NULL},
};

PyTypeObject AliasSetType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator._native.AliasSet",
    .tp_basicsize = sizeof(AliasSet),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc =
        "Tensors that share a version counter: a tensor, its views, what was detached from it.",
    .tp_new = PyType_GenericNew,
    .tp_init = alias_set_init,
    .tp_dealloc = alias_set_dealloc,
    .tp_members = alias_set_members,
};

/* `memory`: a set of tensors with the same memory and a counter of their own, or NULL. */
static AliasSet *
new_family(PyObject *version, AliasSet *memory)
{
    AliasSet *f = (AliasSet *)AliasSetType.tp_alloc(&AliasSetType, 0);
    if (f != NULL) {
        f->version = Py_NewRef(version);
        f->outside = memory != NULL && memory->outside;
        f->memory = (AliasSet *)Py_XNewRef((PyObject *)memory);
    }
    return f;
}

/* ---- known tensors ---- */

static void
tracked_fill(TrackedTensor *k, PyObject *node, PyObject *index, AliasSet *alias_set,
             PyObject *print)
{
    Py_XSETREF(k->node, Py_NewRef(node));
    Py_XSETREF(k->index, Py_NewRef(index));
    Py_XSETREF(k->alias_set, (AliasSet *)Py_NewRef((PyObject *)alias_set));
    Py_XSETREF(k->print, Py_NewRef(print));
    k->epoch = alias_set->epoch;
}

static int
is_print(PyObject *print)
{
    if (print == NULL || !PyTuple_Check(print) || PyTuple_GET_SIZE(print) != 5) {
        PyErr_SetString(PyExc_TypeError, "a fingerprint is a tuple of five");
        return 0;
    }
    return 1;
}

static int
tracked_init(PyObject *self, PyObject *args, PyObject *Py_UNUSED(kwds))
{
    PyObject *node, *index, *alias_set, *print;
    if (!PyArg_ParseTuple(args, "OO!O!O:TrackedTensor", &node, &PyTuple_Type, &index, &AliasSetType,
                          &alias_set, &print) ||
        !is_print(print)) {
        return -1;
    }
    tracked_fill((TrackedTensor *)self, node, index, (AliasSet *)alias_set, print);
    return 0;
}

static int
tracked_traverse(PyObject *self, visitproc visit, void *arg)
{
    TrackedTensor *k = (TrackedTensor *)self;
    Py_VISIT(k->node);
    Py_VISIT(k->index);
    Py_VISIT(k->print);
    Py_VISIT(k->reference);
    return 0;
}

static int
tracked_clear(PyObject *self)
{
    TrackedTensor *k = (TrackedTensor *)self;
    Py_CLEAR(k->node);
    Py_CLEAR(k->index);
    Py_CLEAR(k->alias_set);
    Py_CLEAR(k->print);
    Py_CLEAR(k->reference);
    return 0;
}

static void
tracked_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    (void)tracked_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef tracked_members[] = {
    {"node", T_OBJECT, offsetof(TrackedTensor, node), 0, NULL},
    {"index", T_OBJECT, offsetof(TrackedTensor, index), 0,
     "Which of the node's results, () if it has one."},
    {"alias_set", T_OBJECT, offsetof(TrackedTensor, alias_set), READONLY, NULL},
    {"epoch", T_PYSSIZET, offsetof(TrackedTensor, epoch), 0, NULL},
    {"reference", T_OBJECT, offsetof(TrackedTensor, reference), 0, NULL},
    {NULL},
};

static PyObject *
get_print(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *print = ((TrackedTensor *)self)->print;
    return Py_NewRef(print == NULL ? Py_None : print);
}

static int
set_print(PyObject *self, PyObject *print, void *Py_UNUSED(closure))
{
    if (!is_print(print)) {
        return -1;
    }
    Py_XSETREF(((TrackedTensor *)self)->print, Py_NewRef(print));
    return 0;
}

static PyGetSetDef tracked_getters[] = {
    {"print", get_print, set_print, "The fingerprint.", NULL},
    {NULL},
};

PyTypeObject TrackedTensorType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator._native.TrackedTensor",
    .tp_basicsize = sizeof(TrackedTensor),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "A tensor of this segment: its node, and its fingerprint after the last operation "
              "that touched it.",
    .tp_new = PyType_GenericNew,
    .tp_init = tracked_init,
    .tp_traverse = tracked_traverse,
    .tp_clear = tracked_clear,
    .tp_dealloc = tracked_dealloc,
    .tp_members = tracked_members,
    .tp_getset = tracked_getters,
};

/* An entry of the table or of the list of operands, whole: somebody may have cleared it. */
static int
is_whole(PyObject *value)
{
    if (Py_IS_TYPE(value, &TrackedTensorType)) {
        TrackedTensor *k = (TrackedTensor *)value;
        if (k->node != NULL && k->index != NULL && k->print != NULL && k->alias_set != NULL &&
            k->alias_set->version != NULL) {
            return 1;
        }
    }
    PyErr_SetString(PyExc_TypeError, "not a known tensor");
    return 0;
}

/* The entry of an object, or NULL without an exception unless there is an error. */
static PyObject *
find(Tracer *t, PyObject *tensor)
{
    PyObject *key = PyLong_FromVoidPtr(tensor);
    PyObject *found = key == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(t->known, key));
    Py_XDECREF(key);
    if (found != NULL && !is_whole(found)) {
        Py_CLEAR(found);
    }
    return found;
}

int
tracked_has(Tracer *t, PyObject *value)
{
    if (!is_tensor(value)) {
        return 0;
    }
    PyObject *found = find(t, value);
    Py_XDECREF(found);
    return found != NULL ? 1 : PyErr_Occurred() ? -1 : 0;
}

/* ---- before an operation ---- */

static int
same(PyObject *a, PyObject *b)
{
    return a == b ? 1 : PyObject_RichCompareBool(a, b, Py_EQ);
}

/* Do two fingerprints agree in everything but the version? */
static int
same_but_version(PyObject *a, PyObject *b)
{
    for (int i = 1; i < 5; i++) {
        int equal = same(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i));
        if (equal <= 0) {
            return equal;
        }
    }
    return 1;
}

/* The tensor as it is now against what is known of it: -1 with `BreakGraph` if it has changed
 * without a node. */
static int
compare(TrackedTensor *k, PyObject *tensor)
{
    PyObject *found = fingerprint_of(tensor, tracer_knows.strided);
    if (found == NULL) {
        return -1;
    }
    int version = same(PyTuple_GET_ITEM(found, 0), k->alias_set->version);
    int rest = version <= 0 ? -1 : same_but_version(found, k->print);
    if (version == 0) {
        tracer_drop("tensor-changed", "version");
    }
    else if (rest == 0 && k->epoch == k->alias_set->epoch) {
        tracer_drop("tensor-changed", "metadata");
        rest = -1;
    }
    if (rest < 0) {
        Py_DECREF(found);
        return -1;
    }
    Py_SETREF(k->print, found);
    k->epoch = k->alias_set->epoch;
    return 0;
}

PyObject *
tracked_lookup(Tracer *t, PyObject *tensor)
{
    PyObject *found = find(t, tensor);
    if (found == NULL) {
        if (PyErr_Occurred()) {
            return NULL;
        }
        static PyObject *name; /* interned once */
        if (name == NULL && (name = PyUnicode_InternFromString("_input")) == NULL) {
            return NULL;
        }
        found = PyObject_CallMethodOneArg((PyObject *)t, name, tensor);
        if (found != NULL && !is_whole(found)) {
            Py_CLEAR(found);
        }
        return found;
    }
    if (compare((TrackedTensor *)found, tensor) < 0) {
        Py_CLEAR(found);
    }
    return found;
}

/* A tensor of which the program gets the sizes. (Items of a tuple result have no node of their own
 * yet.) */
int
tracked_asked(Tracer *t, PyObject *known)
{
    if (!is_whole(known)) {
        return -1;
    }
    TrackedTensor *k = (TrackedTensor *)known;
    if (t->asked == NULL || !PyTuple_Check(k->index) || PyTuple_GET_SIZE(k->index) != 0) {
        return 0;
    }
    PyObject *node = Py_NewRef(k->node), *sizes = Py_NewRef(PyTuple_GET_ITEM(k->print, 3));
    int failed = PyDict_SetItem(t->asked, node, sizes);
    Py_DECREF(node);
    Py_DECREF(sizes);
    return failed;
}

/* ---- after an operation ---- */

/* An operand: borrowed from the list, which its caller holds. */
static int
operand(PyObject *tensors, Py_ssize_t i, PyObject **tensor, TrackedTensor **known)
{
    PyObject *pair = PyList_GET_ITEM(tensors, i);
    if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2 ||
        !is_whole(PyTuple_GET_ITEM(pair, 1))) {
        PyErr_SetString(PyExc_TypeError, "operands are pairs of a tensor and what is known of it");
        return -1;
    }
    *tensor = PyTuple_GET_ITEM(pair, 0);
    *known = (TrackedTensor *)PyTuple_GET_ITEM(pair, 1);
    return 0;
}

/* The operation that is entered next may have written to one of these. */
static void
note_outside(Tracer *t, const AliasSet *f)
{
    if (f->outside && !t->mutates) {
        t->mutates = 1;
        t->mutates_from = PyList_GET_SIZE(t->nodes);
    }
}

/* Did the operation write to this operand? Its alias set moves on.
 *
 * Inference tensors have no version: there the operation's name has to do, and any input may have
 * been written. */
static int
refresh_one(Tracer *t, PyObject *tensor, AliasSet *f, int in_place)
{
    PyObject *version = tensor_version(NULL, tensor);
    if (version == NULL) {
        return -1;
    }
    if (version == Py_None) {
        note_outside(t, f);
    }
    int wrote = same(version, f->version);
    wrote = wrote < 0 ? -1 : !wrote;
    if (wrote == 0 && in_place) {
        int grad = version == Py_None ? 0 : tensor_requires_grad(tensor);
        wrote = grad < 0 ? -1 : !grad;
    }
    if (wrote > 0) {
        Py_SETREF(f->version, Py_NewRef(version));
        f->epoch++;
        note_outside(t, f);
        for (AliasSet *other = f->memory; other != NULL; other = other->memory) {
            other->epoch++;
            other->uncounted = 1;
        }
    }
    Py_DECREF(version);
    return wrote;
}

/* The node of the operation comes next. */
static int
note_writer(Tracer *t)
{
    PyObject *place = PyLong_FromSsize_t(PyList_GET_SIZE(t->nodes));
    int failed = place == NULL || PyList_Append(t->writers, place) < 0;
    Py_XDECREF(place);
    return failed ? -1 : 0;
}

int
tracked_refresh(Tracer *t, PyObject *tensors, int in_place)
{
    int wrote = 0;
    PyObject *tensor;
    TrackedTensor *known;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); i++) {
        int this = operand(tensors, i, &tensor, &known) < 0
                       ? -1
                       : refresh_one(t, tensor, known->alias_set, in_place);
        if (this < 0) {
            return -1;
        }
        wrote |= this;
    }
    if (wrote && note_writer(t) < 0) {
        return -1;
    }
    for (Py_ssize_t i = 0; wrote && i < PyList_GET_SIZE(tensors); i++) {
        if (operand(tensors, i, &tensor, &known) < 0) {
            return -1;
        }
        PyObject *print = fingerprint_of(tensor, tracer_knows.strided);
        if (print == NULL) {
            return -1;
        }
        Py_SETREF(known->print, print);
        known->epoch = known->alias_set->epoch;
    }
    return wrote;
}

/* Does an operand share its version counter with a fresh result? They have one memory, or are views
 * of the same tensor, which may be no operand of anything. */
static int
shares_counter(PyObject *tensor, TrackedTensor *known, PyObject *base, PyObject *version)
{
    PyObject *of = base == Py_None ? Py_NewRef(Py_None) : tensor_view_base(tensor);
    if (of == NULL) {
        return -1;
    }
    int seen = base != Py_None && of == base;
    Py_DECREF(of);
    return seen ? same(known->alias_set->version, version) : 0;
}

/* Does this node read `.data`? That has the memory of its operand and a counter of its own, which
 * may stand at the same number. */
static int
reads_data(PyObject *node)
{
    PyObject *args = PyObject_GetAttrString(node, "args");
    if (args == NULL) {
        return -1;
    }
    PyObject *name = PyTuple_Check(args) && PyTuple_GET_SIZE(args) == 2 ? PyTuple_GET_ITEM(args, 1)
                                                                        : NULL;
    int found = name != NULL && PyUnicode_CheckExact(name) &&
                PyUnicode_CompareWithASCIIString(name, "data") == 0;
    Py_DECREF(args);
    return found;
}

/* What an operand of a fresh result has to do with it. 0: nothing, MEMORY: the same memory,
 * COUNTER: also the same version counter, -1: error */
enum { MEMORY = 1, COUNTER };

static int
relation(PyObject *tensor, TrackedTensor *known, PyObject *base, PyObject *print, PyObject *node)
{
    PyObject *version = PyTuple_GET_ITEM(print, 0), *pointer = PyTuple_GET_ITEM(print, 1);
    int shares = same(PyTuple_GET_ITEM(known->print, 1), pointer);
    if (shares <= 0) {
        int counter = shares < 0 ? -1 : shares_counter(tensor, known, base, version);
        return counter > 0 ? COUNTER : counter;
    }
    int counter = same(known->alias_set->version, version);
    int own = counter > 0 ? reads_data(node) : 0;
    return counter < 0 || own < 0 ? -1 : counter && !own ? COUNTER : MEMORY;
}

/* The alias set of a fresh result that is no view of a known tensor: that of an operand whose
 * counter it shares, or a new one. */
static AliasSet *
alias_set_among(PyObject *base, PyObject *print, PyObject *node, PyObject *tensors)
{
    int somewhere = PyObject_IsTrue(PyTuple_GET_ITEM(print, 1)), found = somewhere < 0 ? -1 : 0;
    AliasSet *of = NULL; /* of an operand with the same memory, rather of an outside one */
    for (Py_ssize_t i = 0; somewhere > 0 && found >= 0 && i < PyList_GET_SIZE(tensors); i++) {
        PyObject *tensor;
        TrackedTensor *known;
        found = operand(tensors, i, &tensor, &known) < 0
                    ? -1
                    : relation(tensor, known, base, print, node);
        if (found == COUNTER || (found == MEMORY && (of == NULL || !of->outside))) {
            Py_XSETREF(of, (AliasSet *)Py_NewRef((PyObject *)known->alias_set));
        }
        if (found == COUNTER) {
            return of;
        }
    }
    AliasSet *made = found < 0 ? NULL : new_family(PyTuple_GET_ITEM(print, 0), of);
    Py_XDECREF((PyObject *)of);
    return made;
}

/* The alias set of a fresh result: its base's, or that of an operand. */
static AliasSet *
alias_set_of(Tracer *t, PyObject *tensor, PyObject *print, PyObject *node, PyObject *tensors)
{
    PyObject *base = tensor_view_base(tensor);
    PyObject *found = base == NULL || base == Py_None ? NULL : find(t, base);
    AliasSet *alias_set = NULL;
    if (found != NULL) {
        alias_set = (AliasSet *)Py_NewRef((PyObject *)((TrackedTensor *)found)->alias_set);
    }
    else if (base != NULL && !PyErr_Occurred()) {
        alias_set = alias_set_among(base, print, node, tensors);
    }
    Py_XDECREF(found);
    Py_XDECREF(base);
    return alias_set;
}

/* It is forgotten when it dies. The reference's callback is called with the reference, which `pop`
 * takes for the answer if there is nothing to pop. */
static int
keep_while_alive(Tracer *t, PyObject *tensor, TrackedTensor *known)
{
    PyObject *key = PyLong_FromVoidPtr(tensor);
    PyObject *arguments[2] = {t->forget, key};
    PyObject *callback =
        key == NULL ? NULL : PyObject_Vectorcall(tracer_knows.partial, arguments, 2, NULL);
    PyObject *reference = callback == NULL ? NULL : PyWeakref_NewRef(tensor, callback);
    int failed = reference == NULL || PyDict_SetItem(t->known, key, (PyObject *)known) < 0;
    if (!failed) {
        Py_XSETREF(known->reference, Py_NewRef(reference));
    }
    Py_XDECREF(reference);
    Py_XDECREF(callback);
    Py_XDECREF(key);
    return failed ? -1 : 0;
}

int
tracked_enter(Tracer *t, PyObject *result, PyObject *node, PyObject *index, PyObject *tensors)
{
    PyObject *print = fingerprint_of(result, tracer_knows.strided);
    AliasSet *alias_set = print == NULL ? NULL : alias_set_of(t, result, print, node, tensors);
    TrackedTensor *known = alias_set == NULL
                               ? NULL
                               : (TrackedTensor *)TrackedTensorType.tp_alloc(&TrackedTensorType, 0);
    int failed = known == NULL;
    if (!failed) {
        tracked_fill(known, node, index, alias_set, print);
        failed = keep_while_alive(t, result, known) < 0;
    }
    Py_XDECREF(known);
    Py_XDECREF(alias_set);
    Py_XDECREF(print);
    return failed ? -1 : 0;
}

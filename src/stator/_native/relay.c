/* The replay of a segment that is nothing but a graph: called with the values that the guards
 * found, it calls the graph with the first of them, and gives back some of the graph's outputs, of
 * the values and of constants. Most segments are like that; all others have a replay written in
 * Python.
 */
#include "entry_table.h"

enum { ON_STACK = 8 }; /* so many inputs are handed on without asking for memory */

/* Where a part of the result comes from. */
enum { OUTPUT, VALUE, CONSTANT };

typedef struct {
    int from;
    Py_ssize_t index;   /* of an output or a value */
    PyObject *constant; /* owned, or NULL */
} RelayPart;

typedef struct {
    PyObject_HEAD
    PyObject *graph;   /* NULL: there is none */
    Py_ssize_t inputs; /* the graph's: that many values, the first ones */
    Py_ssize_t needed; /* how many values there must be */
    Py_ssize_t count;  /* of parts */
    RelayPart *parts;
    int is_tuple; /* the result is a tuple of the parts; else it is the only one */
    int cleared;  /* by the garbage collector */
} Relay;

/* Calls the graph. Backends mostly give back a bound method: its self is put before the inputs
 * here. */
static PyObject *
call_graph(const Relay *r, PyObject *const *values)
{
    PyObject *graph = Py_NewRef(r->graph), *out;
    if (r->inputs <= ON_STACK) {
        PyObject *arguments[1 + ON_STACK];
        for (Py_ssize_t i = 0; i < r->inputs; i++) {
            arguments[1 + i] = values[i];
        }
        if (PyMethod_Check(graph)) {
            arguments[0] = PyMethod_GET_SELF(graph);
            out = PyObject_Vectorcall(PyMethod_GET_FUNCTION(graph), arguments,
                                      (size_t)r->inputs + 1, NULL);
        }
        else {
            out = PyObject_Vectorcall(graph, arguments + 1,
                                      (size_t)r->inputs | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        }
    }
    else {
        out = PyObject_Vectorcall(graph, values, (size_t)r->inputs, NULL);
    }
    Py_DECREF(graph);
    return out;
}

static PyObject *
output(PyObject *out, Py_ssize_t index)
{
    if (PyTuple_CheckExact(out) && index < PyTuple_GET_SIZE(out)) {
        return Py_NewRef(PyTuple_GET_ITEM(out, index));
    }
    PyObject *number = PyLong_FromSsize_t(index);
    PyObject *found = number == NULL ? NULL : PyObject_GetItem(out, number);
    Py_XDECREF(number);
    return found;
}

static PyObject *
part(const RelayPart *p, PyObject *const *values, PyObject *out)
{
    if (p->from == OUTPUT) {
        return output(out, p->index);
    }
    return Py_NewRef(p->from == VALUE ? values[p->index] : p->constant);
}

static PyObject *
result(const Relay *r, PyObject *const *values, PyObject *out)
{
    if (!r->is_tuple) {
        return part(r->parts, values, out);
    }
    PyObject *made = PyTuple_New(r->count);
    for (Py_ssize_t i = 0; made != NULL && i < r->count; i++) {
        PyObject *item = part(&r->parts[i], values, out);
        if (item == NULL) {
            Py_CLEAR(made);
            break;
        }
        PyTuple_SET_ITEM(made, i, item);
    }
    return made;
}

/* The graph is a tape: its outputs need no tuple of their own. -1: it is not, or it has many; else
 * *made is the result, or NULL with an exception. */
static int
run_tape(const Relay *r, PyObject *const *values, PyObject **made)
{
    PyObject *outputs[ON_STACK];
    int count = r->graph == NULL ? -1 : tape_output_count(r->graph);
    if (count < 0 || count > ON_STACK || !r->is_tuple) {
        return -1;
    }
    PyObject *graph = Py_NewRef(r->graph);
    *made = NULL;
    if (tape_outputs(graph, values, r->inputs, outputs) == count) {
        *made = PyTuple_New(r->count);
        for (Py_ssize_t i = 0; *made != NULL && i < r->count; i++) {
            const RelayPart *p = &r->parts[i];
            if (p->from == OUTPUT && p->index >= count) {
                PyErr_SetString(PyExc_IndexError, "the graph has no such output");
                Py_CLEAR(*made);
                break;
            }
            PyTuple_SET_ITEM(
                *made, i, p->from == OUTPUT ? Py_NewRef(outputs[p->index]) : part(p, values, NULL));
        }
        for (int i = 0; i < count; i++) {
            Py_DECREF(outputs[i]);
        }
    }
    Py_DECREF(graph);
    return 0;
}

PyObject *
relay_run(PyObject *self, PyObject *values)
{
    Relay *r = (Relay *)self;
    if (!PyTuple_CheckExact(values) || PyTuple_GET_SIZE(values) < r->needed || r->cleared) {
        PyErr_SetString(PyExc_TypeError, "a replay takes the values that its guards found");
        return NULL;
    }
    PyObject *const *items = ((PyTupleObject *)values)->ob_item;
    PyObject *out = NULL, *made = NULL;
    Py_INCREF(self);
    if (run_tape(r, items, &made) == 0) {
        /* done */
    }
    else if (r->graph == NULL || (out = call_graph(r, items)) != NULL) {
        made = result(r, items, out);
    }
    Py_XDECREF(out);
    Py_DECREF(self);
    return made;
}

static PyObject *
relay_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *values;
    if (kwargs != NULL || !PyArg_ParseTuple(args, "O", &values)) {
        PyErr_SetString(PyExc_TypeError, "a replay takes the values that its guards found");
        return NULL;
    }
    return relay_run(self, values); /* `args` holds them */
}

/* ---- as an object ---- */

static int
part_from(Relay *r, RelayPart *p, PyObject *row)
{
    PyObject *what;
    if (!PyTuple_Check(row) || !PyArg_ParseTuple(row, "iO", &p->from, &what)) {
        return -1;
    }
    if (p->from == CONSTANT) {
        p->constant = Py_NewRef(what);
        return 0;
    }
    p->index = PyLong_AsSsize_t(what);
    if (p->index < 0 || (p->from != VALUE && (p->from != OUTPUT || r->graph == NULL))) {
        return -1;
    }
    if (p->from == VALUE && p->index >= r->needed) {
        r->needed = p->index + 1;
    }
    return 0;
}

static PyObject *
relay_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *graph, *parts;
    Py_ssize_t inputs;
    int is_tuple;
    if (!PyArg_ParseTuple(args, "OnO!p", &graph, &inputs, &PyTuple_Type, &parts, &is_tuple)) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(parts);
    Relay *r = (Relay *)type->tp_alloc(type, 0);
    if (r == NULL) {
        return NULL;
    }
    r->graph = graph == Py_None ? NULL : Py_NewRef(graph);
    r->inputs = r->needed = inputs;
    r->is_tuple = is_tuple;
    r->parts = PyMem_Calloc((size_t)count + 1, sizeof(RelayPart));
    int bad = r->parts == NULL || inputs < 0 || (!is_tuple && count != 1);
    for (Py_ssize_t i = 0; !bad && i < count; i++) {
        r->count = i + 1;
        bad = part_from(r, &r->parts[i], PyTuple_GET_ITEM(parts, i)) < 0;
    }
    if (bad) {
        Py_DECREF(r);
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "parts are pairs (where from, index or constant)");
        }
        return NULL;
    }
    return (PyObject *)r;
}

static int
relay_traverse(Relay *r, visitproc visit, void *arg)
{
    Py_VISIT(r->graph);
    for (Py_ssize_t i = 0; i < r->count; i++) {
        Py_VISIT(r->parts[i].constant);
    }
    return 0;
}

static int
relay_clear(Relay *r)
{
    r->cleared = 1;
    Py_CLEAR(r->graph);
    for (Py_ssize_t i = 0; i < r->count; i++) {
        Py_CLEAR(r->parts[i].constant);
    }
    return 0;
}

static void
relay_dealloc(Relay *r)
{
    PyObject_GC_UnTrack(r);
    relay_clear(r);
    PyMem_Free(r->parts);
    Py_TYPE(r)->tp_free(r);
}

static PyMemberDef relay_members[] = {
    {"graph", T_OBJECT, offsetof(Relay, graph), READONLY, "The graph that is called, or None."},
    {NULL},
};

static PyObject *
relay_settle(Relay *r, PyObject *graph)
{
    if (r->graph == NULL) {
        PyErr_SetString(PyExc_ValueError, "there is no graph");
        return NULL;
    }
    Py_SETREF(r->graph, Py_NewRef(graph));
    Py_RETURN_NONE;
}

static PyMethodDef relay_methods[] = {
    {"settle", (PyCFunction)relay_settle, METH_O,
     "settle(graph): this is the graph to be called from now on."},
    {NULL},
};

PyTypeObject RelayType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator._native.Relay",
    .tp_doc = "Relay(graph, inputs, parts, is_tuple): a replay that calls the graph, or none, with "
              "the first `inputs` values, and gives back the parts: pairs (OUTPUT, VALUE or "
              "CONSTANT, index or constant).",
    .tp_basicsize = sizeof(Relay),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = relay_new,
    .tp_dealloc = (destructor)relay_dealloc,
    .tp_traverse = (traverseproc)relay_traverse,
    .tp_clear = (inquiry)relay_clear,
    .tp_call = relay_call,
    .tp_methods = relay_methods,
    .tp_members = relay_members,
};

int
relay_setup(PyObject *module)
{
#define ADD(name) || PyModule_AddIntConstant(module, "FROM_" #name, name) < 0
    return PyModule_AddType(module, &RelayType) < 0 ADD(OUTPUT) ADD(VALUE) ADD(CONSTANT) ? -1 : 0;
}

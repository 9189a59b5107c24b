/* The tracer: torch's state, arguments and nodes of the operations of one segment. Mechanism of
 * watch/tensors/tensor_mode.py, which says what it is for; operation.c is who uses it. */
#include "tracer.h"
#include <structmember.h>

TracerSetup tracer_knows;

enum { INPUT_NODE, UNCOMMON, CHECK_STATE, META, TRACE, NAMES };
static PyObject *names[NAMES];

void
tracer_drop(const char *reason, const char *detail)
{
    PyObject *exc = PyObject_CallFunction(tracer_knows.break_graph, "ss", reason, detail);
    if (exc != NULL) {
        error_put(exc);
    }
}

/* ---- torch's state ---- */

static int
same(PyObject *a, PyObject *b)
{
    return a == b ? 1 : PyObject_RichCompareBool(a, b, Py_EQ);
}

static int
same_answers(PyObject *readers, PyObject *answers)
{
    int equal = 1;
    for (Py_ssize_t i = 0; equal > 0 && i < PyTuple_GET_SIZE(readers); i++) {
        PyObject *answer = PyObject_CallNoArgs(PyTuple_GET_ITEM(readers, i));
        equal = answer == NULL ? -1 : same(answer, PyTuple_GET_ITEM(answers, i));
        Py_XDECREF(answer);
    }
    return equal;
}

static int
same_level(PyObject *state)
{
    PyObject *level =
        Py_XNewRef(PyDict_GetItemWithError(tracer_knows.namespace, tracer_knows.level));
    PyObject *wanted = PyTuple_GET_ITEM(state, tracer_knows.level_index);
    int equal = level != NULL ? same(level, wanted) : PyErr_Occurred() ? -1 : 0;
    Py_XDECREF(level);
    return equal;
}

static int
state_as_before(Tracer *t)
{
    PyObject *readers = tracer_knows.readers, *answers = Py_XNewRef(t->answers),
             *state = Py_XNewRef(t->expected);
    int equal = answers != NULL && PyTuple_Check(answers) &&
                PyTuple_GET_SIZE(answers) == PyTuple_GET_SIZE(readers) && state != NULL &&
                PyTuple_Check(state) && PyTuple_GET_SIZE(state) > tracer_knows.level_index;
    if (equal) {
        equal = same_answers(readers, answers);
    }
    if (equal > 0) {
        equal = same_level(state);
    }
    Py_XDECREF(answers);
    Py_XDECREF(state);
    return equal;
}

int
tracer_check_state(Tracer *t)
{
    int equal = state_as_before(t);
    if (equal == 0) {
        PyObject *done = PyObject_CallMethodNoArgs((PyObject *)t, names[CHECK_STATE]);
        Py_XDECREF(done);
        return done == NULL ? -1 : 0;
    }
    return equal < 0 ? -1 : 0;
}

/* ---- nodes ---- */

/* Does a code object belong to torch or to us? */
static int
is_own(Tracer *t, PyCodeObject *code)
{
    if (ptrset_has(&t->own_codes, code)) {
        return 1;
    }
    if (ptrset_has(&t->user_codes, code)) {
        return 0;
    }
    int own = 0;
    for (Py_ssize_t i = 0; own == 0 && i < PyTuple_GET_SIZE(tracer_knows.folders); i++) {
        PyObject *folder = PyTuple_GET_ITEM(tracer_knows.folders, i);
        own = (int)PyUnicode_Tailmatch(code->co_filename, folder, 0, PY_SSIZE_T_MAX, -1);
    }
    return own < 0 || ptrset_add(own ? &t->own_codes : &t->user_codes, code) < 0 ? -1 : own;
}

static PyObject *
line_in(Tracer *t, PyCodeObject *code, Py_ssize_t unit)
{
    PyObject *key = Py_BuildValue("nn", (Py_ssize_t)code, unit);
    PyObject *line = key == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(t->lines, key));
    if (key != NULL && line == NULL && !PyErr_Occurred()) {
        int number = PyCode_Addr2Line(code, (int)unit * (int)sizeof(_Py_CODEUNIT));
        line = PyUnicode_FromFormat("File \"%U\", line %d, in %U", code->co_filename, number,
                                    code->co_name);
        if (line != NULL && PyDict_SetItem(t->lines, key, line) < 0) {
            Py_CLEAR(line);
        }
    }
    Py_XDECREF(key);
    return line;
}

/* Where in the user's program the operation stands: the innermost frame outside of torch and of
 * stator. */
static PyObject *
user_line(Tracer *t)
{
    Frame *f = current_frame(PyThreadState_Get());
    if (f != NULL && !frame_is_python(f)) {
        f = frame_caller(f);
    }
    for (; f != NULL; f = frame_caller(f)) {
        int own = is_own(t, frame_code(f));
        if (own <= 0) {
            return own < 0 ? NULL : line_in(t, frame_code(f), frame_unit(f));
        }
    }
    return PyUnicode_FromString("");
}

/* A node for what the program does now, named after the variable that it goes to. */
PyObject *
tracer_node(Tracer *t, PyObject *op, PyObject *target, PyObject *args, PyObject *kwargs,
            PyObject *label)
{
    PyObject *probe = Py_NewRef(t->watcher->last_probe), *stores = NULL;
    if (Py_IS_TYPE(probe, &ProbeType)) {
        stores = ((Probe *)probe)->stores;
    }
    if (stores != NULL && PyUnicode_Check(stores) && PyUnicode_GET_LENGTH(stores) > 0) {
        label = stores;
    }
    if (t->graph == NULL) {
        t->graph = t->make_graph == NULL ? NULL : PyObject_CallNoArgs(t->make_graph);
    }
    PyObject *arguments[] = {t->graph, label, op, target, args, kwargs};
    PyObject *node =
        t->graph == NULL ? NULL : PyObject_Vectorcall(tracer_knows.node, arguments, 6, NULL);
    Py_DECREF(probe);
    PyObject *meta = node == NULL ? NULL : PyObject_GetAttr(node, names[META]);
    PyObject *line = meta == NULL ? NULL : user_line(t);
    if (line == NULL || PyObject_SetItem(meta, names[TRACE], line) < 0 ||
        PyList_Append(t->nodes, node) < 0) {
        Py_CLEAR(node);
    }
    Py_XDECREF(line);
    Py_XDECREF(meta);
    return node;
}

/* ---- arguments ---- */

static PyObject *argument(Tracer *t, PyObject *value, PyObject *tensors);

/* The node that is this tensor; items of a tuple result get theirs when first used. */
static PyObject *
tensor_argument(Tracer *t, PyObject *tensor, PyObject *tensors)
{
    PyObject *known = tracked_lookup(t, tensor);
    PyObject *pair = known == NULL ? NULL : PyTuple_Pack(2, tensor, known), *node = NULL;
    if (pair != NULL && PyList_Append(tensors, pair) == 0) {
        TrackedTensor *k = (TrackedTensor *)known;
        node = k->index == NULL || PyObject_Length(k->index) != 0
                   ? PyObject_CallMethodOneArg((PyObject *)t, names[INPUT_NODE], known)
                   : Py_NewRef(k->node);
    }
    Py_XDECREF(pair);
    Py_XDECREF(known);
    return node;
}

PyObject *
tracer_arguments(Tracer *t, PyObject *values, PyObject *tensors)
{
    Py_ssize_t count = PyTuple_GET_SIZE(values);
    PyObject *result = PyTuple_New(count);
    for (Py_ssize_t i = 0; result != NULL && i < count; i++) {
        PyObject *item = argument(t, PyTuple_GET_ITEM(values, i), tensors);
        if (item == NULL) {
            Py_CLEAR(result);
            break;
        }
        PyTuple_SET_ITEM(result, i, item);
    }
    return result;
}

PyObject *
tracer_keywords(Tracer *t, PyObject *values, PyObject *tensors)
{
    PyObject *result = PyDict_New(), *items = result == NULL ? NULL : PyDict_Items(values);
    for (Py_ssize_t i = 0; items != NULL && i < PyList_GET_SIZE(items); i++) {
        PyObject *pair = PyList_GET_ITEM(items, i);
        PyObject *value = argument(t, PyTuple_GET_ITEM(pair, 1), tensors);
        int failed = value == NULL || PyDict_SetItem(result, PyTuple_GET_ITEM(pair, 0), value) < 0;
        Py_XDECREF(value);
        if (failed) {
            Py_CLEAR(items);
        }
    }
    if (items == NULL) {
        Py_CLEAR(result);
    }
    Py_XDECREF(items);
    return result;
}

/* The node that is this number, or the value itself. */
static PyObject *
simple_argument(Tracer *t, PyObject *value)
{
    if (PyDict_GET_SIZE(t->scalars) == 0) {
        return Py_NewRef(value);
    }
    PyObject *key = PyLong_FromVoidPtr(value);
    PyObject *pair = key == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(t->scalars, key));
    Py_XDECREF(key);
    if (pair == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(value);
    }
    PyObject *node = PySequence_GetItem(pair, 1);
    Py_DECREF(pair);
    return node;
}

/* A value as it stands in the graph; tensors are looked up and added to the operands. */
static PyObject *
argument(Tracer *t, PyObject *value, PyObject *tensors)
{
    if (is_tensor(value)) {
        return tensor_argument(t, value, tensors);
    }
    PyTypeObject *type = Py_TYPE(value);
    int simple = value == Py_None || type == &PyLong_Type || type == &PyFloat_Type ||
                 PySet_Contains(tracer_knows.simple, (PyObject *)type);
    if (simple != 0) {
        return simple < 0 ? NULL : simple_argument(t, value);
    }
    if (type == &PyTuple_Type && ledger_find(t->ledger, value) == NULL) {
        return tracer_arguments(t, value, tensors);
    }
    return PyObject_CallMethodObjArgs((PyObject *)t, names[UNCOMMON], value, tensors, NULL);
}

/* ---- the tracer ---- */

static int
tracer_init(PyObject *self, PyObject *args, PyObject *kwds)
{
    PyObject *watcher, *ledger, *make_graph, *nodes, *state;
    if (kwds != NULL ||
        !PyArg_ParseTuple(args, "O!O!OO!O!:Tracer", &WatcherType, &watcher, &LedgerType, &ledger,
                          &make_graph, &PyList_Type, &nodes, &PyTuple_Type, &state)) {
        return -1;
    }
    Tracer *t = (Tracer *)self;
    if (t->known != NULL || tracer_knows.break_graph == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a tracer is made once, and after tracer_learn");
        return -1;
    }
    PyObject *known = PyDict_New();
    t->forget = known == NULL ? NULL : PyObject_GetAttrString(known, "pop");
    t->lines = PyDict_New();
    t->scalars = PyDict_New();
    t->writers = PyList_New(0);
    t->asked = PyDict_New();
    if (t->asked == NULL || t->forget == NULL || t->lines == NULL || t->scalars == NULL ||
        t->writers == NULL) {
        Py_XDECREF(known);
        return -1;
    }
    t->watcher = (Watcher *)Py_NewRef(watcher);
    t->ledger = (Ledger *)Py_NewRef(ledger);
    t->make_graph = Py_NewRef(make_graph);
    t->nodes = Py_NewRef(nodes);
    t->expected = Py_NewRef(state);
    t->answers = Py_NewRef(Py_None);
    t->last_effect = -1;
    t->own_codes.owning = t->user_codes.owning = 1;
    t->known = known; /* last: it tells that the tracer is whole */
    return 0;
}

static int
tracer_traverse(PyObject *self, visitproc visit, void *arg)
{
    Tracer *t = (Tracer *)self;
    Py_VISIT(t->watcher);
    Py_VISIT(t->ledger);
    Py_VISIT(t->known);
    Py_VISIT(t->forget);
    Py_VISIT(t->make_graph);
    Py_VISIT(t->graph);
    Py_VISIT(t->nodes);
    Py_VISIT(t->lines);
    Py_VISIT(t->scalars);
    Py_VISIT(t->writers);
    Py_VISIT(t->asked);
    Py_VISIT(t->shapes);
    Py_VISIT(t->expected);
    Py_VISIT(t->answers);
    int stop = ptrset_traverse(&t->own_codes, visit, arg);
    return stop ? stop : ptrset_traverse(&t->user_codes, visit, arg);
}

static int
tracer_clear(PyObject *self)
{
    Tracer *t = (Tracer *)self;
    Py_CLEAR(t->known); /* first: nothing runs through it from here on */
    Py_CLEAR(t->watcher);
    Py_CLEAR(t->ledger);
    Py_CLEAR(t->forget);
    Py_CLEAR(t->make_graph);
    Py_CLEAR(t->graph);
    Py_CLEAR(t->nodes);
    Py_CLEAR(t->lines);
    Py_CLEAR(t->scalars);
    Py_CLEAR(t->writers);
    Py_CLEAR(t->asked);
    Py_CLEAR(t->shapes);
    Py_CLEAR(t->expected);
    Py_CLEAR(t->answers);
    ptrset_clear(&t->own_codes);
    ptrset_clear(&t->user_codes);
    return 0;
}

static void
tracer_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    (void)tracer_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static int
is_whole(PyObject *self)
{
    if (((Tracer *)self)->known == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this tracer was not made, or was garbage already");
        return 0;
    }
    return 1;
}

static PyObject *
lookup_method(PyObject *self, PyObject *tensor)
{
    return is_whole(self) ? tracked_lookup((Tracer *)self, tensor) : NULL;
}

static PyObject *
argument_method(PyObject *self, PyObject *args)
{
    PyObject *value, *tensors;
    if (!is_whole(self) ||
        !PyArg_ParseTuple(args, "OO!:argument", &value, &PyList_Type, &tensors)) {
        return NULL;
    }
    return argument((Tracer *)self, value, tensors);
}

static PyObject *
refresh_method(PyObject *self, PyObject *args)
{
    PyObject *tensors;
    int in_place;
    if (!is_whole(self) ||
        !PyArg_ParseTuple(args, "O!p:refresh", &PyList_Type, &tensors, &in_place)) {
        return NULL;
    }
    int wrote = tracked_refresh((Tracer *)self, tensors, in_place);
    return wrote < 0 ? NULL : PyBool_FromLong(wrote);
}

static PyObject *
enter_method(PyObject *self, PyObject *args)
{
    PyObject *tensor, *node, *index, *tensors;
    if (!is_whole(self) ||
        !PyArg_ParseTuple(args, "OOO!O!:enter", &tensor, &node, &PyTuple_Type, &index, &PyList_Type,
                          &tensors) ||
        tracked_enter((Tracer *)self, tensor, node, index, tensors) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
node_method(PyObject *self, PyObject *args)
{
    PyObject *op, *target, *arguments, *kwargs, *label;
    if (!is_whole(self) ||
        !PyArg_ParseTuple(args, "OOOOO:node", &op, &target, &arguments, &kwargs, &label)) {
        return NULL;
    }
    return tracer_node((Tracer *)self, op, target, arguments, kwargs, label);
}

static PyObject *
asked_method(PyObject *self, PyObject *known)
{
    return !is_whole(self) || tracked_asked((Tracer *)self, known) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef tracer_methods[] = {
    {"ask", asked_method, METH_O, "The program asks for the sizes of a known tensor."},
    {"lookup", lookup_method, METH_O,
     "The record of a tensor, compared with it; outside tensors become inputs."},
    {"argument", argument_method, METH_VARARGS,
     "A value as it stands in the graph; its tensors join the operands."},
    {"refresh", refresh_method, METH_VARARGS,
     "After an operation: did it write? The alias sets written to move on."},
    {"enter", enter_method, METH_VARARGS,
     "A result that is not known: tensor, node, index in its result, operands."},
    {"node", node_method, METH_VARARGS,
     "A new node, named after the variable that its result goes to."},
    {NULL},
};

static PyMemberDef tracer_members[] = {
    {"known", T_OBJECT_EX, offsetof(Tracer, known), READONLY,
     "{identity: what is known of the tensor}"},
    {"scalars", T_OBJECT_EX, offsetof(Tracer, scalars), READONLY, "{identity: (number, node)}"},
    {"writers", T_OBJECT_EX, offsetof(Tracer, writers), READONLY,
     "Places of the operations that wrote to a tensor."},
    {"asked", T_OBJECT_EX, offsetof(Tracer, asked), READONLY,
     "{node: sizes}, of those that the program has asked for."},
    {"shapes", T_OBJECT, offsetof(Tracer, shapes), 0,
     "Called with every operation's node and result."},
    {"operations", T_PYSSIZET, offsetof(Tracer, operations), 0, NULL},
    {"last_effect", T_LONGLONG, offsetof(Tracer, last_effect), 0,
     "Number of the probe behind which something was written or a random number drawn."},
    {"expected", T_OBJECT_EX, offsetof(Tracer, expected), 0, "torch's state as it should be."},
    {"answers", T_OBJECT_EX, offsetof(Tracer, answers), 0,
     "Of the readers, while the state is as expected; or None."},
    {"active", T_BOOL, offsetof(Tracer, active), 0, NULL},
    {"mutates", T_BOOL, offsetof(Tracer, mutates), 0, "Is an input written to?"},
    {"acted", T_BOOL, offsetof(Tracer, acted), 0, "An operator with a body in Python has run."},
    {"fails", T_BOOL, offsetof(Tracer, fails), 0, "May an operation fail for other data?"},
    {"mutates_from", T_PYSSIZET, offsetof(Tracer, mutates_from), READONLY,
     "The place of the first operation that wrote to an input."},
    {NULL},
};

PyTypeObject TracerType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator._native.Tracer",
    .tp_basicsize = sizeof(Tracer),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_doc = "The tensors and nodes of one segment: watcher, ledger, who makes the graph, list of "
              "its operations, torch's state.",
    .tp_new = PyType_GenericNew,
    .tp_init = tracer_init,
    .tp_traverse = tracer_traverse,
    .tp_clear = tracer_clear,
    .tp_dealloc = tracer_dealloc,
    .tp_methods = tracer_methods,
    .tp_members = tracer_members,
};

/* ---- the module's part ---- */

static PyObject *
tracer_learn(PyObject *Py_UNUSED(module), PyObject *args)
{
    TracerSetup n;
    if (!PyArg_ParseTuple(args, "OO!OOOOO!OO!O!UnO!O:tracer_learn", &n.break_graph, &PyDict_Type,
                          &n.op_infos, &n.spell, &n.node, &n.nothing, &n.strided, &PyTuple_Type,
                          &n.tensors, &n.simple, &PyTuple_Type, &n.readers, &PyDict_Type,
                          &n.namespace, &n.level, &n.level_index, &PyTuple_Type, &n.folders,
                          &n.partial)) {
        return NULL;
    }
    PyObject *kept[] = {n.break_graph, n.op_infos, n.spell,  n.node,    n.nothing,
                        n.strided,     n.tensors,  n.simple, n.readers, n.namespace,
                        n.level,       n.folders,  n.partial};
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
        Py_INCREF(kept[i]); /* what was learned before may be in use: it is kept, too */
    }
    tracer_knows = n;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"tracer_learn", tracer_learn, METH_VARARGS,
     "What the tensor mode works with; see TracerSetup in tracer.h."},
    {NULL},
};

int
tracer_setup(PyObject *module)
{
    static const char *const texts[NAMES] = {"node_of", "_uncommon", "_check_state", "meta",
                                             "stack_trace"};
    for (int i = 0; i < NAMES; i++) {
        if ((names[i] = PyUnicode_InternFromString(texts[i])) == NULL) {
            return -1;
        }
    }
    if (operation_setup(module) < 0 || PyModule_AddFunctions(module, functions) < 0) {
        return -1;
    }
    return PyModule_AddType(module, &AliasSetType) < 0 ||
                   PyModule_AddType(module, &TrackedTensorType) < 0 ||
                   PyModule_AddType(module, &TracerType) < 0
               ? -1
               : 0;
}

/* Guards of one recording, compiled: made from the plain data of `replay.engine`, which are checked
 * here once, so that the walk (walk.c) can rely on them. */
#include "digest.h"

PyObject *hook_names[HOOKS], *method_names[3];

/* ---- making ---- */

static int
is_key(PyObject *key)
{
    return PyUnicode_CheckExact(key) || PyLong_CheckExact(key);
}

static int
is_member(PyObject *descriptor)
{
    if (!Py_IS_TYPE(descriptor, &PyMemberDescr_Type)) {
        return 0;
    }
    PyMemberDef *def = ((PyMemberDescrObject *)descriptor)->d_member;
    return def->type == T_OBJECT || def->type == T_OBJECT_EX;
}

static int
is_super_key(PyObject *key)
{
    return PyTuple_CheckExact(key) && PyTuple_GET_SIZE(key) == 2 &&
           PyType_Check(PyTuple_GET_ITEM(key, 0)) && PyUnicode_CheckExact(PyTuple_GET_ITEM(key, 1));
}

static int
refuse(const char *what)
{
    PyErr_Format(PyExc_ValueError, "guards: %s", what);
    return -1;
}

/* The number that goes with an edge's key or a check's expectation: a hash where it is looked
 * up. */
static int
hash_into(PyObject *key, Py_ssize_t *number)
{
    *number = PyObject_Hash(key);
    return *number == -1 ? -1 : 0;
}

/* Facts that come as one and the same tuple are kept once: they stay in the processor's cache. */
static int
tensor_from(Guards *g, GuardCheck *c, PyObject *tuple)
{
    for (int i = 0; i < g->tensor_count; i++) {
        if (g->tensors[i]->source == tuple) {
            c->tensor = g->tensors[i];
            return 0;
        }
    }
    c->tensor = tensor_facts_new(tuple);
    if (c->tensor == NULL) {
        return -1;
    }
    g->tensors[g->tensor_count++] = c->tensor;
    return 0;
}

/* A small number as the object that CPython keeps for it: what is compared is mostly that very
 * object. */
static int
shared_number(PyObject **expected)
{
    if (PyLong_CheckExact(*expected)) {
        int overflow;
        long value = PyLong_AsLongAndOverflow(*expected, &overflow);
        PyObject *shared = overflow != 0 ? Py_NewRef(*expected) : PyLong_FromLong(value);
        if (shared == NULL) {
            return -1;
        }
        Py_SETREF(*expected, shared);
    }
    return 0;
}

/* Is this what a check that takes it as it is relies on? */
static int
is_expected(int fact, PyObject *expected)
{
    switch (fact) {
    case CHECK_TYPE:
        return PyType_Check(expected) ? 0 : refuse("TYPE takes a type");
    case CHECK_KEYS:
        return PyTuple_CheckExact(expected) ? 0 : refuse("KEYS takes a tuple");
    case CHECK_CODE:
        return PyTuple_CheckExact(expected) && PyTuple_GET_SIZE(expected) == 2
                   ? 0
                   : refuse("CODE takes a pair");
    case CHECK_NO_ENTRY:
        return PyUnicode_CheckExact(expected) ? 0 : refuse("NO_ENTRY takes a name");
    case CHECK_NO_SLOT:
        return is_member(expected) ? 0 : refuse("NO_SLOT takes a member descriptor");
    case CHECK_IS:
    case CHECK_UNSET:
    case CHECK_ASK:
        return 0;
    default:
        return refuse("no such fact");
    }
}

static int
check_from(Guards *g, GuardCheck *c, PyObject *row)
{
    PyObject *expected;
    int lasting;
    if (!PyTuple_Check(row) ||
        !PyArg_ParseTuple(row, "iiiiO", &c->fact, &lasting, &c->origin, &c->index, &expected)) {
        return PyErr_Occurred() ? -1 : refuse("a check is a tuple of five");
    }
    c->expected = Py_NewRef(expected);
    switch (c->fact) {
    case CHECK_TENSOR:
        return tensor_from(g, c, expected);
    case CHECK_LEN:
        c->number = PyLong_AsSsize_t(expected);
        return c->number == -1 && PyErr_Occurred() ? -1 : 0;
    case CHECK_SPECIALS:
        c->number = (Py_ssize_t)PyLong_AsUnsignedLong(expected);
        return PyErr_Occurred() ? -1 : 0;
    case CHECK_HAS:
    case CHECK_LACKS:
        return is_key(expected) ? hash_into(expected, &c->number)
                                : refuse("a key is a str or an int");
    case CHECK_EQUAL:
        return shared_number(&c->expected);
    case CHECK_UNHOOKED:
        c->hooks = PyMem_Calloc(HOOKS, sizeof(PyObject *));
        return c->hooks == NULL ? -1 : 0;
    default:
        return is_expected(c->fact, expected);
    }
}

/* The checks of a node, which come sorted by how long they last. */
static int
checks_from(Guards *g, Node *n, PyObject *rows, Py_ssize_t capacity)
{
    n->check = g->check_count;
    int last = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(rows); i++) {
        PyObject *row = PyList_GET_ITEM(rows, i);
        int lasting = PyTuple_Check(row) && PyTuple_GET_SIZE(row) == 5
                          ? (int)PyLong_AsLong(PyTuple_GET_ITEM(row, 1))
                          : -1;
        if (lasting < last || lasting > LASTING_FIXED || g->check_count >= capacity) {
            return PyErr_Occurred() ? -1 : refuse("checks are sorted by how long they last");
        }
        last = lasting;
        GuardCheck *c = &g->checks[g->check_count++];
        if (check_from(g, c, row) < 0) {
            return -1;
        }
        *(lasting == LASTING_LIVE ? &n->live : lasting == LASTING_OWN ? &n->own : &n->fixed) += 1;
    }
    return 0;
}

static int
wants_nothing(int edge)
{
    return edge == FETCH_CONST || edge == FETCH_NAMESPACE || edge == FETCH_SELF ||
           edge == FETCH_CELL || edge == FETCH_CALL || edge == FETCH_GRAD;
}

/* Are key and number what fetching relies on? */
static int
edge_from(Node *n)
{
    switch (n->edge) {
    case FETCH_KEY:
        return is_key(n->key) ? hash_into(n->key, &n->number) : refuse("a key is a str or an int");
    case FETCH_MEMBER:
        return is_member(n->key) ? 0 : refuse("MEMBER takes a member descriptor");
    case FETCH_MRO:
        return PyUnicode_CheckExact(n->key) ? 0 : refuse("MRO takes a name");
    case FETCH_SUPER:
        return is_super_key(n->key) ? 0 : refuse("SUPER takes a class and a name");
    case FETCH_FUNCTION:
        return n->number >= 0 && n->number < PART_COUNT ? 0 : refuse("a function has no such part");
    case FETCH_LOCAL:
    case FETCH_INDEX:
    case FETCH_KEYED:
        return n->number >= 0 ? 0 : refuse("an index is not negative");
    default:
        return wants_nothing(n->edge) ? 0 : refuse("no such edge");
    }
}

static int
node_from(Guards *g, int index, PyObject *row, Py_ssize_t nodes, Py_ssize_t checks)
{
    Node *n = &g->nodes[index];
    PyObject *key, *rows;
    int edge, version;
    if (!PyTuple_Check(row) ||
        !PyArg_ParseTuple(row, "iiOniiiO!", &edge, &n->parent, &key, &n->number, &version,
                          &n->past_fixed, &n->origin, &PyList_Type, &rows)) {
        return PyErr_Occurred() ? -1 : refuse("a node is a tuple of eight");
    }
    int root = edge == FETCH_LOCAL || edge == FETCH_CONST;
    if (edge < 0 || edge >= FETCH_COUNT || version < VERSION_NONE || version > VERSION_TYPE ||
        (root ? n->parent != -1 : n->parent < 0 || n->parent >= index) || n->past_fixed <= index ||
        n->past_fixed > nodes) {
        return refuse("parents come before their children");
    }
    n->edge = (unsigned char)edge;
    n->version = (unsigned char)version;
    n->is_entry = edge == FETCH_KEY || edge == FETCH_MRO || edge == FETCH_SUPER;
    n->key = Py_NewRef(key);
    if (edge == FETCH_KEYED && n->number >= index) {
        return refuse("keys come before what they are keys of");
    }
    return edge_from(n) < 0 ? -1 : checks_from(g, n, rows, checks);
}

/* A list of node numbers; -1 only where `gaps` are allowed. */
static int *
numbers_from(Guards *g, PyObject *tuple, int gaps)
{
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    int *numbers = PyMem_Calloc((size_t)count + 1, sizeof(int));
    for (Py_ssize_t i = 0; numbers != NULL && i < count; i++) {
        long number = PyLong_AsLong(PyTuple_GET_ITEM(tuple, i));
        if (number < (gaps ? -1 : 0) || number >= g->node_count) {
            if (!PyErr_Occurred()) {
                refuse("there is no such node");
            }
            PyMem_Free(numbers);
            return NULL;
        }
        numbers[i] = (int)number;
    }
    return numbers;
}

static int
relations_from(Guards *g, PyObject *list)
{
    Py_ssize_t count = PyList_GET_SIZE(list);
    g->relations = PyMem_Calloc((size_t)count + 1, sizeof(GuardRelation));
    for (Py_ssize_t i = 0; g->relations != NULL && i < count; i++) {
        GuardRelation *r = &g->relations[i];
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "iipii", &r->a, &r->b, &r->same, &r->origin,
                              &r->index)) {
            return -1;
        }
        if (r->a < 0 || r->a >= g->node_count || r->b < 0 || r->b >= g->node_count) {
            return refuse("there is no such node");
        }
        g->nodes[r->a].related |= IN_RELATION;
        g->nodes[r->b].related |= IN_RELATION;
        g->relation_count++;
    }
    return g->relations == NULL ? -1 : 0;
}

static int
groups_from(Guards *g, PyObject *list)
{
    Py_ssize_t count = PyList_GET_SIZE(list);
    g->groups = PyMem_Calloc((size_t)count + 1, sizeof(NodeGroup));
    for (Py_ssize_t i = 0; g->groups != NULL && i < count; i++) {
        PyObject *nodes = PyList_GET_ITEM(list, i);
        if (!PyTuple_Check(nodes)) {
            return refuse("a group is a tuple");
        }
        NodeGroup *group = &g->groups[g->group_count++];
        group->nodes = numbers_from(g, nodes, 0);
        group->values = PyMem_Calloc((size_t)PyTuple_GET_SIZE(nodes) + 1, sizeof(PyObject *));
        if (group->nodes == NULL || group->values == NULL) {
            return -1;
        }
        group->size = (int)PyTuple_GET_SIZE(nodes);
        for (int k = 0; k < group->size; k++) {
            g->nodes[group->nodes[k]].related |= IN_GROUP;
        }
    }
    return g->groups == NULL ? -1 : 0;
}

static int
formulas_from(Guards *g, PyObject *list, PyObject *terms)
{
    Py_ssize_t count = PyList_GET_SIZE(list);
    g->terms = numbers_from(g, terms, 0);
    g->term_count = (int)PyTuple_GET_SIZE(terms);
    g->term_values = PyMem_Calloc((size_t)g->term_count + 1, sizeof(PyObject *));
    g->formulas = PyMem_Calloc((size_t)count + 1, sizeof(Formula));
    for (Py_ssize_t i = 0;
         g->terms != NULL && g->term_values != NULL && g->formulas != NULL && i < count; i++) {
        g->formula_count++;
        if (formula_from(&g->formulas[i], PyList_GET_ITEM(list, i), g->term_count) < 0) {
            return -1;
        }
    }
    return g->terms == NULL || g->term_values == NULL || g->formulas == NULL ? -1 : 0;
}

static int
storages_from(Guards *g, PyObject *nodes, PyObject *firsts)
{
    Py_ssize_t count = PyTuple_GET_SIZE(nodes);
    if (PyTuple_GET_SIZE(firsts) != count) {
        return refuse("every storage has a first place");
    }
    int size = 8;
    while (size < 2 * count) {
        size *= 2;
    }
    g->storages = numbers_from(g, nodes, 0);
    g->firsts = PyMem_Calloc((size_t)count + 1, sizeof(int));
    g->memory = PyMem_Calloc((size_t)size, sizeof(void *));
    g->memory_first = PyMem_Calloc((size_t)size, sizeof(int));
    if (g->storages == NULL || g->firsts == NULL || g->memory == NULL || g->memory_first == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        g->firsts[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(firsts, i));
        if (g->firsts[i] < -1 || g->firsts[i] > i || PyErr_Occurred()) {
            return PyErr_Occurred() ? -1 : refuse("the first place is not behind");
        }
    }
    g->memory_size = size;
    g->storage_count = (int)count;
    return 0;
}

static int
nodes_from(Guards *g, PyObject *nodes)
{
    Py_ssize_t count = PyList_GET_SIZE(nodes), checks = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *row = PyList_GET_ITEM(nodes, i);
        if (!PyTuple_Check(row) || PyTuple_GET_SIZE(row) != 8 ||
            !PyList_Check(PyTuple_GET_ITEM(row, 7))) {
            return refuse("a node is a tuple of eight, its checks a list");
        }
        checks += PyList_GET_SIZE(PyTuple_GET_ITEM(row, 7));
    }
    g->nodes = PyMem_Calloc((size_t)count + 1, sizeof(Node));
    g->fresh = PyMem_Calloc((size_t)count + 1, sizeof(int));
    g->checks = PyMem_Calloc((size_t)checks + 1, sizeof(GuardCheck));
    g->tensors = PyMem_Calloc((size_t)checks + 1, sizeof(TensorFields *));
    if (g->nodes == NULL || g->fresh == NULL || g->checks == NULL || g->tensors == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        g->node_count++;
        if (node_from(g, (int)i, PyList_GET_ITEM(nodes, i), count, checks) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *
guards_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"state",    "nodes",  "relations", "groups",   "wanted",
                            "asked",    "always", "ask",       "formulas", "terms",
                            "storages", "firsts", NULL};
    PyObject *state, *nodes, *relations, *groups, *wanted, *asked, *ask, *formulas = NULL,
                                                                         *terms = NULL;
    PyObject *storages = NULL, *firsts = NULL;
    int always;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O!O!O!O!iO|O!O!O!O!", names, &state,
                                     &PyList_Type, &nodes, &PyList_Type, &relations, &PyList_Type,
                                     &groups, &PyTuple_Type, &wanted, &PyTuple_Type, &asked,
                                     &always, &ask, &PyList_Type, &formulas, &PyTuple_Type, &terms,
                                     &PyTuple_Type, &storages, &PyTuple_Type, &firsts)) {
        return NULL;
    }
    Guards *g = (Guards *)type->tp_alloc(type, 0);
    if (g == NULL) {
        return NULL;
    }
    g->failed_origin = g->failed_check = -1;
    g->patience = 1;
    if (state_from(&g->state, state) < 0 || nodes_from(g, nodes) < 0 ||
        relations_from(g, relations) < 0 || groups_from(g, groups) < 0 ||
        (formulas != NULL && terms != NULL && formulas_from(g, formulas, terms) < 0) ||
        (storages != NULL && firsts != NULL && storages_from(g, storages, firsts) < 0) ||
        (g->wanted = numbers_from(g, wanted, 1)) == NULL ||
        (g->asked = numbers_from(g, asked, 0)) == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_NoMemory();
        }
        Py_DECREF(g);
        return NULL;
    }
    g->wanted_count = (int)PyTuple_GET_SIZE(wanted);
    g->asked_count = (int)PyTuple_GET_SIZE(asked);
    if (always < -1 || always > g->asked_count) {
        refuse("-1, or how many values are always asked for");
        Py_DECREF(g);
        return NULL;
    }
    g->always_ask = always >= 0;
    g->always_count = always < 0 ? 0 : always;
    g->ask = ask == Py_None ? NULL : Py_NewRef(ask);
    return (PyObject *)g;
}

/* ---- the object ---- */

static int
guards_traverse(Guards *g, visitproc visit, void *arg)
{
    for (int i = 0; i < g->node_count; i++) {
        Py_VISIT(g->nodes[i].key);
    }
    for (int i = 0; i < g->check_count; i++) {
        Py_VISIT(g->checks[i].expected);
    }
    for (int i = 0; i < g->tensor_count; i++) {
        Py_VISIT(g->tensors[i]->type);
    }
    Py_VISIT(g->state.autocast);
    Py_VISIT(g->ask);
    return 0;
}

/* Empties the guards; a walk over what is left ends at once and is unsure of nothing: it fails. */
static int
guards_clear(Guards *g)
{
    int nodes = g->node_count, checks = g->check_count;
    g->node_count = g->check_count = g->wanted_count = g->asked_count = g->relation_count = 0;
    g->cleared = 1;
    digest_drop(g);
    for (int i = 0; i < nodes; i++) {
        Py_CLEAR(g->nodes[i].key);
    }
    for (int i = 0; i < checks; i++) {
        Py_CLEAR(g->checks[i].expected);
        if (g->checks[i].fact == CHECK_UNHOOKED) {
            PyMem_Free(g->checks[i].hooks);
        }
    }
    while (g->tensor_count > 0) {
        tensor_facts_free(g->tensors[--g->tensor_count]);
    }
    while (g->group_count > 0) {
        g->group_count--;
        PyMem_Free(g->groups[g->group_count].nodes);
        PyMem_Free(g->groups[g->group_count].values);
    }
    while (g->formula_count > 0) {
        formula_clear(&g->formulas[--g->formula_count]);
    }
    g->term_count = g->storage_count = 0;
    state_clear(&g->state);
    Py_CLEAR(g->ask);
    return 0;
}

static void
guards_dealloc(Guards *g)
{
    PyObject_GC_UnTrack(g);
    guards_clear(g);
    PyMem_Free(g->nodes);
    PyMem_Free(g->fresh);
    PyMem_Free(g->checks);
    PyMem_Free(g->tensors);
    PyMem_Free(g->relations);
    PyMem_Free(g->groups);
    PyMem_Free(g->formulas);
    PyMem_Free(g->terms);
    PyMem_Free(g->storages);
    PyMem_Free(g->firsts);
    PyMem_Free(g->memory);
    PyMem_Free(g->memory_first);
    PyMem_Free(g->term_values);
    PyMem_Free(g->wanted);
    PyMem_Free(g->asked);
    Py_TYPE(g)->tp_free(g);
}

static PyObject *
guards_check_method(Guards *g, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 1 || !PyTuple_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "check(slots) takes a tuple");
        return NULL;
    }
    PyObject *slots = Py_NewRef(args[0]), *values;
    Py_INCREF(g); /* `ask` may drop the last reference */
    int outcome =
        guards_walk(g, ((PyTupleObject *)slots)->ob_item, PyTuple_GET_SIZE(slots), -1, &values);
    Py_DECREF(slots);
    Py_DECREF(g);
    return outcome == HOLDS ? values : Py_NewRef(outcome == FAILS ? Py_None : Py_NotImplemented);
}

static PyObject *
guards_state_holds(Guards *g, PyObject *Py_UNUSED(none))
{
    TorchState now;
    int same = state_read(&now) == 0 && state_same(&g->state, &now);
    state_clear(&now);
    return PyBool_FromLong(same);
}

static PyObject *
guards_failed(Guards *g, void *Py_UNUSED(closure))
{
    return Py_BuildValue("ii", g->failed_origin, g->failed_check);
}

static PyMethodDef guards_methods[] = {
    {"check", FAST(guards_check_method),
     "The wanted values if all guards but torch's state hold; None if one does not; NotImplemented "
     "if Python must check."},
    {"state_holds", (PyCFunction)guards_state_holds, METH_NOARGS, "Is torch's state as it was?"},
    {NULL},
};

static PyMemberDef guards_members[] = {
    {"visited", T_ULONGLONG, offsetof(Guards, visited), READONLY,
     "How many nodes were looked at one by one, so far."},
    {"digested", T_ULONGLONG, offsetof(Guards, digested), READONLY,
     "How many walks the digest stood for, so far."},
    {NULL},
};

static PyGetSetDef guards_getset[] = {
    {"failed", (getter)guards_failed, NULL,
     "(origin, check) at which the last check failed; -1: none of them.", NULL},
    {NULL},
};

PyTypeObject GuardsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator._native.Guards",
    .tp_doc = "The guards of one recording, checked in C. Made by stator.replay.engine.",
    .tp_basicsize = sizeof(Guards),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = guards_new,
    .tp_dealloc = (destructor)guards_dealloc,
    .tp_traverse = (traverseproc)guards_traverse,
    .tp_clear = (inquiry)guards_clear,
    .tp_methods = guards_methods,
    .tp_members = guards_members,
    .tp_getset = guards_getset,
};

static PyObject *
is_object_member(PyObject *Py_UNUSED(module), PyObject *descriptor)
{
    return PyBool_FromLong(is_member(descriptor));
}

static PyMethodDef functions[] = {
    {"is_object_member", is_object_member, METH_O,
     "Is this the descriptor of a member that is an object?"},
    {NULL},
};

int
guards_setup(PyObject *module)
{
#define ADD_FETCH(name) || PyModule_AddIntConstant(module, "FETCH_" #name, FETCH_##name) < 0
#define ADD_CHECK(name) || PyModule_AddIntConstant(module, "CHECK_" #name, CHECK_##name) < 0
#define ADD_PART(name) || PyModule_AddIntConstant(module, "PART_" #name, PART_##name) < 0
#define ADD_LASTING(name) || PyModule_AddIntConstant(module, #name, LASTING_##name) < 0
#define ADD_VERSION(name) || PyModule_AddIntConstant(module, "VERSION_" #name, VERSION_##name) < 0
    static const char *const hooks[HOOKS] = {"_backward_hooks", "_backward_pre_hooks",
                                             "_forward_hooks", "_forward_pre_hooks"};
    static const char *const methods[3] = {"forward", "_call_impl", "_compiled_call_impl"};
    for (int i = 0; i < HOOKS; i++) {
        if ((hook_names[i] = PyUnicode_InternFromString(hooks[i])) == NULL) {
            return -1;
        }
    }
    for (int i = 0; i < 3; i++) {
        if ((method_names[i] = PyUnicode_InternFromString(methods[i])) == NULL) {
            return -1;
        }
    }
    int failed = PyModule_AddType(module, &GuardsType) < 0 ||
                 PyModule_AddFunctions(module, functions) <
                     0 EACH_FETCH(ADD_FETCH) EACH_CHECK(ADD_CHECK) EACH_PART(ADD_PART)
                         EACH_LASTING(ADD_LASTING) EACH_VERSION(ADD_VERSION);
    return failed ? -1 : 0;
}

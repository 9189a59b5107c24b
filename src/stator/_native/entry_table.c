/* The table: the recordings of one code object, most recently used first. Python code puts them
 * there and *publishes* those that C code may use.
 */
#include "entry_table.h"

/* ---- counting ---- */

static PyMemberDef count_members[] = {
    {"value", T_ULONGLONG, offsetof(Count, value), 0, "How often it happened."},
    {NULL},
};

PyTypeObject CountType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator._native.Count",
    .tp_doc = "A number that C and Python code count up together.",
    .tp_basicsize = sizeof(Count),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_members = count_members,
};

/* ---- the recordings of one code object ---- */

void
row_clear(TableRow *row)
{
    Py_CLEAR(row->entry);
    Py_CLEAR(row->guards);
    Py_CLEAR(row->replay);
    Py_CLEAR(row->step);
    Py_CLEAR(row->hits);
}

static Py_ssize_t
entry_table_find(EntryTable *s, PyObject *entry)
{
    for (Py_ssize_t i = 0; i < s->count; i++) {
        if (s->rows[i].entry == entry) {
            return i;
        }
    }
    return -1;
}

static void
entry_table_to_front(EntryTable *s, Py_ssize_t i)
{
    TableRow row = s->rows[i];
    memmove(s->rows + 1, s->rows, (size_t)i * sizeof(TableRow));
    s->rows[0] = row;
}

static PyObject *
entry_table_add(EntryTable *s, PyObject *entry)
{
    TableRow *rows = PyMem_Realloc(s->rows, (size_t)(s->count + 1) * sizeof(TableRow));
    if (rows == NULL) {
        return PyErr_NoMemory();
    }
    s->rows = rows;
    memmove(rows + 1, rows, (size_t)s->count * sizeof(TableRow));
    rows[0] = (TableRow){.entry = Py_NewRef(entry)};
    s->count++;
    s->changes++;
    Py_RETURN_NONE;
}

static PyObject *
entry_table_used(EntryTable *s, PyObject *entry)
{
    Py_ssize_t i = entry_table_find(s, entry);
    if (i > 0) {
        entry_table_to_front(s, i);
    }
    Py_RETURN_NONE;
}

static PyObject *
entry_table_publish(EntryTable *s, PyObject *args)
{
    PyObject *entry, *guards, *replay, *step, *hits;
    if (!PyArg_ParseTuple(args, "OO!OOO!", &entry, &GuardsType, &guards, &replay, &step, &CountType,
                          &hits)) {
        return NULL;
    }
    if (step != Py_None && !Py_IS_TYPE(step, &BreakStepType)) {
        PyErr_SetString(PyExc_TypeError, "a BreakStep or None");
        return NULL;
    }
    Py_ssize_t i = entry_table_find(s, entry);
    if (i >= 0) {
        TableRow former = s->rows[i];
        s->rows[i].guards = (Guards *)Py_NewRef(guards);
        s->rows[i].replay = replay == Py_None ? NULL : Py_NewRef(replay);
        s->rows[i].step = step == Py_None ? NULL : (BreakStep *)Py_NewRef(step);
        s->rows[i].hits = (Count *)Py_NewRef(hits);
        s->changes++;
        former.entry = NULL;
        row_clear(&former);
    }
    Py_RETURN_NONE;
}

static int
entry_table_tp_clear(EntryTable *s)
{
    TableRow *rows = s->rows;
    Py_ssize_t count = s->count;
    s->rows = NULL;
    s->count = 0;
    s->changes++;
    for (Py_ssize_t i = 0; i < count; i++) {
        row_clear(&rows[i]);
    }
    PyMem_Free(rows);
    return 0;
}

static PyObject *
entry_table_clear(EntryTable *s, PyObject *Py_UNUSED(none))
{
    entry_table_tp_clear(s);
    Py_RETURN_NONE;
}

static int
entry_table_traverse(EntryTable *s, visitproc visit, void *arg)
{
    for (Py_ssize_t i = 0; i < s->count; i++) {
        Py_VISIT(s->rows[i].entry);
        Py_VISIT(s->rows[i].guards);
        Py_VISIT(s->rows[i].replay);
        Py_VISIT(s->rows[i].step);
        Py_VISIT(s->rows[i].hits);
    }
    return 0;
}

static void
entry_table_dealloc(EntryTable *s)
{
    PyObject_GC_UnTrack(s);
    entry_table_tp_clear(s);
    Py_TYPE(s)->tp_free(s);
}

static PyObject *
entry_table_entries(EntryTable *s, void *Py_UNUSED(closure))
{
    for (;;) { /* a new tuple may start a collection, and that may change the table */
        unsigned long long changes = s->changes;
        PyObject *entries = PyTuple_New(s->count);
        if (entries == NULL || changes == s->changes) {
            for (Py_ssize_t i = 0; entries != NULL && i < s->count; i++) {
                PyTuple_SET_ITEM(entries, i, Py_NewRef(s->rows[i].entry));
            }
            return entries;
        }
        Py_DECREF(entries);
    }
}

static PyMethodDef entry_table_methods[] = {
    {"add", (PyCFunction)entry_table_add, METH_O, "Put an entry before all others."},
    {"used", (PyCFunction)entry_table_used, METH_O, "Move an entry to the front."},
    {"publish", (PyCFunction)entry_table_publish, METH_VARARGS,
     "publish(entry, guards, replay or None, step or None, hits): C code may use this entry; "
     "without a replay, Python code goes on when its guards hold. `step`: what follows the "
     "replay."},
    {"clear", (PyCFunction)entry_table_clear, METH_NOARGS, "Forget all entries."},
    {NULL},
};

static PyGetSetDef entry_table_getset[] = {
    {"entries", (getter)entry_table_entries, NULL, "All entries, most recently used first.", NULL},
    {NULL},
};

PyTypeObject EntryTableType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator._native.EntryTable",
    .tp_doc = "The recordings of one code object, most recently used first.",
    .tp_basicsize = sizeof(EntryTable),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)entry_table_dealloc,
    .tp_traverse = (traverseproc)entry_table_traverse,
    .tp_clear = (inquiry)entry_table_tp_clear,
    .tp_methods = entry_table_methods,
    .tp_getset = entry_table_getset,
};

/* ---- looking for a recording ---- */

int
entry_table_fitting(EntryTable *s, const TorchState *known, PyObject *const *slots,
                    Py_ssize_t count, Py_ssize_t made, TableRow *found, PyObject **values)
{
    TorchState state = {.autocast = NULL};
    int fits = 0;
    if (s->count == 0 || (known == NULL && state_read(&state) < 0)) {
        return -1;
    }
    const TorchState *now = known == NULL ? &state : known;
    Py_INCREF(s);
    unsigned long long changes = s->changes;
    for (Py_ssize_t i = 0; fits == 0 && changes == s->changes && i < s->count; i++) {
        TableRow row = s->rows[i];
        if (row.guards == NULL) {
            fits = -1;
            break;
        }
        if (!state_same(now, &row.guards->state)) {
            continue;
        }
        Py_INCREF(row.entry);
        Py_INCREF(row.guards);
        Py_XINCREF(row.replay);
        Py_XINCREF(row.step);
        Py_INCREF(row.hits);
        int outcome = guards_walk(row.guards, slots, count, made, values);
        if (outcome == HOLDS) {
            Py_ssize_t at =
                i < s->count && s->rows[i].entry == row.entry ? i : entry_table_find(s, row.entry);
            if (at > 0) {
                entry_table_to_front(s, at);
            }
            *found = row;
            fits = 1;
            break;
        }
        row_clear(&row);
        if (outcome == UNSURE) {
            fits = -1;
            break;
        }
    }
    if (changes != s->changes && fits == 0) {
        fits = -1;
    }
    Py_DECREF(s);
    state_clear(&state);
    return fits;
}

int
entry_table_setup(PyObject *module)
{
    return PyModule_AddType(module, &CountType) < 0 || PyModule_AddType(module, &EntryTableType) < 0
               ? -1
               : 0;
}

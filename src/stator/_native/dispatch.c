/* The compiled callable: binds arguments, checks guards, calls the replay; at a break makes the
 * step and goes on.
 *
 * `Compiled` stands before a Python callable, its *fallback*, which does all that in full
 * generality. It takes over only what is certain: arguments that bind without a question, a
 * recording whose guards hold, a replay that needs nothing around it. In every other case, and
 * while this thread records, the fallback is called with the arguments as they came.
 *
 * Behind a break the same holds for each target: where C code cannot be certain, Python code goes
 * on from there.
 */
#include "compiled.h"

/* ---- the callable ---- */

static int enabled; /* may C code take calls at all? */
/* not while somebody wants to hear of hits: `reader_kind` is in `readers` */
static PyObject *readers, *reader_kind;

static uint64_t readers_seen; /* the version of `readers` for which `heard` holds */
static int heard;

static int
is_heard(void)
{
    if (readers == NULL || PyDict_GET_SIZE(readers) == 0) {
        return 0;
    }
    uint64_t version = dict_version(readers);
    if (version == 0 || version != readers_seen) {
        int found = PyDict_Contains(readers, reader_kind);
        if (found < 0) {
            PyErr_Clear();
        }
        heard = found != 0;
        readers_seen = version;
    }
    return heard;
}

/* May C code use recordings here and now? */
static int
is_quick(void)
{
    return enabled && thread_here.state == STATE_OFF && !is_heard() && chain_stance_is_default();
}

/* ---- using recordings ---- */

/* All but the last, which is the function. */
static PyObject *
slots_tuple(PyObject *const *inputs, Py_ssize_t count)
{
    PyObject *slots = PyTuple_New(count - 1);
    for (Py_ssize_t i = 0; slots != NULL && i < count - 1; i++) {
        PyTuple_SET_ITEM(slots, i, Py_NewRef(inputs[i]));
    }
    return slots;
}

/* A replay raised: Python code decides what the call comes to. */
static PyObject *
after_failure(Compiled *c, PyObject *entry, PyObject *const *inputs, Py_ssize_t count)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        return NULL;
    }
    PyObject *error = error_take(), *slots = slots_tuple(inputs, count), *result = NULL;
    if (error != NULL && slots != NULL) {
        result =
            PyObject_CallFunctionObjArgs(c->failed, entry, error, inputs[count - 1], slots, NULL);
    }
    Py_XDECREF(error);
    Py_XDECREF(slots);
    return result;
}

/* Calls a replay and lets go of its values. 1: *state is a state to go on from. 0: *state is the
 * call's result, or NULL with its exception. */
static int
replay(Compiled *c, const TableRow *row, PyObject *values, PyObject *const *inputs,
       Py_ssize_t count, PyObject **state)
{
    row->hits->value++;
    *state = Py_IS_TYPE(row->replay, &RelayType) ? relay_run(row->replay, values)
                                                 : PyObject_CallOneArg(row->replay, values);
    Py_DECREF(values);
    if (*state == NULL) {
        *state = after_failure(c, row->entry, inputs, count);
        return 0;
    }
    if (row->step != NULL && !PyTuple_CheckExact(*state)) {
        Py_CLEAR(*state);
        PyErr_SetString(PyExc_SystemError,
                        "the replay of a segment that is left gives back a tuple");
        return 0;
    }
    return row->step != NULL;
}

/* Python code goes on from a target. Steals `inputs`. */
static PyObject *
hand_over(Compiled *c, ResumeTarget *target, PyObject *inputs)
{
    PyObject *pending = pending_resume_new(target, inputs);
    PyObject *result = pending == NULL ? NULL : PyObject_CallOneArg(c->go_on, pending);
    Py_XDECREF(pending);
    return result;
}

/* So many segments without a graph one after the other: Python code decides what comes of the call.
 */
#define MOST_IDLE 10000

/* From break to break, up to the result. Steals `function` and `state`, and `step` of the row,
 * which is cleared. Nothing here holds on to what a segment was given: what the program lets go of
 * dies. */
static PyObject *
follow(Compiled *c, TableRow *row, PyObject *function, PyObject *state)
{
    int idle = 0;
    for (int goes_on = 1; goes_on;) {
        idle = row->step->idle ? idle + 1 : 0;
        ResumeTarget *target;
        PyObject *inputs, *values;
        int stepped = break_step_make(row->step, function, c->bound, state, &target, &inputs);
        /* A graph leaves torch's state as it was. */
        Guards *before = stepped == 1 && Py_IS_TYPE(row->replay, &RelayType)
                             ? (Guards *)Py_NewRef(row->guards)
                             : NULL;
        state = NULL;
        Py_CLEAR(function);
        row_clear(row);
        if (stepped < 0) {
            break;
        }
        PyObject *const *items = ((PyTupleObject *)inputs)->ob_item;
        Py_ssize_t count = PyTuple_GET_SIZE(inputs);
        const TorchState *known = before == NULL ? NULL : &before->state;
        int fits = idle < MOST_IDLE && is_quick() && target->table != NULL &&
                   entry_table_fitting(target->table, known, items, count, -1, row, &values) > 0;
        Py_XDECREF(before);
        if (!fits || row->replay == NULL) {
            if (fits) {
                Py_DECREF(values);
                row_clear(row);
            }
            PyObject *result = hand_over(c, target, inputs);
            Py_DECREF(target);
            return result;
        }
        Py_DECREF(target);
        goes_on = replay(c, row, values, items, count, &state);
        function = Py_NewRef(items[count - 1]);
        Py_DECREF(inputs);
    }
    Py_XDECREF(function);
    row_clear(row);
    c->hits->value++;
    return state;
}

/* Uses a recording that fits, and clears the slots. 1: *result is the call's result, or NULL with
 * its exception. 0: there is none; -1: that cannot be told here. */
static int
use_recording(Compiled *c, SlotBuffer *s, PyObject **result)
{
    TableRow row;
    PyObject *values;
    int fits = entry_table_fitting(c->table, NULL, s->values, s->count, s->made, &row, &values);
    if (fits <= 0) {
        slots_clear(s);
        return fits;
    }
    if (row.replay == NULL) {
        PyObject *slots = slots_tuple(s->values, s->count);
        *result = slots == NULL
                      ? NULL
                      : PyObject_CallFunctionObjArgs(c->resume, row.entry, values, slots, NULL);
        Py_XDECREF(slots);
        Py_DECREF(values);
        slots_clear(s);
    }
    else if (replay(c, &row, values, s->values, s->count, result)) {
        PyObject *function = Py_NewRef(s->values[s->count - 1]);
        slots_clear(s);
        if (c->bound_at != c->table->changes) {
            c->bound_at = c->table->changes;
            PyDict_Clear(c->bound);
        }
        *result = follow(c, &row, function, *result);
        return 1;
    }
    else {
        c->hits->value++;
        slots_clear(s);
    }
    row_clear(&row);
    return 1;
}

/* The call as the plain function has it, one of `left`. NULL without an exception: Python code
 * knows better. */
static PyObject *
pass_by(Compiled *c, Count *left, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf),
               count = nargs + (kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames));
    PyObject *given[MAX_SLOTS];
    if (c->self_is != NULL) {
        if (nargs < 1 || count > MAX_SLOTS || args[0] != c->self_is ||
            Py_TYPE(args[0]) != c->self_type) {
            return NULL;
        }
        memcpy(given, args, (size_t)count * sizeof(PyObject *));
        given[0] = c->self_becomes;
        args = given;
        nargsf = (size_t)nargs;
    }
    left->value--;
    c->passed->value++;
    PyObject *function = Py_NewRef(c->function), *self = Py_XNewRef(c->self_becomes);
    PyObject *result = PyObject_Vectorcall(function, args, nargsf, kwnames);
    Py_DECREF(function);
    Py_XDECREF(self);
    return result;
}

static PyObject *
call_compiled(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Compiled *c = (Compiled *)self;
    if (is_quick() && c->table != NULL && c->passing->value > 0) {
        PyObject *result = pass_by(c, c->passing, args, nargsf, kwnames);
        if (result != NULL || PyErr_Occurred()) {
            return result;
        }
    }
    else if (is_quick() && c->table != NULL) {
        SlotBuffer s;
        PyObject *result = NULL;
        Py_INCREF(self);
        int used = -1;
        if (bind(c, args, PyVectorcall_NARGS(nargsf), kwnames, &s)) {
            used = use_recording(c, &s, &result);
        }
        else {
            slots_clear(&s);
        }
        if (used <= 0) {
            error_settle();
            if (used == 0 && c->spared->value > 0) {
                result = pass_by(c, c->spared, args, nargsf, kwnames);
            }
            used = result != NULL || PyErr_Occurred();
        }
        Py_DECREF(self);
        if (used) {
            return result;
        }
    }
    PyObject *fallback = Py_XNewRef(c->fallback);
    if (fallback == NULL) {
        PyErr_SetString(PyExc_RuntimeError,
                        "this compiled callable was taken apart by the garbage collector");
        return NULL;
    }
    PyObject *result = PyObject_Vectorcall(fallback, args, nargsf, kwnames);
    Py_DECREF(fallback);
    return result;
}

/* ---- beside another compiler ---- */

/* Another compiler of frames may be at work in this thread: it is off meanwhile, as in a function
 * that it was told to leave alone, and does not get to see what a compiled function is made of. */
static PyObject *
compiled_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (chain_is_empty()) {
        return call_compiled(self, args, nargsf, kwnames);
    }
    PyObject *callback = chain_switch_off();
    if (callback == NULL) {
        return NULL;
    }
    return chain_switch_on(callback, call_compiled(self, args, nargsf, kwnames));
}

/* ---- the callable as an object ---- */

static Count *
count_or_new(PyObject *count)
{
    if (count != NULL) {
        return (Count *)Py_NewRef(count);
    }
    return (Count *)PyObject_CallNoArgs((PyObject *)&CountType);
}

static PyObject *
compiled_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fallback", "function", "table",  "hits",   "resume", "failed",
                            "go_on",    "passing",  "spared", "passed", NULL};
    PyObject *fallback, *function, *table, *hits, *resume, *failed, *go_on;
    PyObject *passing = NULL, *spared = NULL, *passed = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O!O!OOO|O!O!O!", names, &fallback,
                                     &PyFunction_Type, &function, &EntryTableType, &table,
                                     &CountType, &hits, &resume, &failed, &go_on, &CountType,
                                     &passing, &CountType, &spared, &CountType, &passed)) {
        return NULL;
    }
    Compiled *c = (Compiled *)type->tp_alloc(type, 0);
    if (c != NULL) {
        c->vectorcall = compiled_vectorcall;
        c->fallback = Py_NewRef(fallback);
        c->function = (PyFunctionObject *)Py_NewRef(function);
        c->code = Py_NewRef(((PyFunctionObject *)function)->func_code);
        c->table = (EntryTable *)Py_NewRef(table);
        c->hits = (Count *)Py_NewRef(hits);
        c->resume = Py_NewRef(resume);
        c->failed = Py_NewRef(failed);
        c->go_on = Py_NewRef(go_on);
        c->passing = count_or_new(passing);
        c->spared = count_or_new(spared);
        c->passed = count_or_new(passed);
        c->bound = PyDict_New();
        if (c->bound == NULL || c->passing == NULL || c->spared == NULL || c->passed == NULL) {
            Py_CLEAR(c);
        }
    }
    return (PyObject *)c;
}

static int
compiled_traverse(Compiled *c, visitproc visit, void *arg)
{
    Py_VISIT(c->dict);
    Py_VISIT(c->fallback);
    Py_VISIT(c->function);
    Py_VISIT(c->code);
    Py_VISIT(c->table);
    Py_VISIT(c->hits);
    Py_VISIT(c->passing);
    Py_VISIT(c->spared);
    Py_VISIT(c->passed);
    Py_VISIT(c->resume);
    Py_VISIT(c->failed);
    Py_VISIT(c->go_on);
    Py_VISIT(c->bound);
    Py_VISIT(c->self_is);
    Py_VISIT(c->self_becomes);
    Py_VISIT(c->self_type);
    return 0;
}

static int
compiled_clear(Compiled *c)
{
    Py_CLEAR(c->dict);
    Py_CLEAR(c->fallback);
    Py_CLEAR(c->table); /* without it nothing else is looked at */
    Py_CLEAR(c->function);
    Py_CLEAR(c->code);
    Py_CLEAR(c->hits);
    Py_CLEAR(c->passing);
    Py_CLEAR(c->spared);
    Py_CLEAR(c->passed);
    Py_CLEAR(c->resume);
    Py_CLEAR(c->failed);
    Py_CLEAR(c->go_on);
    Py_CLEAR(c->bound);
    Py_CLEAR(c->self_is);
    Py_CLEAR(c->self_becomes);
    Py_CLEAR(c->self_type);
    return 0;
}

static void
compiled_dealloc(Compiled *c)
{
    PyObject_GC_UnTrack(c);
    if (c->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)c);
    }
    compiled_clear(c);
    Py_TYPE(c)->tp_free(c);
}

static PyObject *
compiled_get(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type))
{
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

/* As functions are: by name. */
static PyObject *
compiled_reduce(PyObject *self, PyObject *Py_UNUSED(none))
{
    return PyObject_GetAttrString(self, "__qualname__");
}

static PyObject *
compiled_repr(PyObject *self)
{
    PyObject *name = PyObject_GetAttrString(self, "__qualname__");
    if (name == NULL) {
        PyErr_Clear();
        return PyUnicode_FromFormat("<compiled callable at %p>", self);
    }
    PyObject *text = PyUnicode_FromFormat("<compiled %S at %p>", name, self);
    Py_DECREF(name);
    return text;
}

/* Calls with `object`, of exactly its type of now, as the first argument are calls with
 * `original`. */
static PyObject *
compiled_stand_in(Compiled *c, PyObject *args)
{
    PyObject *object, *original;
    if (!PyArg_ParseTuple(args, "OO", &object, &original)) {
        return NULL;
    }
    Py_XSETREF(c->self_becomes, Py_NewRef(original));
    Py_XSETREF(c->self_type, (PyTypeObject *)Py_NewRef(Py_TYPE(object)));
    Py_XSETREF(c->self_is, Py_NewRef(object));
    Py_RETURN_NONE;
}

static PyMethodDef compiled_methods[] = {
    {"__reduce__", compiled_reduce, METH_NOARGS, "Pickled by name, as functions are."},
    {"stand_in", (PyCFunction)compiled_stand_in, METH_VARARGS,
     "stand_in(object, original): calls with `object` as the first argument are calls with "
     "`original`."},
    {NULL},
};

static PyMemberDef compiled_members[] = {
    {"fallback", T_OBJECT, offsetof(Compiled, fallback), READONLY,
     "The Python callable that does everything."},
    {NULL},
};

static PyGetSetDef compiled_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL},
};

static PyTypeObject CompiledType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator._native.Compiled",
    .tp_basicsize = sizeof(Compiled),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = compiled_new,
    .tp_dealloc = (destructor)compiled_dealloc,
    .tp_traverse = (traverseproc)compiled_traverse,
    .tp_clear = (inquiry)compiled_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Compiled, vectorcall),
    .tp_dictoffset = offsetof(Compiled, dict),
    .tp_weaklistoffset = offsetof(Compiled, weakrefs),
    .tp_descr_get = compiled_get,
    .tp_repr = compiled_repr,
    .tp_methods = compiled_methods,
    .tp_members = compiled_members,
    .tp_getset = compiled_getset,
};

static PyObject *
set_quick(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *all, *kind;
    if (!PyArg_ParseTuple(args, "pO!O", &enabled, &PyDict_Type, &all, &kind)) {
        return NULL;
    }
    Py_XSETREF(readers, Py_NewRef(all));
    Py_XSETREF(reader_kind, Py_NewRef(kind));
    readers_seen = 0;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"set_quick", set_quick, METH_VARARGS,
     "set_quick(on, readers, kind): may compiled callables check and replay in C? Never while kind "
     "is in readers."},
    {NULL},
};

int
dispatch_setup(PyObject *module)
{
    return PyModule_AddFunctions(module, functions) < 0 ||
                   PyModule_AddType(module, &CompiledType) < 0
               ? -1
               : 0;
}

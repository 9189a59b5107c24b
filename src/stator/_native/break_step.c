/* Leaving a segment at a break: the step that Python makes, and where the program lands.
 *
 * A replay that ends at a break gives back a state. `BreakStep` makes the step from there: it calls
 * a function with the state, which says at which `ResumeTarget` the program goes on and with what.
 * The target knows the table of the recordings that start there. It belongs to one recording, so
 * that table is the same for all compiled callables which share the recording.
 *
 * A `PendingResume` is what Python code gets to see: a target and what the continuation there
 * takes.
 */
#include "entry_table.h"

/* A function without a closure; PyFunction_New makes it also where the code needs one. */
static PyObject *
unbound(PyObject *code, PyObject *namespace)
{
    return PyFunction_New(code, namespace);
}

/* What was found in the dict `known` is there for as long as that has the same version. */
static void
remember(FoundFunction *last, PyObject *known, PyObject *function)
{
    last->version = dict_version(known);
    last->function = function;
}

/* A function with the same code and the closure of `original`. `known` (or NULL) holds those that
 * were made for this closure before. */
static PyObject *
bound(PyObject *function, PyObject *original, PyObject *known, FoundFunction *last)
{
    PyObject *code = PyFunction_GET_CODE(function);
    if (known != NULL && last->version != 0 && last->version == dict_version(known)) {
        return Py_NewRef(last->function);
    }
    PyObject *found = known == NULL ? NULL : PyDict_GetItemWithError(known, function);
    if (found != NULL) {
        remember(last, known, found);
        return Py_NewRef(found);
    }
    if (PyErr_Occurred()) {
        return NULL;
    }
    PyObject *closure = PyFunction_Check(original) ? PyFunction_GET_CLOSURE(original) : NULL;
    if (closure == NULL || PyTuple_GET_SIZE(closure) != ((PyCodeObject *)code)->co_nfreevars) {
        PyErr_SetString(PyExc_ValueError,
                        "a continuation needs the closure of the function that it continues");
        return NULL;
    }
    PyObject *made = PyFunction_New(code, PyFunction_GET_GLOBALS(function));
    if (made != NULL && (PyFunction_SetClosure(made, closure) < 0 ||
                         (known != NULL && PyDict_SetItem(known, function, made) < 0))) {
        Py_CLEAR(made);
    }
    if (made != NULL && known != NULL) {
        remember(last, known, made);
    }
    return made;
}

/* ---- where a program goes on ---- */

static PyTypeObject ResumeTargetType;

static PyObject *
resume_target_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *point, *code, *namespace;
    if (!PyArg_ParseTuple(args, "OO!O!", &point, &PyCode_Type, &code, &PyDict_Type, &namespace)) {
        return NULL;
    }
    ResumeTarget *l = (ResumeTarget *)type->tp_alloc(type, 0);
    if (l != NULL) {
        l->point = Py_NewRef(point);
        l->function = unbound(code, namespace);
        l->closes = ((PyCodeObject *)code)->co_nfreevars > 0;
        if (l->function == NULL) {
            Py_CLEAR(l);
        }
    }
    return (PyObject *)l;
}

static int
resume_target_traverse(ResumeTarget *l, visitproc visit, void *arg)
{
    Py_VISIT(l->point);
    Py_VISIT(l->function);
    Py_VISIT(l->table);
    return 0;
}

static int
resume_target_clear(ResumeTarget *l)
{
    Py_CLEAR(l->point);
    Py_CLEAR(l->function);
    Py_CLEAR(l->table);
    return 0;
}

static void
resume_target_dealloc(ResumeTarget *l)
{
    PyObject_GC_UnTrack(l);
    resume_target_clear(l);
    Py_TYPE(l)->tp_free(l);
}

static PyObject *
resume_target_open(ResumeTarget *l, PyObject *table)
{
    if (!Py_IS_TYPE(table, &EntryTableType)) {
        PyErr_SetString(PyExc_TypeError, "open(table) takes an EntryTable");
        return NULL;
    }
    Py_XSETREF(l->table, (EntryTable *)Py_NewRef(table));
    Py_RETURN_NONE;
}

static PyMethodDef resume_target_methods[] = {
    {"open", (PyCFunction)resume_target_open, METH_O,
     "open(table): C code may go on here by itself, with these recordings."},
    {NULL},
};

static PyMemberDef resume_target_members[] = {
    {"point", T_OBJECT, offsetof(ResumeTarget, point), READONLY, "The place in the program."},
    {"table", T_OBJECT, offsetof(ResumeTarget, table), READONLY,
     "The recordings from there on, or None."},
    {NULL},
};

static PyTypeObject ResumeTargetType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator._native.ResumeTarget",
    .tp_doc =
        "ResumeTarget(point, code, namespace): one place where the program goes on after a break.",
    .tp_basicsize = sizeof(ResumeTarget),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = resume_target_new,
    .tp_dealloc = (destructor)resume_target_dealloc,
    .tp_traverse = (traverseproc)resume_target_traverse,
    .tp_clear = (inquiry)resume_target_clear,
    .tp_methods = resume_target_methods,
    .tp_members = resume_target_members,
};

/* ---- jumps ---- */

typedef struct {
    PyObject_HEAD
    ResumeTarget *target;
    PyObject *inputs; /* NULL once they were taken */
} PendingResume;

static PyTypeObject PendingResumeType;

PyObject *
pending_resume_new(ResumeTarget *target, PyObject *inputs)
{
    PendingResume *j = PyObject_GC_New(PendingResume, &PendingResumeType);
    if (j == NULL) {
        Py_DECREF(inputs);
        return NULL;
    }
    j->target = (ResumeTarget *)Py_NewRef(target);
    j->inputs = inputs;
    PyObject_GC_Track(j);
    return (PyObject *)j;
}

static int
pending_resume_traverse(PendingResume *j, visitproc visit, void *arg)
{
    Py_VISIT(j->target);
    Py_VISIT(j->inputs);
    return 0;
}

static int
pending_resume_clear(PendingResume *j)
{
    Py_CLEAR(j->target);
    Py_CLEAR(j->inputs);
    return 0;
}

static void
pending_resume_dealloc(PendingResume *j)
{
    PyObject_GC_UnTrack(j);
    pending_resume_clear(j);
    PyObject_GC_Del(j);
}

static PyObject *
pending_resume_take(PendingResume *j, PyObject *Py_UNUSED(none))
{
    PyObject *inputs = j->inputs;
    if (inputs == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "what a jump carries can be taken once");
        return NULL;
    }
    j->inputs = NULL;
    Py_ssize_t last = PyTuple_GET_SIZE(inputs) - 1;
    PyObject *slots = PyList_New(last);
    for (Py_ssize_t i = 0; slots != NULL && i < last; i++) {
        PyList_SET_ITEM(slots, i, Py_NewRef(PyTuple_GET_ITEM(inputs, i)));
    }
    PyObject *taken = slots == NULL ? NULL : PyTuple_Pack(2, PyTuple_GET_ITEM(inputs, last), slots);
    Py_XDECREF(slots);
    Py_DECREF(inputs);
    return taken;
}

static PyMethodDef pending_resume_methods[] = {
    {"take", (PyCFunction)pending_resume_take, METH_NOARGS,
     "(function, slots): the call that goes on, the slots in a list; the jump lets go of it."},
    {NULL},
};

static PyMemberDef pending_resume_members[] = {
    {"target", T_OBJECT, offsetof(PendingResume, target), READONLY, "Where the program goes on."},
    {NULL},
};

static PyTypeObject PendingResumeType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator._native.PendingResume",
    .tp_doc = "The program goes on at a target.",
    .tp_basicsize = sizeof(PendingResume),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)pending_resume_dealloc,
    .tp_traverse = (traverseproc)pending_resume_traverse,
    .tp_clear = (inquiry)pending_resume_clear,
    .tp_methods = pending_resume_methods,
    .tp_members = pending_resume_members,
};

/* ---- leaving ---- */

static int
set_read(BreakStep *l, PyObject *read, PyObject *of, PyObject *moves)
{
    Py_ssize_t count = PyTuple_GET_SIZE(moves),
               arguments = ((PyCodeObject *)PyFunction_GET_CODE(l->call))->co_argcount;
    l->arguments = arguments;
    l->moves = PyMem_Malloc((size_t)(count + 1) * sizeof(int));
    if (l->moves == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    l->in_place = count == arguments - 1;
    for (l->moved = 0; l->moved < count; l->moved++) {
        long from = PyLong_AsLong(PyTuple_GET_ITEM(moves, l->moved));
        if (from < 0 || from > arguments - 2 || PyTuple_GET_SIZE(l->targets) == 0) {
            PyErr_SetString(PyExc_ValueError,
                            "a step moves parts of the state to the first target");
            return -1;
        }
        l->moves[l->moved] = (int)from;
        l->in_place &= from == l->moved;
    }
    l->read = Py_NewRef(read);
    l->of = (PyTypeObject *)Py_NewRef(of);
    return 0;
}

static PyObject *
break_step_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *code, *namespace, *targets, *read = NULL, *of = NULL, *moves = NULL;
    if (!PyArg_ParseTuple(args, "O!O!O!|OO!O!", &PyCode_Type, &code, &PyDict_Type, &namespace,
                          &PyTuple_Type, &targets, &read, &PyType_Type, &of, &PyTuple_Type,
                          &moves)) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(targets); i++) {
        if (!Py_IS_TYPE(PyTuple_GET_ITEM(targets, i), &ResumeTargetType)) {
            PyErr_SetString(PyExc_TypeError, "BreakStep takes targets");
            return NULL;
        }
    }
    BreakStep *l = (BreakStep *)type->tp_alloc(type, 0);
    if (l != NULL) {
        l->targets = Py_NewRef(targets);
        l->call = unbound(code, namespace);
        l->closes = ((PyCodeObject *)code)->co_nfreevars > 0;
        if (l->call == NULL || (moves != NULL && set_read(l, read, of, moves) < 0)) {
            Py_CLEAR(l);
        }
    }
    return (PyObject *)l;
}

static int
break_step_traverse(BreakStep *l, visitproc visit, void *arg)
{
    Py_VISIT(l->call);
    Py_VISIT(l->targets);
    Py_VISIT(l->read);
    Py_VISIT(l->of);
    Py_VISIT(l->callees);
    return 0;
}

static int
break_step_clear(BreakStep *l)
{
    Py_CLEAR(l->call);
    Py_CLEAR(l->targets);
    Py_CLEAR(l->read);
    Py_CLEAR(l->of);
    Py_CLEAR(l->callees);
    return 0;
}

static void
break_step_dealloc(BreakStep *l)
{
    PyObject_GC_UnTrack(l);
    break_step_clear(l);
    PyMem_Free(l->moves);
    Py_TYPE(l)->tp_free(l);
}

/* Which target a step has come to; borrowed. NULL with an exception. */
static ResumeTarget *
landed(BreakStep *l, PyObject *moved)
{
    Py_ssize_t number = -1;
    if (PyTuple_CheckExact(moved) && PyTuple_GET_SIZE(moved) > 0 &&
        PyLong_CheckExact(PyTuple_GET_ITEM(moved, 0))) {
        number = PyLong_AsSsize_t(PyTuple_GET_ITEM(moved, 0));
    }
    if (number < 0 || l->targets == NULL || number >= PyTuple_GET_SIZE(l->targets)) {
        PyErr_SetString(PyExc_SystemError,
                        "a step gives back the number of a target, and what that takes");
        return NULL;
    }
    ResumeTarget *target = (ResumeTarget *)PyTuple_GET_ITEM(l->targets, number);
    if (target->function == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this target was taken apart by the garbage collector");
        return NULL;
    }
    return target;
}

/* (number, values...) becomes (values..., function), in place if nobody else has it. Steals
 * both. */
static PyObject *
as_inputs(PyObject *moved, PyObject *function)
{
    Py_ssize_t count = PyTuple_GET_SIZE(moved);
    if (Py_REFCNT(moved) == 1) {
        PyObject **items = ((PyTupleObject *)moved)->ob_item, *number = items[0];
        memmove(items, items + 1, (size_t)(count - 1) * sizeof(PyObject *));
        items[count - 1] = function;
        Py_DECREF(number);
        return moved;
    }
    PyObject *inputs = PyTuple_New(count);
    for (Py_ssize_t i = 1; inputs != NULL && i < count; i++) {
        PyTuple_SET_ITEM(inputs, i - 1, Py_NewRef(PyTuple_GET_ITEM(moved, i)));
    }
    Py_DECREF(moved);
    if (inputs == NULL) {
        Py_DECREF(function);
        return NULL;
    }
    PyTuple_SET_ITEM(inputs, count - 1, function);
    return inputs;
}

/* The continuation at a target, with the closure of the function that is left. */
static PyObject *
continuation(ResumeTarget *target, PyObject *function, PyObject *known)
{
    return target->closes ? bound(target->function, function, known, &target->last)
                          : Py_NewRef(target->function);
}

/* (..., method, object) becomes (..., value, continuation), in place or moved about. Steals `value`
 * and `next`. */
static PyObject *
moved_about(const BreakStep *l, PyObject *state, PyObject *value, PyObject *next)
{
    Py_ssize_t method = PyTuple_GET_SIZE(state) - 2, moved = l->moved;
    if (l->in_place && Py_REFCNT(state) == 1) {
        PyObject **end = ((PyTupleObject *)state)->ob_item + method, *former[] = {end[0], end[1]};
        end[0] = value;
        end[1] = next;
        Py_DECREF(former[0]);
        Py_DECREF(former[1]);
        return Py_NewRef(state);
    }
    PyObject *inputs = PyTuple_New(moved + 1);
    for (Py_ssize_t i = 0; inputs != NULL && i < moved; i++) {
        PyTuple_SET_ITEM(
            inputs, i,
            Py_NewRef(l->moves[i] == method ? value : PyTuple_GET_ITEM(state, l->moves[i])));
    }
    Py_DECREF(value);
    if (inputs == NULL) {
        Py_DECREF(next);
        return NULL;
    }
    PyTuple_SET_ITEM(inputs, moved, next);
    return inputs;
}

/* A step that reads a value, without a frame: 1 if it is made. 0 if it cannot be made like that;
 * the state is then as it was, and if the object refused, it will refuse again, in the frame that
 * makes the step. */
static int
read_value(BreakStep *l, PyObject *function, PyObject *known, PyObject *state,
           ResumeTarget **target, PyObject **inputs)
{
    Py_ssize_t count = PyTuple_GET_SIZE(state);
    if (count != l->arguments || count < 2) {
        return 0;
    }
    PyObject *const *end = ((PyTupleObject *)state)->ob_item + count - 2;
    ResumeTarget *first = (ResumeTarget *)PyTuple_GET_ITEM(l->targets, 0);
    if (end[0] != l->read || Py_TYPE(end[1]) != l->of || first->function == NULL) {
        return 0;
    }
    Py_INCREF(first);
    PyObject *next = continuation(first, function, known);
    PyObject *value = next == NULL ? NULL : PyObject_Vectorcall(l->read, end + 1, 1, NULL);
    if (value == NULL) {
        Py_XDECREF(next);
    }
    *inputs = value == NULL ? NULL : moved_about(l, state, value, next);
    if (*inputs == NULL) {
        error_settle();
        Py_DECREF(first);
        return 0;
    }
    *target = first;
    return 1;
}

int
break_step_make(BreakStep *l, PyObject *function, PyObject *known, PyObject *state,
                ResumeTarget **target, PyObject **inputs)
{
    if (l->call == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this step was taken apart by the garbage collector");
        Py_DECREF(state);
        return -1;
    }
    if (l->read != NULL && read_value(l, function, known, state, target, inputs)) {
        Py_DECREF(state);
        return 1;
    }
    PyObject *step = l->closes ? bound(l->call, function, known, &l->last) : Py_NewRef(l->call);
    PyObject *moved = NULL, *next = NULL;
    if (step != NULL) {
        PyObject *const *values = ((PyTupleObject *)state)->ob_item;
        size_t count = (size_t)PyTuple_GET_SIZE(state);
        moved = l->callees == NULL ? PyObject_Vectorcall(step, values, count, NULL)
                                   : callees_call(l->callees, step, values, count);
        Py_DECREF(step);
    }
    Py_DECREF(state);
    ResumeTarget *found = moved == NULL ? NULL : landed(l, moved);
    if (found != NULL) {
        next = continuation(found, function, known);
    }
    if (next == NULL) {
        Py_XDECREF(moved);
        return -1;
    }
    *target = (ResumeTarget *)Py_NewRef(found);
    *inputs = as_inputs(moved, next);
    if (*inputs == NULL) {
        Py_CLEAR(*target);
        return -1;
    }
    return 0;
}

static PyObject *
break_step_go(BreakStep *l, PyObject *args)
{
    PyObject *function, *state, *inputs;
    ResumeTarget *target;
    if (!PyArg_ParseTuple(args, "O!O!", &PyFunction_Type, &function, &PyTuple_Type, &state) ||
        break_step_make(l, function, NULL, Py_NewRef(state), &target, &inputs) < 0) {
        return NULL;
    }
    PyObject *pending = pending_resume_new(target, inputs);
    Py_DECREF(target);
    return pending;
}

static PyMethodDef break_step_methods[] = {
    {"go", (PyCFunction)break_step_go, METH_VARARGS,
     "go(function, state): make the step from a state of this function, and say where the program "
     "goes on."},
    {NULL},
};

static PyMemberDef break_step_members[] = {
    {"targets", T_OBJECT, offsetof(BreakStep, targets), READONLY, "Where the program may go on."},
    {"callees", T_OBJECT, offsetof(BreakStep, callees), 0,
     "Asked about functions that start in the step, or None: `callees_call`."},
    {"idle", T_BOOL, offsetof(BreakStep, idle), 0, "Has the segment before it no graph?"},
    {NULL},
};

PyTypeObject BreakStepType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator._native.BreakStep",
    .tp_doc = "BreakStep(code, namespace, targets[, read, of, moves]): the step behind a segment. "
              "The code takes the state and gives back the number of a target and what that takes. "
              "With `read` it only calls this method of an object of type `of`, both at the end of "
              "the state, and goes to the first target with the parts `moves` of the state.",
    .tp_basicsize = sizeof(BreakStep),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = break_step_new,
    .tp_dealloc = (destructor)break_step_dealloc,
    .tp_traverse = (traverseproc)break_step_traverse,
    .tp_clear = (inquiry)break_step_clear,
    .tp_methods = break_step_methods,
    .tp_members = break_step_members,
};

int
break_step_setup(PyObject *module)
{
    return PyModule_AddType(module, &BreakStepType) < 0 ||
                   PyModule_AddType(module, &ResumeTargetType) < 0 ||
                   PyModule_AddType(module, &PendingResumeType) < 0
               ? -1
               : 0;
}

/* Leaving a segment at a break: the step that Python makes, and where the program lands.
 *
 * A replay that ends at a break gives back a state. `Leave` makes the step from there: it calls a function with the state,
 * which says at which `Landing` the program goes on and with what. The landing knows the shelf of the recordings that start
 * there. It belongs to one recording, so that shelf is the same for all compiled callables which share the recording.
 *
 * A `Jump` is what Python code gets to see: a landing and what the continuation there takes.
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
remember(Found *last, PyObject *known, PyObject *function)
{
    last->version = dict_version(known);
    last->function = function;
}

/* A function with the same code and the closure of `original`. `known` (or NULL) holds those that were made for this closure
 * before. */
static PyObject *
bound(PyObject *function, PyObject *original, PyObject *known, Found *last)
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
        PyErr_SetString(PyExc_ValueError, "a continuation needs the closure of the function that it continues");
        return NULL;
    }
    PyObject *made = PyFunction_New(code, PyFunction_GET_GLOBALS(function));
    if (made != NULL &&
        (PyFunction_SetClosure(made, closure) < 0 || (known != NULL && PyDict_SetItem(known, function, made) < 0))) {
        Py_CLEAR(made);
    }
    if (made != NULL && known != NULL) {
        remember(last, known, made);
    }
    return made;
}

/* ---- landings ---- */

static PyTypeObject LandingType;

static PyObject *
landing_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *way, *code, *namespace;
    if (!PyArg_ParseTuple(args, "OO!O!", &way, &PyCode_Type, &code, &PyDict_Type, &namespace)) {
        return NULL;
    }
    Landing *l = (Landing *)type->tp_alloc(type, 0);
    if (l != NULL) {
        l->way = Py_NewRef(way);
        l->function = unbound(code, namespace);
        l->closes = ((PyCodeObject *)code)->co_nfreevars > 0;
        if (l->function == NULL) {
            Py_CLEAR(l);
        }
    }
    return (PyObject *)l;
}

static int
landing_traverse(Landing *l, visitproc visit, void *arg)
{
    Py_VISIT(l->way);
    Py_VISIT(l->function);
    Py_VISIT(l->shelf);
    return 0;
}

static int
landing_clear(Landing *l)
{
    Py_CLEAR(l->way);
    Py_CLEAR(l->function);
    Py_CLEAR(l->shelf);
    return 0;
}

static void
landing_dealloc(Landing *l)
{
    PyObject_GC_UnTrack(l);
    landing_clear(l);
    Py_TYPE(l)->tp_free(l);
}

static PyObject *
landing_open(Landing *l, PyObject *shelf)
{
    if (!Py_IS_TYPE(shelf, &ShelfType)) {
        PyErr_SetString(PyExc_TypeError, "open(shelf) takes a Shelf");
        return NULL;
    }
    Py_XSETREF(l->shelf, (Shelf *)Py_NewRef(shelf));
    Py_RETURN_NONE;
}

static PyMethodDef landing_methods[] = {
    {"open", (PyCFunction)landing_open, METH_O, "open(shelf): C code may go on here by itself, with these recordings."},
    {NULL},
};

static PyMemberDef landing_members[] = {
    {"way", T_OBJECT, offsetof(Landing, way), READONLY, "The place in the program."},
    {"shelf", T_OBJECT, offsetof(Landing, shelf), READONLY, "The recordings from there on, or None."},
    {NULL},
};

static PyTypeObject LandingType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator._native.Landing",
    .tp_doc = "Landing(way, code, namespace): one place where the program goes on after a break.",
    .tp_basicsize = sizeof(Landing),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = landing_new,
    .tp_dealloc = (destructor)landing_dealloc,
    .tp_traverse = (traverseproc)landing_traverse,
    .tp_clear = (inquiry)landing_clear,
    .tp_methods = landing_methods,
    .tp_members = landing_members,
};

/* ---- jumps ---- */

typedef struct {
    PyObject_HEAD
    Landing *landing;
    PyObject *inputs; /* NULL once they were taken */
} Jump;

static PyTypeObject JumpType;

PyObject *
jump_new(Landing *landing, PyObject *inputs)
{
    Jump *j = PyObject_GC_New(Jump, &JumpType);
    if (j == NULL) {
        Py_DECREF(inputs);
        return NULL;
    }
    j->landing = (Landing *)Py_NewRef(landing);
    j->inputs = inputs;
    PyObject_GC_Track(j);
    return (PyObject *)j;
}

static int
jump_traverse(Jump *j, visitproc visit, void *arg)
{
    Py_VISIT(j->landing);
    Py_VISIT(j->inputs);
    return 0;
}

static int
jump_clear(Jump *j)
{
    Py_CLEAR(j->landing);
    Py_CLEAR(j->inputs);
    return 0;
}

static void
jump_dealloc(Jump *j)
{
    PyObject_GC_UnTrack(j);
    jump_clear(j);
    PyObject_GC_Del(j);
}

static PyObject *
jump_take(Jump *j, PyObject *Py_UNUSED(none))
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

static PyMethodDef jump_methods[] = {
    {"take", (PyCFunction)jump_take, METH_NOARGS, "(function, slots): the call that goes on, the slots in a list; the jump lets go of it."},
    {NULL},
};

static PyMemberDef jump_members[] = {
    {"landing", T_OBJECT, offsetof(Jump, landing), READONLY, "Where the program goes on."},
    {NULL},
};

static PyTypeObject JumpType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator._native.Jump",
    .tp_doc = "The program goes on at a landing.",
    .tp_basicsize = sizeof(Jump),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)jump_dealloc,
    .tp_traverse = (traverseproc)jump_traverse,
    .tp_clear = (inquiry)jump_clear,
    .tp_methods = jump_methods,
    .tp_members = jump_members,
};

/* ---- leaving ---- */

static int
set_read(Leave *l, PyObject *read, PyObject *of, PyObject *moves)
{
    Py_ssize_t count = PyTuple_GET_SIZE(moves), arguments = ((PyCodeObject *)PyFunction_GET_CODE(l->call))->co_argcount;
    l->arguments = arguments;
    l->moves = PyMem_Malloc((size_t)(count + 1) * sizeof(int));
    if (l->moves == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    l->in_place = count == arguments - 1;
    for (l->moved = 0; l->moved < count; l->moved++) {
        long from = PyLong_AsLong(PyTuple_GET_ITEM(moves, l->moved));
        if (from < 0 || from > arguments - 2 || PyTuple_GET_SIZE(l->landings) == 0) {
            PyErr_SetString(PyExc_ValueError, "a step moves parts of the state to the first landing");
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
leave_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *code, *namespace, *landings, *read = NULL, *of = NULL, *moves = NULL;
    if (!PyArg_ParseTuple(args, "O!O!O!|OO!O!", &PyCode_Type, &code, &PyDict_Type, &namespace, &PyTuple_Type, &landings,
                          &read, &PyType_Type, &of, &PyTuple_Type, &moves)) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(landings); i++) {
        if (!Py_IS_TYPE(PyTuple_GET_ITEM(landings, i), &LandingType)) {
            PyErr_SetString(PyExc_TypeError, "Leave takes landings");
            return NULL;
        }
    }
    Leave *l = (Leave *)type->tp_alloc(type, 0);
    if (l != NULL) {
        l->landings = Py_NewRef(landings);
        l->call = unbound(code, namespace);
        l->closes = ((PyCodeObject *)code)->co_nfreevars > 0;
        if (l->call == NULL || (moves != NULL && set_read(l, read, of, moves) < 0)) {
            Py_CLEAR(l);
        }
    }
    return (PyObject *)l;
}

static int
leave_traverse(Leave *l, visitproc visit, void *arg)
{
    Py_VISIT(l->call);
    Py_VISIT(l->landings);
    Py_VISIT(l->read);
    Py_VISIT(l->of);
    return 0;
}

static int
leave_clear(Leave *l)
{
    Py_CLEAR(l->call);
    Py_CLEAR(l->landings);
    Py_CLEAR(l->read);
    Py_CLEAR(l->of);
    return 0;
}

static void
leave_dealloc(Leave *l)
{
    PyObject_GC_UnTrack(l);
    leave_clear(l);
    PyMem_Free(l->moves);
    Py_TYPE(l)->tp_free(l);
}

/* Which landing a step has come to; borrowed. NULL with an exception. */
static Landing *
landed(Leave *l, PyObject *moved)
{
    Py_ssize_t number = -1;
    if (PyTuple_CheckExact(moved) && PyTuple_GET_SIZE(moved) > 0 && PyLong_CheckExact(PyTuple_GET_ITEM(moved, 0))) {
        number = PyLong_AsSsize_t(PyTuple_GET_ITEM(moved, 0));
    }
    if (number < 0 || l->landings == NULL || number >= PyTuple_GET_SIZE(l->landings)) {
        PyErr_SetString(PyExc_SystemError, "a step gives back the number of a landing, and what that takes");
        return NULL;
    }
    Landing *landing = (Landing *)PyTuple_GET_ITEM(l->landings, number);
    if (landing->function == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this landing was taken apart by the garbage collector");
        return NULL;
    }
    return landing;
}

/* (number, values...) becomes (values..., function), in place if nobody else has it. Steals both. */
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

/* The continuation at a landing, with the closure of the function that is left. */
static PyObject *
continuation(Landing *landing, PyObject *function, PyObject *known)
{
    return landing->closes ? bound(landing->function, function, known, &landing->last) : Py_NewRef(landing->function);
}

/* (..., method, object) becomes (..., value, continuation), in place or moved about. Steals `value` and `next`. */
static PyObject *
moved_about(const Leave *l, PyObject *state, PyObject *value, PyObject *next)
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
        PyTuple_SET_ITEM(inputs, i, Py_NewRef(l->moves[i] == method ? value : PyTuple_GET_ITEM(state, l->moves[i])));
    }
    Py_DECREF(value);
    if (inputs == NULL) {
        Py_DECREF(next);
        return NULL;
    }
    PyTuple_SET_ITEM(inputs, moved, next);
    return inputs;
}

/* A step that reads a value, without a frame: 1 if it is made. 0 if it cannot be made like that; the state is then as it was,
 * and if the object refused, it will refuse again, in the frame that makes the step. */
static int
read_value(Leave *l, PyObject *function, PyObject *known, PyObject *state, Landing **landing, PyObject **inputs)
{
    Py_ssize_t count = PyTuple_GET_SIZE(state);
    if (count != l->arguments || count < 2) {
        return 0;
    }
    PyObject *const *end = ((PyTupleObject *)state)->ob_item + count - 2;
    Landing *first = (Landing *)PyTuple_GET_ITEM(l->landings, 0);
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
        PyErr_Clear();
        Py_DECREF(first);
        return 0;
    }
    *landing = first;
    return 1;
}

int
leave_step(Leave *l, PyObject *function, PyObject *known, PyObject *state, Landing **landing, PyObject **inputs)
{
    if (l->call == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this step was taken apart by the garbage collector");
        Py_DECREF(state);
        return -1;
    }
    if (l->read != NULL && read_value(l, function, known, state, landing, inputs)) {
        Py_DECREF(state);
        return 1;
    }
    PyObject *step = l->closes ? bound(l->call, function, known, &l->last) : Py_NewRef(l->call);
    PyObject *moved = NULL, *next = NULL;
    if (step != NULL) {
        moved = PyObject_Vectorcall(step, ((PyTupleObject *)state)->ob_item, (size_t)PyTuple_GET_SIZE(state), NULL);
        Py_DECREF(step);
    }
    Py_DECREF(state);
    Landing *found = moved == NULL ? NULL : landed(l, moved);
    if (found != NULL) {
        next = continuation(found, function, known);
    }
    if (next == NULL) {
        Py_XDECREF(moved);
        return -1;
    }
    *landing = (Landing *)Py_NewRef(found);
    *inputs = as_inputs(moved, next);
    if (*inputs == NULL) {
        Py_CLEAR(*landing);
        return -1;
    }
    return 0;
}

static PyObject *
leave_go(Leave *l, PyObject *args)
{
    PyObject *function, *state, *inputs;
    Landing *landing;
    if (!PyArg_ParseTuple(args, "O!O!", &PyFunction_Type, &function, &PyTuple_Type, &state) ||
        leave_step(l, function, NULL, Py_NewRef(state), &landing, &inputs) < 0) {
        return NULL;
    }
    PyObject *jump = jump_new(landing, inputs);
    Py_DECREF(landing);
    return jump;
}

static PyMethodDef leave_methods[] = {
    {"go", (PyCFunction)leave_go, METH_VARARGS,
     "go(function, state): make the step from a state of this function, and say where the program goes on."},
    {NULL},
};

static PyMemberDef leave_members[] = {
    {"landings", T_OBJECT, offsetof(Leave, landings), READONLY, "Where the program may go on."},
    {NULL},
};

PyTypeObject LeaveType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator._native.Leave",
    .tp_doc = "Leave(code, namespace, landings[, read, of, moves]): the step behind a segment. The code takes the state and gives "
              "back the number of a landing and what that takes. With `read` it only calls this method of an object of type "
              "`of`, both at the end of the state, and goes to the first landing with the parts `moves` of the state.",
    .tp_basicsize = sizeof(Leave),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = leave_new,
    .tp_dealloc = (destructor)leave_dealloc,
    .tp_traverse = (traverseproc)leave_traverse,
    .tp_clear = (inquiry)leave_clear,
    .tp_methods = leave_methods,
    .tp_members = leave_members,
};

int
leave_setup(PyObject *module)
{
    return PyModule_AddType(module, &LeaveType) < 0 || PyModule_AddType(module, &LandingType) < 0 ||
                   PyModule_AddType(module, &JumpType) < 0
               ? -1
               : 0;
}

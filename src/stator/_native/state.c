/* torch's global state: everything that changes what an operation does and is not among its arguments.
 *
 * It is read by C functions of torch, which `replay.engine` names; none of them runs code of the program.
 */
#include "guard.h"

/* How an answer becomes a number. */
enum { NUMBER, IS_NONE, NUMBER_OR_NONE, OBJECT };

static struct {
    PyObject *function; /* owned; NULL: `level` is read */
    PyObject *argument; /* owned, or NULL */
    int how;
} readers[STATE_SIZE];

static PyObject *level_owner, *level_name; /* a namespace, and the name in it that holds the forward AD level */
static PyObject *any_autocast, *autocast;  /* functions */
static int ready;

static int
as_number(PyObject *answer, int how, intptr_t *out)
{
    switch (how) {
    case IS_NONE:
        *out = answer == Py_None;
        return 0;
    case OBJECT:
        *out = (intptr_t)answer;
        return 0;
    case NUMBER_OR_NONE:
        if (answer == Py_None) {
            *out = INTPTR_MIN;
            return 0;
        } /* fall through */
    default:
        if (!PyLong_Check(answer)) {
            return -1;
        }
        *out = PyLong_AsLong(answer);
        if (*out == -1 && PyErr_Occurred()) {
            PyErr_Clear();
            return -1;
        }
        return 0;
    }
}

static PyObject *
call_reader(PyObject *function, PyObject *argument)
{
    if (argument == NULL && PyCFunction_CheckExact(function) && PyCFunction_GET_FLAGS(function) == METH_NOARGS) {
        return PyCFunction_GET_FUNCTION(function)(PyCFunction_GET_SELF(function), NULL);
    }
    return argument == NULL ? PyObject_CallNoArgs(function) : PyObject_CallOneArg(function, argument);
}

int
state_read(TorchState *state)
{
    state->autocast = NULL;
    if (!ready) {
        return -1;
    }
    for (int i = 0; i < STATE_SIZE; i++) {
        PyObject *answer;
        if (readers[i].function == NULL) {
            answer = Py_XNewRef(PyDict_GetItemWithError(level_owner, level_name));
        }
        else {
            answer = call_reader(readers[i].function, readers[i].argument);
        }
        int bad = answer == NULL || as_number(answer, readers[i].how, &state->values[i]) < 0;
        Py_XDECREF(answer);
        if (bad) {
            PyErr_Clear();
            return -1;
        }
    }
    PyObject *on = call_reader(any_autocast, NULL);
    if (on == Py_True) {
        state->autocast = PyObject_CallNoArgs(autocast);
    }
    else if (on != NULL) {
        state->autocast = Py_NewRef(Py_None);
    }
    Py_XDECREF(on);
    if (state->autocast == NULL) {
        PyErr_Clear();
        return -1;
    }
    return 0;
}

int
state_from(TorchState *state, PyObject *tuple)
{
    state->autocast = NULL;
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != STATE_SIZE + 1) {
        PyErr_SetString(PyExc_TypeError, "torch's state is a tuple of ten");
        return -1;
    }
    for (int i = 0; i < STATE_SIZE; i++) {
        int how = readers[i].how == IS_NONE ? NUMBER : readers[i].how; /* the tuple has the answer to "is it None?" */
        if (as_number(PyTuple_GET_ITEM(tuple, i), how, &state->values[i]) < 0) {
            PyErr_SetString(PyExc_TypeError, "a part of torch's state is no number");
            return -1;
        }
    }
    state->autocast = Py_NewRef(PyTuple_GET_ITEM(tuple, STATE_SIZE));
    return 0;
}

int
state_same(const TorchState *a, const TorchState *b)
{
    for (int i = 0; i < STATE_SIZE; i++) {
        if (a->values[i] != b->values[i]) {
            return 0;
        }
    }
    if (a->autocast == b->autocast) {
        return 1;
    }
    if (a->autocast == Py_None || b->autocast == Py_None) {
        return 0;
    }
    int same = PyObject_RichCompareBool(a->autocast, b->autocast, Py_EQ); /* tuples of bools and dtypes */
    if (same < 0) {
        PyErr_Clear();
    }
    return same > 0;
}

void
state_clear(TorchState *state)
{
    Py_CLEAR(state->autocast);
}

static PyObject *
state_learn(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *list, *owner, *name, *any, *all;
    if (!PyArg_ParseTuple(args, "O!O!UOO", &PyTuple_Type, &list, &PyDict_Type, &owner, &name, &any, &all)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(list) != STATE_SIZE) {
        PyErr_SetString(PyExc_ValueError, "state_learn takes nine readers");
        return NULL;
    }
    ready = 0;
    for (int i = 0; i < STATE_SIZE; i++) {
        PyObject *function, *argument, *row = PyTuple_GET_ITEM(list, i);
        if (!PyTuple_Check(row) || !PyArg_ParseTuple(row, "OOi", &function, &argument, &readers[i].how)) {
            return NULL;
        }
        Py_XSETREF(readers[i].function, function == Py_None ? NULL : Py_NewRef(function));
        Py_XSETREF(readers[i].argument, argument == Py_None ? NULL : Py_NewRef(argument));
    }
    Py_XSETREF(level_owner, Py_NewRef(owner));
    Py_XSETREF(level_name, Py_NewRef(name));
    Py_XSETREF(any_autocast, Py_NewRef(any));
    Py_XSETREF(autocast, Py_NewRef(all));
    ready = 1;
    Py_RETURN_NONE;
}

static PyObject *
state_is(PyObject *Py_UNUSED(module), PyObject *tuple)
{
    TorchState wanted, now;
    if (state_from(&wanted, tuple) < 0) {
        return NULL;
    }
    int same = state_read(&now) == 0 && state_same(&wanted, &now);
    state_clear(&wanted);
    state_clear(&now);
    return PyBool_FromLong(same);
}

static PyMethodDef functions[] = {
    {"state_learn", state_learn, METH_VARARGS,
     "Who is asked for torch's state: nine rows (function or None, argument or None, how), the namespace and name of "
     "the forward AD level, a function that says whether autocast is on, and one that says how."},
    {"state_is", state_is, METH_O, "Is torch's state as in this tuple?"},
    {NULL},
};

int
state_setup(PyObject *module)
{
#define ADD(name) || PyModule_AddIntConstant(module, "STATE_" #name, name) < 0
    return PyModule_AddFunctions(module, functions) < 0 ADD(NUMBER) ADD(IS_NONE) ADD(NUMBER_OR_NONE) ADD(OBJECT) ? -1 : 0;
}

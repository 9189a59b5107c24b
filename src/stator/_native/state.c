/* torch's global state: everything that changes what an operation does and is not among its
 * arguments.
 *
 * It is read by C functions of torch, which `replay/state.py` names; none of them runs code of the
 * program. Called as Python calls them, some take longer than all else that is done for a call;
 * those are asked *directly*, if the functions behind them are found and were seen to give the same
 * answers.
 */
#include "guard.h"
#include <dlfcn.h>

/* How an answer becomes a number. */
enum { NUMBER, IS_NONE, NUMBER_OR_NONE, OBJECT };

static struct {
    PyObject *function; /* owned; NULL: `level` is read */
    PyObject *argument; /* owned, or NULL */
    int how;
} readers[STATE_SIZE];

/* a namespace, and the name in it that holds the forward AD level */
static PyObject *level_owner, *level_name;
/* the version of that namespace when `level` was read; 0: never */
static uint64_t level_seen;
static intptr_t level;
static PyObject *any_autocast, *autocast; /* functions */
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

/* ---- directly ---- */

/* C++ functions by the names that the linker knows. All take nothing; C code sees what they return
 * as it does any pointer, number or bool. */
static struct {
    int (*grad)(void);             /* a bool: the lowest byte */
    int (*inference)(void);        /* likewise */
    int (*dtype)(void);            /* the number of the default dtype: the lowest byte */
    int64_t (*functions)(void);    /* how many torch function modes */
    int64_t (*dispatches)(void);   /* how many torch dispatch modes */
    void *const *(*tracing)(void); /* where a shared pointer lies: NULL if nothing is traced */
    void *const *(*layers)(void);  /* the vector of functorch's levels: begin, end, ... */
    /* the deque of saved tensor hooks: map, its size, where it starts (4), ends (4) */
    void *const *(*hooks)(void);
    void *(*context)(void);       /* what the next four are methods of */
    int (*deterministic)(void *); /* a bool, as the next two */
    int (*warns)(void *);
    int (*fills)(void *);
    int (*precision)(void *, int backend, int op); /* an enumeration, as its arguments are */
    int precisions;                                /* how many of the rows below count */
} direct;
/* As in support/guard_readers.py: PRECISION_ROWS. */
enum { FOR_CUDA = 1, FOR_MKLDNN, OF_CONV = 1, OF_MATMUL = 3, ROWS = 3 };
static const int rows[ROWS][2] = {
    {FOR_MKLDNN, OF_MATMUL}, {FOR_CUDA, OF_MATMUL}, {FOR_CUDA, OF_CONV}};
#define KEYS "_ZN3c104impl26raw_local_dispatch_key_setE"
static void *tls_library; /* in which each thread finds its dispatch keys */
static int is_direct;     /* all of them are there and were verified */
/* of this thread: included, excluded; as differences to the default */
static __thread const uint64_t *keys;
/* what the reader said for each number of a default dtype; 0: not asked yet */
static intptr_t dtypes[256];

enum {
    AT_GRAD,
    AT_TRACING,
    AT_INFERENCE,
    AT_DTYPE,
    AT_FUNCTIONS,
    AT_DISPATCHES,
    AT_LAYERS,
    AT_HOOKS,
    AT_SETTINGS
};
enum { DEQUE_START = 2, DEQUE_END = 6 };

/* Are this thread's dispatch keys as they were at the start? An operation is traced, comes to a
 * dispatch mode, to functorch or to autocast by a key that is set for as long as that is on (or not
 * excluded any more): then none of them is. */
static int
keys_are_default(void)
{
    if (keys == NULL) {
        keys = dlsym(tls_library, KEYS); /* those of this thread */
    }
    return keys != NULL && (keys[0] | keys[1]) == 0;
}

/* As `facts.torch_settings` does. */
static intptr_t
read_settings(void)
{
    void *context = direct.context();
    intptr_t number = ((direct.deterministic(context) & 0xFF) != 0) |
                      ((direct.warns(context) & 0xFF) != 0) << 1 |
                      ((direct.fills(context) & 0xFF) != 0) << 2;
    for (int i = 0; i < direct.precisions; i++) {
        number += (intptr_t)direct.precision(context, rows[i][0], rows[i][1]) << (4 * (i + 1));
    }
    return number;
}

/* Fills in what can be told at once, and gives back which parts these are, as bits. What is not has
 * to be asked in the long way. `plain`: keys_are_default(). */
static unsigned
read_directly(intptr_t *values, int plain)
{
    unsigned known = 0;
#define TELL(i, value) (values[i] = (value), known |= 1u << (i))
    TELL(AT_GRAD, (direct.grad() & 0xFF) != 0);
    TELL(AT_INFERENCE, (direct.inference() & 0xFF) != 0);
    TELL(AT_FUNCTIONS, (intptr_t)direct.functions());
    TELL(AT_TRACING, plain || *direct.tracing() == NULL);
    TELL(AT_DISPATCHES, plain ? 0 : (intptr_t)direct.dispatches());
    void *const *layers = plain ? NULL : direct.layers();
    if (layers == NULL || layers[0] == layers[1]) {
        TELL(AT_LAYERS, INTPTR_MIN);
    }
    void *const *hooks = direct.hooks();
    if (hooks[DEQUE_START] == hooks[DEQUE_END]) {
        TELL(AT_HOOKS, 1);
    }
    TELL(AT_SETTINGS, read_settings());
    intptr_t dtype = dtypes[direct.dtype() & 0xFF];
    if (dtype != 0) {
        TELL(AT_DTYPE, dtype);
    }
#undef TELL
    return known;
}

static PyObject *
call_reader(PyObject *function, PyObject *argument)
{
    if (argument == NULL && PyCFunction_CheckExact(function) &&
        PyCFunction_GET_FLAGS(function) == METH_NOARGS) {
        return PyCFunction_GET_FUNCTION(function)(PyCFunction_GET_SELF(function), NULL);
    }
    return argument == NULL ? PyObject_CallNoArgs(function)
                            : PyObject_CallOneArg(function, argument);
}

/* The forward AD level. While the version of its namespace stands, it is the one that was read
 * last. */
static int
read_level(intptr_t *out)
{
    uint64_t version = dict_version(level_owner);
    if (version == 0 || version != level_seen) {
        PyObject *answer = PyDict_GetItemWithError(level_owner, level_name);
        level_seen = 0;
        if (answer == NULL || as_number(answer, NUMBER, &level) < 0) {
            return -1;
        }
        level_seen = version;
    }
    *out = level;
    return 0;
}

/* Part i of the state, as Python reads it. */
static int
read_slowly(int i, intptr_t *out)
{
    if (readers[i].function == NULL) {
        return read_level(out);
    }
    PyObject *answer = call_reader(readers[i].function, readers[i].argument);
    int bad = answer == NULL || as_number(answer, readers[i].how, out) < 0;
    Py_XDECREF(answer);
    if (!bad && is_direct && i == AT_DTYPE) {
        dtypes[direct.dtype() & 0xFF] = *out; /* dtypes live for ever */
    }
    return bad ? -1 : 0;
}

int
state_read(TorchState *state)
{
    state->autocast = NULL;
    if (!ready) {
        return -1;
    }
    int plain = is_direct && keys_are_default();
    unsigned known = is_direct ? read_directly(state->values, plain) : 0;
    for (int i = 0; i < STATE_SIZE; i++) {
        if (!(known >> i & 1) && read_slowly(i, &state->values[i]) < 0) {
            PyErr_Clear();
            return -1;
        }
    }
    if (plain) {
        state->autocast = Py_NewRef(Py_None);
        return 0;
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
        error_settle();
        return -1;
    }
    return 0;
}

int
state_has_function_modes(void)
{
    intptr_t count = -1;
    if (is_direct) {
        count = (intptr_t)direct.functions();
    }
    else if (ready && read_slowly(AT_FUNCTIONS, &count) < 0) {
        PyErr_Clear();
        return 1;
    }
    return count != 0;
}

int
state_from(TorchState *state, PyObject *tuple)
{
    state->autocast = NULL;
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != STATE_SIZE + 1) {
        PyErr_SetString(PyExc_TypeError, "torch's state is a tuple of eleven");
        return -1;
    }
    for (int i = 0; i < STATE_SIZE; i++) {
        /* the tuple has the answer to "is it None?" */
        int how = readers[i].how == IS_NONE ? NUMBER : readers[i].how;
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
    /* tuples of bools and dtypes */
    int same = PyObject_RichCompareBool(a->autocast, b->autocast, Py_EQ);
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
    if (!PyArg_ParseTuple(args, "O!O!UOO", &PyTuple_Type, &list, &PyDict_Type, &owner, &name, &any,
                          &all)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(list) != STATE_SIZE) {
        PyErr_SetString(PyExc_ValueError, "state_learn takes ten readers");
        return NULL;
    }
    ready = is_direct = 0;
    level_seen = 0;
    for (int i = 0; i < STATE_SIZE; i++) {
        PyObject *function, *argument, *row = PyTuple_GET_ITEM(list, i);
        if (!PyTuple_Check(row) ||
            !PyArg_ParseTuple(row, "OOi", &function, &argument, &readers[i].how)) {
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

/* Finds the functions that are asked directly, or with an empty path forgets them. */
static PyObject *
state_direct(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *cpu_path, *core_path;
    int precisions;
    if (!PyArg_ParseTuple(args, "ssi", &cpu_path, &core_path, &precisions)) {
        return NULL;
    }
    is_direct = 0;
    direct.precisions = precisions < 0 ? 0 : precisions > ROWS ? ROWS : precisions;
    memset(dtypes, 0, sizeof dtypes);
    if (*cpu_path == 0 || *core_path == 0) {
        Py_RETURN_FALSE;
    }
    void *cpu = dlopen(cpu_path, RTLD_LAZY | RTLD_NOLOAD),
         *core = dlopen(core_path, RTLD_LAZY | RTLD_NOLOAD);
    if (cpu != NULL && core != NULL) { /* torch has loaded them, and never unloads them */
        *(void **)&direct.grad = dlsym(core, "_ZN3c108GradMode10is_enabledEv");
        *(void **)&direct.inference = dlsym(core, "_ZN3c1013InferenceMode10is_enabledEv");
        *(void **)&direct.dtype = dlsym(core, "_ZN3c1031get_default_dtype_as_scalartypeEv");
        *(void **)&direct.functions = dlsym(cpu, "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv");
        *(void **)&direct.dispatches =
            dlsym(core, "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv");
        *(void **)&direct.tracing = dlsym(cpu, "_ZN5torch3jit6tracer15getTracingStateEv");
        *(void **)&direct.layers = dlsym(cpu, "_ZN2at9functorch20getDynamicLayerStackEv");
        *(void **)&direct.hooks = dlsym(cpu, "_ZN2at23SavedTensorDefaultHooks13get_tls_stateEv");
        *(void **)&direct.context = dlsym(cpu, "_ZN2at13globalContextEv");
        *(void **)&direct.deterministic = dlsym(cpu, "_ZNK2at7Context23deterministicAlgorithmsEv");
        *(void **)&direct.warns = dlsym(cpu, "_ZNK2at7Context31deterministicAlgorithmsWarnOnlyEv");
        *(void **)&direct.fills =
            dlsym(cpu, "_ZNK2at7Context36deterministicFillUninitializedMemoryEv");
        *(void **)&direct.precision =
            dlsym(cpu, "_ZNK2at7Context16float32PrecisionENS_14Float32BackendENS_9Float32OpE");
        tls_library = core;
        is_direct = direct.grad != NULL && direct.inference != NULL && direct.dtype != NULL &&
                    direct.functions != NULL && direct.dispatches != NULL &&
                    direct.tracing != NULL && direct.layers != NULL && direct.hooks != NULL &&
                    direct.context != NULL && direct.deterministic != NULL &&
                    direct.warns != NULL && direct.fills != NULL && direct.precision != NULL &&
                    dlsym(core, KEYS) != NULL;
    }
    return PyBool_FromLong(is_direct);
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
     "Who is asked for torch's state: ten rows (function or None, argument or None, how), the "
     "namespace and name of the forward AD level, a function that says whether autocast is on, and "
     "one that says how."},
    {"state_direct", state_direct, METH_VARARGS,
     "state_direct(libtorch_cpu, libc10, number of precisions): ask what can be asked without "
     "Python's calls; with empty paths, nothing. Is it so?"},
    {"state_is", state_is, METH_O, "Is torch's state as in this tuple?"},
    {NULL},
};

int
state_setup(PyObject *module)
{
#define ADD(name) || PyModule_AddIntConstant(module, "STATE_" #name, name) < 0
    return PyModule_AddFunctions(module, functions) < 0 ADD(NUMBER) ADD(IS_NONE) ADD(NUMBER_OR_NONE)
                                                          ADD(OBJECT)
               ? -1
               : 0;
}

/* stator._native: the module object, its constants and the small functions that fit nowhere
 * else. */
#include "ledger.h"

#define AS_NAME(name) #name,
const char *const kind_names[KIND_COUNT] = {PROBE_KINDS(AS_NAME)};

PyObject *missing = NULL;

static PyObject *
current(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    Watcher *w = thread_here.watcher;
    return Py_NewRef(w == NULL ? Py_None : (PyObject *)w);
}

static PyObject *
state(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyLong_FromLong(thread_here.state);
}

static PyObject *
interrupted(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyLong_FromLong(thread_here.interrupted);
}

static PyObject *
hook_installed_method(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyBool_FromLong(hook_installed());
}

static PyObject *
type_version(PyObject *Py_UNUSED(module), PyObject *type)
{
    if (!PyType_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "type_version(T) takes a type");
        return NULL;
    }
    return PyLong_FromUnsignedLong(type_version_tag((PyTypeObject *)type));
}

static int
found_first(PyObject *object, void *found)
{
    *(PyObject **)found = object;
    return 1;
}

/* What a mappingproxy shows: the one object that it holds. */
static PyObject *
proxied(PyObject *proxy, void *Py_UNUSED(closure))
{
    PyObject *found = NULL;
    Py_TYPE(proxy)->tp_traverse(proxy, found_first, &found);
    if (found == NULL || !PyMapping_Check(found)) {
        PyErr_SetString(PyExc_SystemError, "a mappingproxy that holds no mapping");
        return NULL;
    }
    return Py_NewRef(found);
}

static PyGetSetDef proxied_getset = {"proxied", proxied, NULL, "What a mappingproxy shows.", NULL};

static PyObject *
mro_lookup(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyType_Check(args[0]) || !PyUnicode_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "mro_lookup(T, name) takes a type and a string");
        return NULL;
    }
    PyObject *found = _PyType_Lookup((PyTypeObject *)args[0], args[1]);
    return Py_NewRef(found == NULL ? missing : found);
}

static PyObject *
surely_binds(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3 || !PyFunction_Check(args[0]) || !PyLong_Check(args[1]) ||
        !PyTuple_Check(args[2])) {
        PyErr_SetString(
            PyExc_TypeError,
            "surely_binds(function, given, names) takes a function, an int and a tuple");
        return NULL;
    }
    Py_ssize_t given = PyLong_AsSsize_t(args[1]);
    if (given == -1 && PyErr_Occurred()) {
        return NULL;
    }
    return PyBool_FromLong(filter_surely_binds(args[0], given, args[2]));
}

static PyObject *
as_iterator(PyObject *Py_UNUSED(module), PyObject *object)
{
    if (!PyIter_Check(object)) {
        return PyErr_Format(PyExc_TypeError, "iter() returned non-iterator of type '%.100s'",
                            Py_TYPE(object)->tp_name);
    }
    return Py_NewRef(object);
}

/* Small ints and constants are shared, so their identity says nothing of where they came from; a
 * copy's does. */
static PyObject *
distinct(PyObject *Py_UNUSED(module), PyObject *number)
{
    if (PyUnicode_CheckExact(number) && PyUnicode_GET_LENGTH(number) > 0) {
        Py_ssize_t length = PyUnicode_GET_LENGTH(number);
        /* also of one character: a new one */
        PyObject *text = PyUnicode_New(length, PyUnicode_MAX_CHAR_VALUE(number));
        if (text != NULL && PyUnicode_CopyCharacters(text, 0, number, 0, length) < 0) {
            Py_CLEAR(text);
        }
        return text;
    }
    if (PyFloat_CheckExact(number)) {
        return PyFloat_FromDouble(PyFloat_AS_DOUBLE(number));
    }
    if (!PyLong_CheckExact(number)) {
        PyErr_SetString(PyExc_TypeError,
                        "distinct(value) takes an int, a float or a text that is not empty");
        return NULL;
    }
    Py_ssize_t digits = long_digits((PyLongObject *)number);
    PyLongObject *copy = _PyLong_New(digits);
    if (copy == NULL) {
        return NULL;
    }
    memcpy((char *)copy + sizeof(PyObject), (char *)number + sizeof(PyObject),
           long_size(digits) - sizeof(PyObject));
    return (PyObject *)copy;
}

static PyObject *
raise_again(PyObject *error, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(error)), Py_NewRef(error),
                  PyException_GetTraceback(error));
    return NULL;
}

static PyMethodDef raise_again_method = {"raise_again", (PyCFunction)(void (*)(void))raise_again,
                                         METH_VARARGS | METH_KEYWORDS, NULL};

static PyObject *
raising(PyObject *Py_UNUSED(module), PyObject *error)
{
    if (!PyExceptionInstance_Check(error)) {
        PyErr_SetString(PyExc_TypeError, "raising(error) takes an exception");
        return NULL;
    }
    return PyCFunction_New(&raise_again_method, error);
}

static PyMethodDef functions[] = {
    {"current", current, METH_NOARGS, "The watcher that runs in this thread, or None."},
    {"state", state, METH_NOARGS, "This thread's state: OFF, WATCHING or SENTINEL."},
    {"interrupted", interrupted, METH_NOARGS,
     "The state in which the program was when it called our own code."},
    {"hook_installed", hook_installed_method, METH_NOARGS,
     "Is our frame evaluator the installed one?"},
    {"enter", filter_enter, METH_O,
     "C code that reads objects of these types reads what they hold."},
    {"type_version", type_version, METH_O,
     "The type's version tag, assigned if need be; 0 if there is none."},
    {"mro_lookup", FAST(mro_lookup),
     "What the type's MRO holds under a name, no descriptor invoked; MISSING if nothing."},
    {"surely_binds", FAST(surely_binds),
     "Does a function take so many positional arguments, and these names? False in doubt."},
    {"distinct", distinct, METH_O, "Another object that is the same int, float or text."},
    {"raising", raising, METH_O,
     "A function of any arguments that raises this error, and has no frame."},
    {"as_iterator", as_iterator, METH_O,
     "What GET_ITER makes of a result of __iter__: itself, if it is an iterator."},
    {"tensor_version", tensor_version, METH_O, "A tensor's version counter; None if it has none."},
    {"fingerprint", FAST(tensor_fingerprint),
     "(version, address, dtype, shape, requires_grad) of a tensor; address 0 unless its layout is "
     "the one given."},
    {"tensors_are", FAST(tensors_are),
     "The class of tensors, and its base in C: their attributes are asked without a lookup from "
     "now on."},
    {"frame_takes", FAST(frame_takes), "Is this object an argument of a frame?"},
    {"answers", call_each, METH_O,
     "What each function of a tuple answers, called without arguments."},
    {NULL},
};

static int
add_constants(PyObject *module)
{
#define ADD_STATE(name) || PyModule_AddIntConstant(module, #name, STATE_##name) < 0
#define ADD_CODE(name) || PyModule_AddIntConstant(module, #name, CODE_##name) < 0
#define ADD_KIND(name) || PyModule_AddIntConstant(module, #name, KIND_##name) < 0
    return 0 STATES(ADD_STATE) CODE_KINDS(ADD_CODE) PROBE_KINDS(ADD_KIND) ? -1 : 0;
}

/* A value of its own type, so that it prints as what it is. */
static int
add_missing(PyObject *module)
{
    PyObject *type = PyObject_CallFunction((PyObject *)&PyType_Type, "s(){s:s}", "MISSING",
                                           "__module__", "stator._native");
    if (type == NULL) {
        return -1;
    }
    missing = PyObject_CallNoArgs(type);
    Py_DECREF(type);
    if (missing == NULL || PyModule_AddObjectRef(module, "MISSING", missing) < 0) {
        return -1;
    }
    PyObject *descriptor = PyDescr_NewGetSet(&PyDictProxy_Type, &proxied_getset);
    int failed = descriptor == NULL ? -1 : PyModule_AddObjectRef(module, "proxied", descriptor);
    Py_XDECREF(descriptor);
    return failed;
}

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "stator._native",
    .m_doc = "The native layer: frame hook, probes and watcher. Mechanism only; the policy is in "
             "stator.watch.",
    .m_size = -1, /* one eval hook and one co_extra index per process */
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit__native(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) {
        return NULL;
    }
    if (PyModule_AddType(module, &ProbeType) < 0 || PyModule_AddType(module, &WatcherType) < 0 ||
        PyModule_AddType(module, &OriginType) < 0 || PyModule_AddType(module, &LedgerType) < 0 ||
        chain_setup(module) < 0 || builtins_setup(module) < 0 || shortcuts_setup() < 0 ||
        fingerprint_setup() < 0 || codeinfo_setup(module) < 0 || tensor_setup(module) < 0 ||
        tracer_setup(module) < 0 || symbol_setup(module) < 0 || watched_setup(module) < 0 ||
        state_setup(module) < 0 || guards_setup(module) < 0 || formula_setup(module) < 0 ||
        entry_table_setup(module) < 0 || relay_setup(module) < 0 || tape_setup(module) < 0 ||
        host_setup(module) < 0 || break_step_setup(module) < 0 || dispatch_setup(module) < 0 ||
        add_constants(module) < 0 || add_missing(module) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}

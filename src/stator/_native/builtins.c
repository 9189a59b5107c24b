/* The builtins that our own Python code is written with. A program may replace `len`, or put keys
 * in their dict that run code when they are compared: while that is so, none of our Python code
 * runs, and no name is looked up there.
 *
 * What the names meant is noted when the module is imported. Whether they still do is asked before
 * each event, so the answer is remembered with the dict's version.
 */
#include "native.h"

static PyObject *builtins;             /* the dict */
static PyObject *meant;                /* name -> what it was */
static const volatile uint64_t *place; /* of the dict's version; NULL: it has none just now */
static uint64_t version;
static int intact;

/* Programs replace these to look on, or to be asked, and none of our code is led astray by it; or
 * it does not use them. */
static const char *const LEFT_OUT[] = {
    "_",          "print",      "input",   "open",    "breakpoint", "help",       "exit",
    "quit",       "copyright",  "credits", "license", "eval",       "__import__", "__build_class__",
    "__debug__",  "__loader__", "aiter",   "anext",   "bin",        "divmod",     "hex",
    "memoryview", "oct",        "ord",     "pow",     NULL};

static int
is_left_out(PyObject *name)
{
    for (const char *const *left = LEFT_OUT; *left != NULL; left++) {
        if (PyUnicode_CompareWithASCIIString(name, *left) == 0) {
            return 1;
        }
    }
    return 0;
}

static int
note_meaning(void)
{
    PyObject *name, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(builtins, &at, &name, &value)) {
        if (PyUnicode_CheckExact(name) && (PyCallable_Check(value) || value == Py_NotImplemented) &&
            !is_left_out(name) && PyDict_SetItem(meant, name, value) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Looks at the entries one by one: a lookup in that dict might run code of the program. */
static int
compare(void)
{
    PyObject *name, *value;
    Py_ssize_t at = 0, found = 0;
    while (PyDict_Next(builtins, &at, &name, &value)) {
        if (!PyUnicode_CheckExact(name)) {
            return 0;
        }
        PyObject *was = PyDict_GetItemWithError(meant, name);
        if (was != NULL && was != value) {
            return 0;
        }
        found += was != NULL;
    }
    return found == PyDict_GET_SIZE(meant);
}

int
builtins_intact(void)
{
    if (place == NULL || *place != version) {
        SavedError error = error_save();
        version = dict_version(builtins);
        place = version == 0 ? NULL : dict_version_place(builtins);
        intact = compare();
        error_restore(error);
    }
    return intact;
}

static PyObject *
builtins_intact_method(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyBool_FromLong(builtins_intact());
}

static PyMethodDef functions[] = {
    {"builtins_intact", builtins_intact_method, METH_NOARGS,
     "Do the names of builtins mean what they did at import?"},
    {NULL},
};

int
builtins_setup(PyObject *module)
{
    PyObject *imported = PyImport_ImportModule("builtins");
    if (imported == NULL) {
        return -1;
    }
    builtins = Py_NewRef(PyModule_GetDict(imported));
    Py_DECREF(imported);
    meant = PyDict_New();
    if (meant == NULL || note_meaning() < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}

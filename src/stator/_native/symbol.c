/* Symbolic numbers: ints and floats of a watched run that stand for any number of their kind.
 *
 * They are instances of static subclasses of `int` and `float` that add no field, so what makes
 * them symbolic can be taken away at any time, wherever they are: `turn_plain` sets their type, and
 * they are the plain numbers that they always were. What they stand for is known to
 * `watch/symbols/symbolic_numbers.py`, by address.
 *
 * Number protocol, comparing, hashing and printing ask the watcher of this thread, if it watches
 * just now; else, and where it answers NotImplemented, a symbolic number is its value. C code that
 * reads the value past these is the business of the probes (probe.c).
 */
#include "native.h"
#include <math.h>

static PyTypeObject IntType, FloatType;

enum {
    ADD,
    SUB,
    MUL,
    MOD,
    DIVMOD,
    POW,
    FLOORDIV,
    TRUEDIV,
    LSHIFT,
    RSHIFT,
    AND,
    OR,
    XOR,
    NEG,
    POS,
    ABS,
    INVERT,
    TRUTH,
    INT,
    FLOAT,
    LT,
    LE,
    EQ,
    NE,
    GT,
    GE,
    HASH,
    REPR,
    NAMES
};
static const char *const texts[NAMES] = {"+",   "-",   "*",  "%",    "divmod", "**",    "//",
                                         "/",   "<<",  ">>", "&",    "|",      "^",     "neg",
                                         "pos", "abs", "~",  "bool", "int",    "float", "<",
                                         "<=",  "==",  "!=", ">",    ">=",     "hash",  "repr"};
static PyObject *names[NAMES];

int
is_symbol(PyObject *x)
{
    return Py_IS_TYPE(x, &IntType) || Py_IS_TYPE(x, &FloatType);
}

PyObject *
symbol_value(PyObject *x)
{
    return PyFloat_Check(x) ? PyFloat_Type.tp_as_number->nb_float(x)
                            : PyLong_Type.tp_as_number->nb_int(x);
}

/* What the recording makes of an operation: a new reference; NULL without an exception: nothing, it
 * is plain. */
static PyObject *
consult(int name, PyObject *a, PyObject *b)
{
    Thread *t = &thread_here;
    PyObject *handler = t->state == STATE_WATCHING ? Py_XNewRef(t->watcher->on_symbol) : NULL;
    if (handler == NULL) {
        return NULL;
    }
    PyObject *args[3] = {names[name], a, b};
    PyObject *result = watcher_call(t->watcher, handler, args, b == NULL ? 2 : 3);
    Py_DECREF(handler);
    if (result == Py_NotImplemented) {
        Py_CLEAR(result);
    }
    return result;
}

/* ---- the number protocol ---- */

/* The slot of the plain type that both operands, or one of them, call for. */
#define BINARY(function, slot, name)                                                               \
    static PyObject *function(PyObject *a, PyObject *b)                                            \
    {                                                                                              \
        PyObject *result = consult(name, a, b);                                                    \
        if (result != NULL) {                                                                      \
            return result;                                                                         \
        }                                                                                          \
        binaryfunc plain = PyFloat_Check(a) || PyFloat_Check(b) ? PyFloat_Type.tp_as_number->slot  \
                                                                : PyLong_Type.tp_as_number->slot;  \
        return plain == NULL ? Py_NewRef(Py_NotImplemented) : plain(a, b);                         \
    }

BINARY(number_add, nb_add, ADD)
BINARY(number_subtract, nb_subtract, SUB)
BINARY(number_multiply, nb_multiply, MUL)
BINARY(number_remainder, nb_remainder, MOD)
BINARY(number_divmod, nb_divmod, DIVMOD)
BINARY(number_floor_divide, nb_floor_divide, FLOORDIV)
BINARY(number_true_divide, nb_true_divide, TRUEDIV)
BINARY(number_lshift, nb_lshift, LSHIFT)
BINARY(number_rshift, nb_rshift, RSHIFT)
BINARY(number_and, nb_and, AND)
BINARY(number_or, nb_or, OR)
BINARY(number_xor, nb_xor, XOR)

static PyObject *
number_power(PyObject *a, PyObject *b, PyObject *modulus)
{
    PyObject *result = modulus == Py_None ? consult(POW, a, b) : NULL;
    if (result != NULL) {
        return result;
    }
    int real = PyFloat_Check(a) || PyFloat_Check(b);
    return (real ? &PyFloat_Type : &PyLong_Type)->tp_as_number->nb_power(a, b, modulus);
}

#define UNARY(function, slot, name)                                                                \
    static PyObject *function(PyObject *a)                                                         \
    {                                                                                              \
        PyObject *result = consult(name, a, NULL);                                                 \
        if (result != NULL) {                                                                      \
            return result;                                                                         \
        }                                                                                          \
        return (PyFloat_Check(a) ? &PyFloat_Type : &PyLong_Type)->tp_as_number->slot(a);           \
    }

UNARY(number_negative, nb_negative, NEG)
UNARY(number_positive, nb_positive, POS)
UNARY(number_absolute, nb_absolute, ABS)
UNARY(number_int, nb_int, INT)
UNARY(number_float, nb_float, FLOAT)

static PyObject *
number_invert(PyObject *a)
{
    PyObject *result = consult(INVERT, a, NULL);
    return result != NULL ? result : PyLong_Type.tp_as_number->nb_invert(a);
}

static int
number_bool(PyObject *a)
{
    PyObject *result = consult(TRUTH, a, NULL);
    Py_XDECREF(result);
    return (PyFloat_Check(a) ? &PyFloat_Type : &PyLong_Type)->tp_as_number->nb_bool(a);
}

/* ---- the rest ---- */

static PyObject *
number_compare(PyObject *a, PyObject *b, int op)
{
    static const int kinds[] = {[Py_LT] = LT, [Py_LE] = LE, [Py_EQ] = EQ,
                                [Py_NE] = NE, [Py_GT] = GT, [Py_GE] = GE};
    PyObject *result = consult(kinds[op], a, b);
    if (result != NULL) {
        return result;
    }
    int real = PyFloat_Check(a) || PyFloat_Check(b);
    return (real && PyLong_Check(a)
                ? PyFloat_Type.tp_richcompare(b, a,
                                              (int[]){Py_GT, Py_GE, Py_EQ, Py_NE, Py_LT, Py_LE}[op])
            : real ? PyFloat_Type.tp_richcompare(a, b, op)
                   : PyLong_Type.tp_richcompare(a, b, op));
}

static Py_hash_t
number_hash(PyObject *a)
{
    Py_XDECREF(consult(HASH, a, NULL));
    return (PyFloat_Check(a) ? &PyFloat_Type : &PyLong_Type)->tp_hash(a);
}

static PyObject *
number_repr(PyObject *a)
{
    Py_XDECREF(consult(REPR, a, NULL));
    return (PyFloat_Check(a) ? &PyFloat_Type : &PyLong_Type)->tp_repr(a);
}

static PyNumberMethods int_numbers = {
    .nb_add = number_add,
    .nb_subtract = number_subtract,
    .nb_multiply = number_multiply,
    .nb_remainder = number_remainder,
    .nb_divmod = number_divmod,
    .nb_power = number_power,
    .nb_floor_divide = number_floor_divide,
    .nb_true_divide = number_true_divide,
    .nb_lshift = number_lshift,
    .nb_rshift = number_rshift,
    .nb_and = number_and,
    .nb_or = number_or,
    .nb_xor = number_xor,
    .nb_negative = number_negative,
    .nb_positive = number_positive,
    .nb_absolute = number_absolute,
    .nb_invert = number_invert,
    .nb_bool = number_bool,
    .nb_int = number_int,
    .nb_float = number_float,
};

static PyNumberMethods float_numbers = {
    .nb_add = number_add,
    .nb_subtract = number_subtract,
    .nb_multiply = number_multiply,
    .nb_remainder = number_remainder,
    .nb_divmod = number_divmod,
    .nb_power = number_power,
    .nb_floor_divide = number_floor_divide,
    .nb_true_divide = number_true_divide,
    .nb_negative = number_negative,
    .nb_positive = number_positive,
    .nb_absolute = number_absolute,
    .nb_bool = number_bool,
    .nb_int = number_int,
    .nb_float = number_float,
};

/* Printed and pickled as the numbers that they are, and called so in messages. */
static PyTypeObject IntType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "int",
    .tp_doc = "An int of a watched run that stands for others.",
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_as_number = &int_numbers,
    .tp_richcompare = number_compare,
    .tp_hash = number_hash,
    .tp_repr = number_repr,
};

static PyTypeObject FloatType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "float",
    .tp_doc = "A float of a watched run that stands for others.",
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_as_number = &float_numbers,
    .tp_richcompare = number_compare,
    .tp_hash = number_hash,
    .tp_repr = number_repr,
};

/* ---- functions ---- */

static PyObject *
symbol(PyObject *Py_UNUSED(module), PyObject *number)
{
    PyTypeObject *plain = Py_TYPE(number);
    if (plain != &PyLong_Type && plain != &PyFloat_Type) {
        PyErr_SetString(PyExc_TypeError, "symbol(number) takes an int or a float");
        return NULL;
    }
    PyObject *args = PyTuple_Pack(1, number);
    PyObject *made = args == NULL
                         ? NULL
                         : plain->tp_new(plain == &PyLong_Type ? &IntType : &FloatType, args, NULL);
    Py_XDECREF(args);
    return made;
}

static PyObject *
turn_plain(PyObject *Py_UNUSED(module), PyObject *number)
{
    if (Py_IS_TYPE(number, &IntType)) {
        /* both types are static: nobody counts their instances */
        Py_SET_TYPE(number, &PyLong_Type);
    }
    else if (Py_IS_TYPE(number, &FloatType)) {
        Py_SET_TYPE(number, &PyFloat_Type);
    }
    Py_RETURN_NONE;
}

/* Puts a symbolic number in the place of an equal plain one. */
static PyObject *
swap_item(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Py_ssize_t index = nargs == 3 ? PyLong_AsSsize_t(args[1]) : -1;
    if (index < 0 || !PyTuple_Check(args[0]) || index >= PyTuple_GET_SIZE(args[0]) ||
        !(is_symbol(args[2]) || PyLong_CheckExact(args[2]) || PyFloat_CheckExact(args[2]))) {
        return PyErr_Occurred() ? NULL
                                : PyErr_Format(PyExc_TypeError, "swap_item(tuple, index, number)");
    }
    PyObject *old = PyTuple_GET_ITEM(args[0], index);
    int number = Py_IS_TYPE(old, &PyLong_Type) || Py_IS_TYPE(old, &PyFloat_Type);
    int equal = number ? PyObject_RichCompareBool(old, args[2], Py_EQ) : 0;
    /* what is not a number equals nothing */
    if (equal == 0 && number && PyFloat_Check(old) && PyFloat_Check(args[2])) {
        equal = isnan(PyFloat_AS_DOUBLE(old)) && isnan(PyFloat_AS_DOUBLE(args[2]));
    }
    if (equal <= 0) {
        return equal < 0 ? NULL
                         : PyErr_Format(PyExc_ValueError, "swap_item: an equal number is expected");
    }
    PyTuple_SET_ITEM(args[0], index, Py_NewRef(args[2]));
    Py_DECREF(old);
    Py_RETURN_NONE;
}

/* The places in an object at which it holds others: items, members of sets; else the words behind
 * the header that all objects of the type have. (Not more for Py_SIZE: generators have none.) */
static PyObject **
places_of(PyObject *holder, Py_ssize_t *count, Py_ssize_t *step)
{
    *step = 1;
    if (PyList_Check(holder) || PyTuple_Check(holder)) {
        *count = PySequence_Fast_GET_SIZE(holder);
        return PySequence_Fast_ITEMS(holder);
    }
    if (PyAnySet_Check(holder)) {
        *count = ((PySetObject *)holder)->mask + 1;
        *step = sizeof(setentry) / sizeof(PyObject *);
        return &((PySetObject *)holder)->table->key;
    }
    *count = Py_TYPE(holder)->tp_basicsize / (Py_ssize_t)sizeof(PyObject *) -
             (Py_ssize_t)(sizeof(PyObject) / sizeof(PyObject *));
    return (PyObject **)((char *)holder + sizeof(PyObject));
}

typedef struct {
    PyObject *sought;
    Py_ssize_t count;
} Visits;

static int
count_visit(PyObject *visited, void *arg)
{
    Visits *visits = arg;
    visits->count += visited == visits->sought;
    return 0;
}

/* swap(holder, old, new): what an object of a C type holds, held no more, but another in its place.
 * False, and nothing done: the collector visits it more often, or less, than it is found. */
static PyObject *
swap(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3) {
        return PyErr_Format(PyExc_TypeError, "swap(holder, old, new)");
    }
    PyObject *holder = args[0], *old = args[1];
    if (!PyObject_IS_GC(holder) || Py_TYPE(holder)->tp_traverse == NULL) {
        Py_RETURN_FALSE;
    }
    Visits visits = {old, 0};
    Py_TYPE(holder)->tp_traverse(holder, count_visit, &visits);
    Py_ssize_t count, step, found = 0;
    PyObject **places = places_of(holder, &count, &step);
    for (Py_ssize_t i = 0; i < count; i++) {
        found += places[i * step] == old;
    }
    if (found == 0 || found != visits.count) {
        Py_RETURN_FALSE;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (places[i * step] == old) {
            places[i * step] = Py_NewRef(args[2]);
            Py_DECREF(old); /* not the last one: the caller has it, too */
        }
    }
    Py_RETURN_TRUE;
}

/* `sum` and `math.prod` look into the ints that they add to a float or a bool; here every number is
 * asked, by `ask`. */
static PyObject *
add_up(PyObject *result, PyObject *item, binaryfunc step, binaryfunc ask)
{
    int looks = PyFloat_CheckExact(result) || PyBool_Check(result);
    return looks && is_symbol(item) ? ask(result, item) : step(result, item);
}

static PyObject *
accumulate(PyObject *items, PyObject *start, binaryfunc step, binaryfunc ask)
{
    PyObject *result = Py_NewRef(start), *item;
    while (result != NULL && (item = PyIter_Next(items)) != NULL) {
        Py_SETREF(result, add_up(result, item, step, ask));
        Py_DECREF(item);
    }
    if (PyErr_Occurred()) {
        Py_CLEAR(result);
    }
    return result;
}

#if PY_VERSION_HEX < 0x030C0000
#define SUM(items, start) accumulate(items, start, PyNumber_Add, number_add)
#else
#define SUM(items, start) compensated(items, start)

/* An int or a bool, plain or symbolic, that fits in a word. */
static int
is_word(PyObject *x)
{
    int overflow = 1;
    if (PyLong_CheckExact(x) || PyBool_Check(x) || Py_IS_TYPE(x, &IntType)) {
        PyLong_AsLongAndOverflow(x, &overflow);
    }
    return !overflow;
}

static int
is_float(PyObject *x)
{
    return PyFloat_CheckExact(x) || Py_IS_TYPE(x, &FloatType);
}

/* The value of a number, on which the run depends from now on. */
static PyObject *
settled(PyObject *number)
{
    if (!is_symbol(number)) {
        return Py_NewRef(number);
    }
    Py_XDECREF(consult(HASH, number, NULL));
    return PyErr_Occurred() ? NULL : symbol_value(number);
}

/* What `sum` makes of floats: `result`, `item` and the numbers after them, by their values.
 * `*other` is what follows. */
static PyObject *
sum_of_values(PyObject *items, PyObject *result, PyObject *item, PyObject **other)
{
    PyObject *start = settled(result), *numbers = PyList_New(0), *sum = NULL;
    PyObject *next = Py_NewRef(item);
    while (start != NULL && numbers != NULL && next != NULL &&
           (is_float(next) || PyLong_Check(next))) {
        PyObject *value = settled(next);
        int failed = value == NULL || PyList_Append(numbers, value) < 0;
        Py_XDECREF(value);
        Py_SETREF(next, failed ? NULL : PyIter_Next(items));
    }
    if (start != NULL && numbers != NULL && !PyErr_Occurred()) {
        PyObject *builtins = PyImport_ImportModule("builtins");
        sum = builtins == NULL ? NULL : PyObject_CallMethod(builtins, "sum", "OO", numbers, start);
        Py_XDECREF(builtins);
    }
    if (sum == NULL) {
        Py_CLEAR(next);
    }
    *other = next;
    Py_XDECREF(start);
    Py_XDECREF(numbers);
    return sum;
}

/* From 3.12 on `sum` keeps what rounding takes from a sum of floats. For that it compares them, so
 * their values count. It does so as long as it has met ints that fit in a word, and then floats. */
static PyObject *
compensated(PyObject *items, PyObject *start)
{
    PyObject *result = Py_NewRef(start), *item = NULL;
    int simple = (is_word(start) && !PyBool_Check(start)) || is_float(start);
    while (simple && result != NULL && (item = PyIter_Next(items)) != NULL) {
        simple = is_word(item) || (is_float(item) && !is_float(result));
        if (!simple && is_float(result) && (is_float(item) || PyLong_Check(item))) {
            PyObject *other = NULL;
            Py_SETREF(result, sum_of_values(items, result, item, &other));
            Py_SETREF(item, other);
        }
        if (result != NULL && item != NULL) {
            Py_SETREF(result, add_up(result, item, PyNumber_Add, number_add));
            simple = simple && result != NULL && (is_word(result) || is_float(result));
        }
        Py_CLEAR(item);
    }
    if (PyErr_Occurred()) {
        Py_CLEAR(result);
    }
    if (result != NULL && !simple) {
        Py_SETREF(result, accumulate(items, result, PyNumber_Add, number_add));
    }
    return result;
}
#endif

static PyObject *
total(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs < 1 || nargs > 2) {
        return PyErr_Format(PyExc_TypeError, "sum() takes one or two arguments, not %zd", nargs);
    }
    PyObject *items = PyObject_GetIter(args[0]);
    PyObject *start = nargs == 2 ? Py_NewRef(args[1]) : PyLong_FromLong(0);
    PyObject *result = items == NULL || start == NULL ? NULL : SUM(items, start);
    Py_XDECREF(items);
    Py_XDECREF(start);
    return result;
}

static PyObject *
product(PyObject *Py_UNUSED(module), PyObject *iterable)
{
    PyObject *items = PyObject_GetIter(iterable), *start = PyLong_FromLong(1), *result = NULL;
    if (items != NULL && start != NULL) {
        result = accumulate(items, start, PyNumber_Multiply, number_multiply);
    }
    Py_XDECREF(items);
    Py_XDECREF(start);
    return result;
}

static PyMethodDef functions[] = {
    {"total", FAST(total), "`sum`, by the number protocol alone."},
    {"product", product, METH_O, "`math.prod`, by the number protocol alone."},
    {"symbol", symbol, METH_O, "A symbolic number with this value."},
    {"turn_plain", turn_plain, METH_O, "A symbolic number is a plain one from now on."},
    {"swap_item", FAST(swap_item),
     "Put a symbolic number in the place of an equal plain one in a tuple, or the other way "
     "round."},
    {"swap", FAST(swap), "Put an object in the place of another one that a holder holds."},
    {NULL},
};

/* A symbol in here, or in a container in here? Containers that hold themselves end at some
 * depth. */
int
holds_symbol(PyObject *x, int depth)
{
    if (is_symbol(x)) {
        return 1;
    }
    if (depth == 0) {
        return PyTuple_Check(x) || PyList_Check(x) || PyDict_Check(x);
    }
    if (PyTuple_Check(x) || PyList_Check(x)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(x); i++) {
            PyObject *item = PySequence_Fast_GET_ITEM(x, i);
            if (item != NULL && holds_symbol(item, depth - 1)) {
                return 1;
            }
        }
    }
    else if (PyDict_Check(x)) {
        PyObject *key, *value;
        for (Py_ssize_t pos = 0; PyDict_Next(x, &pos, &key, &value);) {
            if (holds_symbol(key, depth - 1) || holds_symbol(value, depth - 1)) {
                return 1;
            }
        }
    }
    else if (PySlice_Check(x)) {
        PySliceObject *s = (PySliceObject *)x;
        return is_symbol(s->start) || is_symbol(s->stop) || is_symbol(s->step);
    }
    return 0;
}

int
symbol_setup(PyObject *module)
{
    for (int i = 0; i < NAMES; i++) {
        if ((names[i] = PyUnicode_InternFromString(texts[i])) == NULL) {
            return -1;
        }
    }
    IntType.tp_base = &PyLong_Type;
    FloatType.tp_base = &PyFloat_Type;
    if (PyType_Ready(&IntType) < 0 || PyType_Ready(&FloatType) < 0) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "Int", (PyObject *)&IntType) < 0 ||
                   PyModule_AddObjectRef(module, "Float", (PyObject *)&FloatType) < 0 ||
                   PyModule_AddFunctions(module, functions) < 0
               ? -1
               : 0;
}

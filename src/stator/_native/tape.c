/* A graph as a tape: its operations one after the other, called from C, without a frame and without
 * names to look up.
 *
 * `replay.tape` makes it from an fx graph. Values lie in registers; the first ones are the inputs,
 * which the caller owns. A value is let go of behind the last operation that takes it, as the code
 * that fx writes does.
 */
#include "native.h"

/* so many registers, and so many arguments, need no memory from the heap */
enum { FEW = 24, SIGNALS_EVERY = 16 };

/* What a part of an argument is: a register, an object, or made of other parts. */
enum { IN_REGISTER, AS_CONSTANT, AS_TUPLE, AS_LIST, AS_SLICE, AS_DICT };
enum { STEP_CALL, STEP_METHOD, STEP_BINARY };

typedef struct TapePart {
    int kind;
    int index;              /* IN_REGISTER */
    int count;              /* of `items` */
    PyObject *object;       /* AS_CONSTANT; the keys of a DICT, a tuple. Owned, or NULL */
    struct TapePart *items; /* owned, or NULL */
} TapePart;

typedef struct {
    int kind;
    PyObject *target; /* a callable, or the name of a method. Owned */
    binaryfunc binary;
    PyObject *keywords; /* a tuple, or NULL */
    TapePart *args;     /* positional ones, then those of the keywords */
    int count;
    int made;  /* must any of them be made? */
    int out;   /* register of the result; -1: nobody wants it */
    int *last; /* registers that are not used behind this step */
    int last_count;
} TapeStep;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    TapeStep *steps;
    int step_count, inputs, registers, most; /* `most`: arguments of a step */
    int harmless; /* if one of so many first steps fails nothing is lost. 0: not known */
    TapePart result;
    int ready; /* 0: being made, or taken apart by the garbage collector */
} Tape;

static PyTypeObject TapeType;

/* ---- making ---- */

static int
refuse(const char *what)
{
    if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "tape: %s", what);
    }
    return -1;
}

static int parts_from(Tape *t, PyObject *list, TapePart **parts, int *count);

/* (kind, what): `what` is a number, an object, a list of parts, or for a dict (keys, list of
 * parts). */
static int
part_from(Tape *t, PyObject *pair, TapePart *p)
{
    PyObject *what;
    if (!PyTuple_Check(pair) || !PyArg_ParseTuple(pair, "iO", &p->kind, &what)) {
        return refuse("a part is a pair");
    }
    switch (p->kind) {
    case IN_REGISTER:
        p->index = (int)PyLong_AsLong(what);
        return p->index < 0 || p->index >= t->registers ? refuse("there is no such register") : 0;
    case AS_CONSTANT:
        p->object = Py_NewRef(what);
        return 0;
    case AS_TUPLE:
    case AS_LIST:
        return parts_from(t, what, &p->items, &p->count);
    case AS_SLICE:
        return parts_from(t, what, &p->items, &p->count) < 0 || p->count != 3
                   ? refuse("a slice has three parts")
                   : 0;
    case AS_DICT: {
        PyObject *keys, *items;
        if (!PyTuple_Check(what) || !PyArg_ParseTuple(what, "O!O", &PyTuple_Type, &keys, &items)) {
            return refuse("a dict is keys and parts");
        }
        p->object = Py_NewRef(keys);
        return parts_from(t, items, &p->items, &p->count) < 0 || p->count != PyTuple_GET_SIZE(keys)
                   ? refuse("as many keys as parts")
                   : 0;
    }
    default:
        return refuse("no such part");
    }
}

static int
parts_from(Tape *t, PyObject *list, TapePart **parts, int *count)
{
    if (!PyList_Check(list)) {
        return refuse("parts are a list");
    }
    Py_ssize_t size = PyList_GET_SIZE(list);
    *parts = PyMem_Calloc((size_t)size + 1, sizeof(TapePart));
    if (*parts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (*count = 0; *count < size; (*count)++) {
        if (part_from(t, PyList_GET_ITEM(list, *count), *parts + *count) < 0) {
            (*count)++; /* it is to be cleared, too */
            return -1;
        }
    }
    return 0;
}

static PyObject *
power(PyObject *a, PyObject *b)
{
    return PyNumber_Power(a, b, Py_None);
}

static const struct {
    const char *name;
    binaryfunc function;
} BINARIES[] = {{"add", PyNumber_Add},
                {"sub", PyNumber_Subtract},
                {"mul", PyNumber_Multiply},
                {"truediv", PyNumber_TrueDivide},
                {"matmul", PyNumber_MatrixMultiply},
                {"pow", power},
                {"floordiv", PyNumber_FloorDivide},
                {"mod", PyNumber_Remainder},
                {"getitem", PyObject_GetItem}};

static int
binary_from(TapeStep *s)
{
    for (size_t i = 0; i < sizeof BINARIES / sizeof *BINARIES; i++) {
        if (PyUnicode_Check(s->target) &&
            PyUnicode_CompareWithASCIIString(s->target, BINARIES[i].name) == 0) {
            s->binary = BINARIES[i].function;
            return s->count == 2 && s->keywords == NULL ? 0
                                                        : refuse("an operator takes two values");
        }
    }
    return refuse("no such operator");
}

static int
last_from(Tape *t, TapeStep *s, PyObject *last)
{
    s->last = PyMem_Calloc((size_t)PyTuple_GET_SIZE(last) + 1, sizeof(int));
    if (s->last == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (; s->last_count < PyTuple_GET_SIZE(last); s->last_count++) {
        long index = PyLong_AsLong(PyTuple_GET_ITEM(last, s->last_count));
        if (index < t->inputs || index >= t->registers) {
            return refuse("only results are let go of");
        }
        s->last[s->last_count] = (int)index;
    }
    return 0;
}

/* (kind, target, parts, names of keywords, register of the result, registers that are done with) */
static int
step_from(Tape *t, TapeStep *s, PyObject *row)
{
    PyObject *target, *args, *keywords, *last;
    if (!PyTuple_Check(row) ||
        !PyArg_ParseTuple(row, "iOOO!iO!", &s->kind, &target, &args, &PyTuple_Type, &keywords,
                          &s->out, &PyTuple_Type, &last)) {
        return refuse("a step is a tuple of six");
    }
    s->target = Py_NewRef(target);
    s->keywords = PyTuple_GET_SIZE(keywords) == 0 ? NULL : Py_NewRef(keywords);
    if (s->out >= t->registers || (s->out >= 0 && s->out < t->inputs) ||
        parts_from(t, args, &s->args, &s->count) < 0 || last_from(t, s, last) < 0) {
        return refuse("a result has a register of its own");
    }
    if (PyTuple_GET_SIZE(keywords) > s->count ||
        (s->kind == STEP_METHOD && (!PyUnicode_Check(target) || s->count < 1))) {
        return refuse("a method has a name and an object");
    }
    for (int i = 0; i < s->count; i++) {
        s->made |= s->args[i].kind > AS_CONSTANT;
    }
    t->most = Py_MAX(t->most, s->count);
    return s->kind == STEP_BINARY                           ? binary_from(s)
           : s->kind == STEP_CALL || s->kind == STEP_METHOD ? 0
                                                            : refuse("no such step");
}

static PyObject *tape_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames);

static PyObject *
tape_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *steps, *result;
    int inputs, registers, harmless = 0;
    if (!PyArg_ParseTuple(args, "O!iiO|i", &PyList_Type, &steps, &inputs, &registers, &result,
                          &harmless)) {
        return NULL;
    }
    Tape *t = (Tape *)type->tp_alloc(type, 0);
    if (t == NULL) {
        return NULL;
    }
    t->call = tape_call;
    t->inputs = inputs;
    t->registers = registers;
    t->harmless = harmless;
    t->steps = PyMem_Calloc((size_t)PyList_GET_SIZE(steps) + 1, sizeof(TapeStep));
    int failed = inputs < 0 || registers < inputs || t->steps == NULL;
    for (; !failed && t->step_count < PyList_GET_SIZE(steps);) {
        TapeStep *s = &t->steps[t->step_count++];
        failed = step_from(t, s, PyList_GET_ITEM(steps, t->step_count - 1)) < 0;
    }
    if (failed || part_from(t, result, &t->result) < 0) {
        refuse("more inputs than registers");
        Py_CLEAR(t);
    }
    else {
        t->ready = 1;
    }
    return (PyObject *)t;
}

/* ---- running ---- */

static PyObject *made_of(const TapePart *p, PyObject *const *registers);

static PyObject *
slice_of(const TapePart *p, PyObject *const *registers)
{
    PyObject *items[3] = {NULL}, *made = NULL;
    int done = 0;
    while (done < p->count && (items[done] = made_of(&p->items[done], registers)) != NULL) {
        done++;
    }
    if (done == p->count) {
        made = PySlice_New(items[0], items[1], items[2]);
    }
    for (int i = 0; i < 3; i++) {
        Py_XDECREF(items[i]);
    }
    return made;
}

/* Steals the item. */
static int
put_item(const TapePart *p, PyObject *made, int i, PyObject *item)
{
    if (p->kind == AS_TUPLE) {
        PyTuple_SET_ITEM(made, i, item);
        return 0;
    }
    if (p->kind == AS_LIST) {
        PyList_SET_ITEM(made, i, item);
        return 0;
    }
    int set = PyDict_SetItem(made, PyTuple_GET_ITEM(p->object, i), item);
    Py_DECREF(item);
    return set;
}

static PyObject *
made_of(const TapePart *p, PyObject *const *registers)
{
    switch (p->kind) {
    case IN_REGISTER:
        if (registers[p->index] == NULL) {
            PyErr_SetString(PyExc_SystemError, "a register is read before it is set");
        }
        return Py_XNewRef(registers[p->index]);
    case AS_CONSTANT:
        return Py_NewRef(p->object);
    case AS_SLICE:
        return slice_of(p, registers);
    default:
        break;
    }
    PyObject *made = p->kind == AS_TUPLE  ? PyTuple_New(p->count)
                     : p->kind == AS_LIST ? PyList_New(p->count)
                                          : PyDict_New();
    for (int i = 0; made != NULL && i < p->count; i++) {
        PyObject *item = made_of(&p->items[i], registers);
        if (item == NULL || put_item(p, made, i, item) < 0) {
            Py_CLEAR(made);
        }
    }
    return made;
}

static PyObject *
step_call(const TapeStep *s, PyObject **args)
{
    if (s->kind == STEP_BINARY) {
        return s->binary(args[0], args[1]);
    }
    size_t positional =
        (size_t)s->count - (s->keywords == NULL ? 0 : (size_t)PyTuple_GET_SIZE(s->keywords));
    positional |= PY_VECTORCALL_ARGUMENTS_OFFSET;
    return s->kind == STEP_METHOD
               ? PyObject_VectorcallMethod(s->target, args, positional, s->keywords)
               : PyObject_Vectorcall(s->target, args, positional, s->keywords);
}

/* One operation. `args` has room for the most arguments that a step takes. */
static int
step_run(const TapeStep *s, PyObject **registers, PyObject **args)
{
    int filled = 0;
    for (; filled < s->count; filled++) {
        const TapePart *p = &s->args[filled];
        args[filled] = p->kind == AS_CONSTANT   ? p->object
                       : p->kind == IN_REGISTER ? registers[p->index]
                                                : made_of(p, registers);
        if (args[filled] == NULL) {
            break;
        }
    }
    PyObject *result = NULL;
    if (filled == s->count) {
        result = step_call(s, args);
    }
    else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_SystemError, "a register is read before it is set");
    }
    for (int i = 0; s->made && i < filled; i++) {
        if (s->args[i].kind > AS_CONSTANT) {
            Py_DECREF(args[i]);
        }
    }
    if (result == NULL) {
        return -1;
    }
    for (int i = 0; i < s->last_count; i++) {
        Py_CLEAR(registers[s->last[i]]);
    }
    if (s->out < 0) {
        Py_DECREF(result);
    }
    else {
        Py_XSETREF(registers[s->out], result);
    }
    return 0;
}

/* What the graph gives: so many objects. */
static int
gather(const TapePart *parts, int count, PyObject *const *registers, PyObject **outputs)
{
    for (int i = 0; i < count; i++) {
        outputs[i] = made_of(&parts[i], registers);
        if (outputs[i] == NULL) {
            while (i > 0) {
                Py_DECREF(outputs[--i]);
            }
            return -1;
        }
    }
    return count;
}

/* `registers` holds the inputs, not owned, and room for all results; `args` that for the arguments
 * of a step. */
static int
run_all(Tape *t, const TapePart *parts, int count, PyObject **registers, PyObject **args,
        PyObject **outputs)
{
    int failed = 0;
    for (int i = 0; !failed && i < t->step_count; i++) {
        failed = step_run(&t->steps[i], registers, args) < 0;
        if (failed) {
            error_mark_unwritten(i < t->harmless);
        }
        failed = failed || (i % SIGNALS_EVERY == SIGNALS_EVERY - 1 && PyErr_CheckSignals() < 0);
    }
    int gathered = failed ? -1 : gather(parts, count, registers, outputs);
    for (int i = t->inputs; i < t->registers; i++) {
        Py_XDECREF(registers[i]);
    }
    return gathered;
}

/* Runs the tape for these parts of its result, new references. How many, or -1 with an
 * exception. */
static int
run(Tape *t, PyObject *const *inputs, Py_ssize_t given, const TapePart *parts, int count,
    PyObject **outputs)
{
    if (!t->ready || given != t->inputs) {
        PyErr_Format(PyExc_TypeError, "this graph takes %d inputs", t->inputs);
        return -1;
    }
    PyObject *few[FEW], *arguments[1 + FEW];
    int small = t->registers <= FEW && t->most <= FEW;
    PyObject **registers =
        small ? few
              : PyMem_Malloc(((size_t)t->registers + (size_t)t->most + 2) * sizeof(PyObject *));
    if (registers == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(registers, inputs, (size_t)t->inputs * sizeof(PyObject *));
    memset(registers + t->inputs, 0, (size_t)(t->registers - t->inputs) * sizeof(PyObject *));
    Py_INCREF(t);
    count = run_all(t, parts, count, registers, 1 + (small ? arguments : registers + t->registers),
                    outputs);
    Py_DECREF(t);
    if (!small) {
        PyMem_Free(registers);
    }
    return count;
}

static PyObject *
tape_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Tape *t = (Tape *)self;
    PyObject *result;
    if (kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0) {
        PyErr_SetString(PyExc_TypeError, "a graph takes no keywords");
        return NULL;
    }
    return run(t, args, PyVectorcall_NARGS(nargsf), &t->result, 1, &result) < 0 ? NULL : result;
}

int
tape_output_count(PyObject *graph)
{
    Tape *t = (Tape *)graph;
    return Py_IS_TYPE(graph, &TapeType) && t->ready && t->result.kind == AS_TUPLE ? t->result.count
                                                                                  : -1;
}

int
tape_outputs(PyObject *graph, PyObject *const *inputs, Py_ssize_t given, PyObject **outputs)
{
    Tape *t = (Tape *)graph;
    return run(t, inputs, given, t->result.items, t->result.count, outputs);
}

/* ---- as an object ---- */

static int
parts_visit(const TapePart *parts, int count, visitproc visit, void *arg)
{
    for (int i = 0; i < count; i++) {
        Py_VISIT(parts[i].object);
        int stop =
            parts_visit(parts[i].items, parts[i].items == NULL ? 0 : parts[i].count, visit, arg);
        if (stop) {
            return stop;
        }
    }
    return 0;
}

static void
parts_clear(TapePart *parts, int count)
{
    for (int i = 0; i < count; i++) {
        Py_CLEAR(parts[i].object);
        if (parts[i].items != NULL) {
            parts_clear(parts[i].items, parts[i].count);
            PyMem_Free(parts[i].items);
            parts[i].items = NULL;
        }
    }
}

static int
tape_traverse(Tape *t, visitproc visit, void *arg)
{
    for (int i = 0; i < t->step_count; i++) {
        Py_VISIT(t->steps[i].target);
        Py_VISIT(t->steps[i].keywords);
        int stop = parts_visit(t->steps[i].args, t->steps[i].count, visit, arg);
        if (stop) {
            return stop;
        }
    }
    return parts_visit(&t->result, 1, visit, arg);
}

static int
tape_clear(Tape *t)
{
    int count = t->step_count;
    t->ready = t->step_count = 0;
    for (int i = 0; i < count; i++) {
        TapeStep *s = &t->steps[i];
        Py_CLEAR(s->target);
        Py_CLEAR(s->keywords);
        if (s->args != NULL) {
            parts_clear(s->args, s->count);
        }
        PyMem_Free(s->args);
        PyMem_Free(s->last);
    }
    PyMem_Free(t->steps);
    t->steps = NULL;
    parts_clear(&t->result, 1);
    return 0;
}

static void
tape_dealloc(Tape *t)
{
    PyObject_GC_UnTrack(t);
    tape_clear(t);
    Py_TYPE(t)->tp_free(t);
}

static PyMemberDef tape_members[] = {
    {"inputs", T_INT, offsetof(Tape, inputs), READONLY, "How many there are."},
    {"registers", T_INT, offsetof(Tape, registers), READONLY, "How many values it has room for."},
    {NULL},
};

static PyTypeObject TapeType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator._native.Tape",
    .tp_doc = "Tape(steps, inputs, registers, result, harmless=0): the operations of a graph, to "
              "be called with its inputs.",
    .tp_basicsize = sizeof(Tape),
    .tp_vectorcall_offset = offsetof(Tape, call),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = tape_new,
    .tp_dealloc = (destructor)tape_dealloc,
    .tp_traverse = (traverseproc)tape_traverse,
    .tp_clear = (inquiry)tape_clear,
    .tp_members = tape_members,
};

/* expect_sizes(tensor, sizes, complain): `complain` is called with both if these are not its sizes,
 * and raises. */
static PyObject *
expect_sizes(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    static PyObject *name; /* interned once */
    if (nargs != 3 || (name == NULL && (name = PyUnicode_InternFromString("shape")) == NULL)) {
        return PyErr_Occurred()
                   ? NULL
                   : PyErr_Format(PyExc_TypeError, "expect_sizes(tensor, sizes, complain)");
    }
    PyObject *shape = PyObject_GetAttr(args[0], name);
    int equal = shape == NULL ? -1 : PyObject_RichCompareBool(shape, args[1], Py_EQ);
    Py_XDECREF(shape);
    if (equal == 0) {
        PyObject *both[] = {args[0], args[1]};
        return PyObject_Vectorcall(args[2], both, 2, NULL);
    }
    return equal < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef functions[] = {
    {"expect_sizes", FAST(expect_sizes), "Has a tensor these sizes?"},
    {NULL},
};

int
tape_setup(PyObject *module)
{
    if (PyModule_AddFunctions(module, functions) < 0) {
        return -1;
    }
    static const struct {
        const char *name;
        int value;
    } numbers[] = {{"TAPE_REGISTER", IN_REGISTER}, {"TAPE_CONSTANT", AS_CONSTANT},
                   {"TAPE_TUPLE", AS_TUPLE},       {"TAPE_LIST", AS_LIST},
                   {"TAPE_SLICE", AS_SLICE},       {"TAPE_DICT", AS_DICT},
                   {"TAPE_CALL", STEP_CALL},       {"TAPE_METHOD", STEP_METHOD},
                   {"TAPE_BINARY", STEP_BINARY}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (PyModule_AddIntConstant(module, numbers[i].name, numbers[i].value) < 0) {
            return -1;
        }
    }
    return PyModule_AddType(module, &TapeType);
}

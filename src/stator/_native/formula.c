/* Relations between sizes and numbers: arithmetic on 64 bits, on a small stack. A number that does
 * not fit makes the relation fail: nobody is served a recording that was not meant for the
 * call. */
#include "formula.h"

/* ---- reading ---- */

/* Sizes of a plain tensor; the strides follow at *strides. NULL if it is none that can be read. */
static const int64_t *
sizes_of(PyObject *value, int64_t *rank, const int64_t **strides)
{
    const TensorPlaces *at = &tensor_places;
    PyTypeObject *type = Py_TYPE(value);
    if (at->way == TENSOR_UNKNOWN || (type != at->types[0] && type != at->types[1])) {
        return NULL;
    }
    char *impl = TENSOR_AT(value, at->impl, char *);
    if (impl == NULL) {
        return NULL;
    }
    if (at->way == TENSOR_LAYOUT) {
        char *shape = impl + at->shape;
        *rank = TENSOR_AT(shape, 0, int64_t);
        int inside = *rank <= at->inline_rank;
        const int64_t *sizes =
            inside ? &TENSOR_AT(shape, 8, int64_t) : TENSOR_AT(shape, 8, const int64_t *);
        *strides = sizes + (inside ? at->inline_rank : *rank);
        return sizes;
    }
    void *tensor = (char *)value + at->impl;
    const int64_t *sizes;
    return at->get_dim(tensor, rank) || at->get_sizes(tensor, &sizes) ||
                   at->get_strides(tensor, strides)
               ? NULL
               : sizes;
}

static int
read_term(const FormulaStep *s, PyObject *value, int64_t *result)
{
    if (value == NULL) {
        return 0;
    }
    if (s->kind == STEP_NUMBER) {
        int overflow;
        *result = PyLong_CheckExact(value) ? PyLong_AsLongLongAndOverflow(value, &overflow)
                                           : (overflow = 1);
        return !overflow;
    }
    int64_t rank;
    const int64_t *strides, *sizes = sizes_of(value, &rank, &strides);
    if (sizes == NULL || s->b >= rank) {
        return 0;
    }
    *result = (s->kind == STEP_SIZE ? sizes : strides)[s->b];
    return 1;
}

/* ---- arithmetic ---- */

static int
floor_divide(int64_t a, int64_t b, int64_t *quotient, int64_t *rest)
{
    if (b == -1) { /* the quotient of the smallest number does not fit, the rest of any is 0 */
        *rest = 0;
        return !__builtin_sub_overflow(0, a, quotient);
    }
    if (b == 0) {
        return 0;
    }
    *quotient = a / b;
    *rest = a % b;
    if (*rest != 0 && (*rest < 0) != (b < 0)) { /* as Python rounds */
        *quotient -= 1;
        *rest += b;
    }
    return 1;
}

static int
power(int64_t base, int64_t exponent, int64_t *result)
{
    *result = 1;
    if (exponent < 0 || exponent > 64) {
        return 0;
    }
    for (; exponent > 0; exponent--) {
        if (__builtin_mul_overflow(*result, base, result)) {
            return 0;
        }
    }
    return 1;
}

static int
combine(int kind, int64_t a, int64_t b, int64_t *result)
{
    int64_t other;
    switch (kind) {
    case STEP_ADD:
        return !__builtin_add_overflow(a, b, result);
    case STEP_MUL:
        return !__builtin_mul_overflow(a, b, result);
    case STEP_FLOORDIV:
        return floor_divide(a, b, result, &other);
    case STEP_MOD:
        return floor_divide(a, b, &other, result) || b == -1;
    case STEP_POW:
        return power(a, b, result);
    case STEP_MIN:
        *result = a < b ? a : b;
        return 1;
    case STEP_MAX:
        *result = a > b ? a : b;
        return 1;
    case STEP_EQ:
        *result = a == b;
        return 1;
    case STEP_NE:
        *result = a != b;
        return 1;
    case STEP_LT:
        *result = a < b;
        return 1;
    case STEP_LE:
        *result = a <= b;
        return 1;
    case STEP_AND:
        *result = a && b;
        return 1;
    default: /* OR */
        *result = a || b;
        return 1;
    }
}

int
formula_holds(const Formula *f, PyObject *const *values)
{
    int64_t stack[FORMULA_DEPTH];
    int depth = 0;
    for (const FormulaStep *s = f->steps, *end = s + f->count; s < end; s++) {
        if (s->kind == STEP_CONSTANT) {
            stack[depth++] = s->a;
        }
        else if (s->kind <= STEP_NUMBER) {
            if (!read_term(s, values[s->a], &stack[depth++])) {
                return 0;
            }
        }
        else if (s->kind == STEP_NOT) {
            stack[depth - 1] = !stack[depth - 1];
        }
        else {
            depth--;
            if (!combine(s->kind, stack[depth - 1], stack[depth], &stack[depth - 1])) {
                return 0;
            }
        }
    }
    return stack[0] != 0;
}

/* ---- making ---- */

static int
refuse(const char *what)
{
    PyErr_Format(PyExc_ValueError, "formula: %s", what);
    return -1;
}

int
formula_from(Formula *f, PyObject *steps, int nodes)
{
    if (!PyList_Check(steps) || PyList_GET_SIZE(steps) == 0) {
        return refuse("a list of steps");
    }
    Py_ssize_t count = PyList_GET_SIZE(steps);
    f->steps = PyMem_Calloc((size_t)count, sizeof(FormulaStep));
    if (f->steps == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int depth = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        FormulaStep *s = &f->steps[i];
        long long a;
        PyObject *row = PyList_GET_ITEM(steps, i);
        if (!PyTuple_Check(row) || !PyArg_ParseTuple(row, "iLi", &s->kind, &a, &s->b)) {
            return PyErr_Occurred() ? -1 : refuse("a step is a tuple of three");
        }
        s->a = a;
        if (s->kind < 0 || s->kind >= STEP_COUNT || s->b < 0 ||
            (s->kind > STEP_CONSTANT && s->kind <= STEP_NUMBER && (a < 0 || a >= nodes))) {
            return refuse("no such step, or no such node");
        }
        depth += s->kind <= STEP_NUMBER ? 1 : s->kind == STEP_NOT ? 0 : -1;
        if (depth < 1 || depth >= FORMULA_DEPTH) {
            return refuse("too few operands, or too many");
        }
    }
    f->count = (int)count;
    return depth == 1 ? 0 : refuse("operands are left over");
}

void
formula_clear(Formula *f)
{
    PyMem_Free(f->steps);
    *f = (Formula){0};
}

int
formula_setup(PyObject *module)
{
#define ADD_STEP(name) || PyModule_AddIntConstant(module, "STEP_" #name, STEP_##name) < 0
    return 0 FORMULA_STEPS(ADD_STEP) ? -1 : 0;
}

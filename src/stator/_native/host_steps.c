/* The steps of a host function: allocate, launch a kernel, multiply, call, alias, expect, free. */
#include "host.h"
#include <math.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { LONG_WORK = 20000, PARALLEL_WORK = 32768 };

int
set_register(HostRun *r, int reg, PyObject *value)
{
    Py_XSETREF(r->registers[reg], value);
    int buffer = r->h->buffer_of[reg];
    if (buffer >= 0) {
        void *handle = handle_of(value), *data = NULL;
        r->data[buffer] = NULL;
        if (handle != NULL && torch_c.data(handle, &data)) {
            PyErr_SetString(PyExc_RuntimeError, "a tensor has no memory that can be told");
            return -1;
        }
        if (handle == NULL && PyFloat_Check(value)) {
            double limit = r->h->buffers[buffer].limit;
            data = &((PyFloatObject *)value)->ob_fval;
            if (limit >= 0 && isfinite(*(double *)data) && fabs(*(double *)data) > limit) {
                if (!r->h->keeps_inputs) {
                    PyErr_SetString(PyExc_RuntimeError,
                                    "a number is too large for the type of the tensors");
                    return -1;
                }
                r->status = 1; /* eager says so */
            }
        }
        r->data[buffer] = data;
    }
    return 0;
}

static PyObject *
list_of(const int64_t *numbers, int count)
{
    PyObject *list = PyList_New(count);
    for (int i = 0; list != NULL && i < count; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (number == NULL) {
            Py_CLEAR(list);
        }
        else {
            PyList_SET_ITEM(list, i, number);
        }
    }
    return list;
}

PyObject *
host_allocate(HostRun *r, int rank, const int64_t *shape, int dtype)
{
    const Host *h = r->h;
    void *handle;
    if (torch_c.empty(rank, shape, shape + rank, dtype, h->device,
                      h->device == 0 ? 0 : h->device_index, &handle) == 0) {
        PyObject *made = torch_c.wrap(handle);
        torch_c.destroy(handle);
        return made;
    }
    if (h->allocate == NULL) {
        PyErr_SetString(PyExc_MemoryError, "cannot allocate a tensor");
        return NULL;
    }
    PyObject *sizes = list_of(shape, rank), *strides = list_of(shape + rank, rank), *made = NULL;
    if (sizes != NULL && strides != NULL) {
        made = PyObject_CallFunction(h->allocate, "OOi", sizes, strides, dtype);
    }
    Py_XDECREF(sizes);
    Py_XDECREF(strides);
    return made;
}

static int
allocate(HostRun *r, const HostStep *s)
{
    int rank = s->numbers[2];
    int64_t shape[64];
    for (int i = 0; i < 2 * rank; i++) {
        shape[i] = r->slots[s->items[i]];
    }
    PyObject *made = host_allocate(r, rank, shape, s->numbers[1]);
    return made == NULL ? -1 : set_register(r, s->numbers[0], made);
}

/* items: slots of sizes, strides and the offset. more: the register that it is a part of. numbers:
 * register of the result, -, rank */
static int
make_alias(HostRun *r, const HostStep *s)
{
    int rank = s->numbers[2];
    int64_t shape[65];
    for (int i = 0; i < 2 * rank + 1; i++) {
        shape[i] = r->slots[s->items[i]];
    }
    void *handle = r->registers[s->more[0]] == NULL ? NULL : handle_of(r->registers[s->more[0]]),
         *made;
    if (handle != NULL && !input_stands(r, s->more[0])) {
        return -1;
    }
    if (handle == NULL ||
        torch_c.alias(handle, rank, shape, shape + rank, shape[2 * rank], &made)) {
        PyErr_SetString(PyExc_RuntimeError, "a tensor cannot be seen otherwise");
        return -1;
    }
    PyObject *alias = torch_c.wrap(made);
    torch_c.destroy(made);
    return alias == NULL ? -1 : set_register(r, s->numbers[0], alias);
}

/* What a call gave is as kernels expect it, or is copied until it is; what has lost its memory is
 * refused. numbers: register, dtype, slot of the reach, itemsize, kind of device */
static int
expect(HostRun *r, const HostStep *s)
{
    HostInput in = {.reg = s->numbers[0],
                    .dtype = s->numbers[1],
                    .rank = s->count / 2,
                    .reach = s->numbers[2],
                    .by_kernels = 1,
                    .itemsize = s->numbers[3],
                    .sizes = s->items,
                    .device = s->numbers[4]};
    PyObject *value = r->registers[in.reg];
    if (value == NULL) {
        PyErr_SetString(PyExc_SystemError, "a register is read before it is set");
        return -1;
    }
    /* where it lies is read anew: operators in between may have given it other memory */
    if (input_holds(r->h, &in, value, r->slots) > 0) {
        return set_register(r, in.reg, Py_NewRef(value));
    }
    int64_t shape[64];
    for (int i = 0; i < s->count; i++) {
        shape[i] = r->slots[s->items[i]];
    }
    PyObject *sizes = list_of(shape, in.rank), *strides = list_of(shape + in.rank, in.rank),
             *made = NULL;
    if (sizes != NULL && strides != NULL) {
        made = PyObject_CallFunction(s->object, "OOOi", value, sizes, strides, in.itemsize);
    }
    Py_XDECREF(sizes);
    Py_XDECREF(strides);
    if (made == NULL) {
        return -1;
    }
    if (input_holds(r->h, &in, made, r->slots) <= 0) {
        Py_DECREF(made);
        PyErr_SetString(PyExc_RuntimeError, "an operator gave another tensor than it should");
        return -1;
    }
    return set_register(r, in.reg, made);
}

typedef struct {
    KernelFunction function;
    char **buffers;
    const int64_t *sizes;
    int64_t count, align, scratch;
    char *memory;
    int64_t *status;
    unsigned control;
} Region;

static void
region_run(void *p)
{
    const Region *g = p;
    int64_t threads = torch_c.threads(), thread = torch_c.thread();
#if defined(__x86_64__)
    unsigned before = _mm_getcsr();
    _mm_setcsr(g->control); /* flushing of denormals is as in the caller's thread */
#endif
    int64_t units = (g->count + g->align - 1) / g->align;
    int64_t each = (units + threads - 1) / threads * g->align;
    int64_t lo = thread * each, hi = lo + each < g->count ? lo + each : g->count;
    if (lo < hi) {
        g->function(g->buffers, g->sizes, lo, hi, g->memory + thread * g->scratch, g->status);
    }
#if defined(__x86_64__)
    _mm_setcsr(before);
#endif
}

/* A kernel's memory and sizes in this call. */
int
host_buffers(HostRun *r, const HostStep *s, char **buffers, int64_t *sizes)
{
    for (int i = 0; i < s->more_count; i++) {
        sizes[i] = r->slots[s->more[i]];
    }
    for (int i = 0; i < s->count; i++) {
        int reg = r->h->buffers[s->items[i]].reg;
        if (!memory_stands(r, s->items[i])) {
            return -1;
        }
        buffers[i] = r->data[s->items[i]];
        if (buffers[i] == NULL &&
            (reg < 0 || r->registers[reg] == NULL || handle_of(r->registers[reg]) == NULL)) {
            /* NULL: a tensor of size 0 */
            PyErr_SetString(PyExc_TypeError,
                            "a kernel needs a tensor or a float where there is none");
            return -1;
        }
    }
    return 0;
}

/* numbers: slots of count, work, scratch; align */
static int
launch(HostRun *r, const HostStep *s)
{
    char *buffers[64];
    int64_t sizes[64];
    int64_t count = r->slots[s->numbers[0]], work = r->slots[s->numbers[1]],
            scratch = r->slots[s->numbers[2]];
    if (count <= 0 || work <= 0) {
        return 0;
    }
    if (host_buffers(r, s, buffers, sizes) < 0) {
        return -1;
    }
    if (scratch < 0 || scratch > (int64_t)1 << 46) {
        PyErr_SetString(PyExc_OverflowError, "a kernel needs too much memory of its own");
        return -1;
    }
    int threads = 1;
    if (work >= PARALLEL_WORK && torch_c.parallel != NULL && !torch_c.in_parallel()) {
        threads = torch_c.max_threads();
        int64_t most = work / (PARALLEL_WORK / 2);
        threads = most < threads ? (int)most : threads;
    }
    scratch = (scratch + 63) & ~(int64_t)63;
    char few[16384] __attribute__((aligned(64)));
    void *memory = few;
    if (scratch * threads > (int64_t)sizeof few &&
        posix_memalign(&memory, 64, (size_t)(scratch * threads)) != 0) {
        PyErr_NoMemory();
        return -1;
    }
    Region g = {s->function, buffers, sizes, count, s->numbers[3], scratch, memory, &r->status, 0};
    PyThreadState *saved = work >= LONG_WORK ? PyEval_SaveThread() : NULL;
    if (threads <= 1) {
        s->function(buffers, sizes, 0, count, memory, &r->status);
    }
    else {
#if defined(__x86_64__)
        g.control = _mm_getcsr();
#endif
        torch_c.parallel(region_run, &g, (unsigned)threads, 0);
    }
    if (saved != NULL) {
        PyEval_RestoreThread(saved);
    }
    if (memory != few) {
        free(memory);
    }
    return 0;
}

/* items: buffers of out, a, b. more: slots of m, n, k, the leading dimensions of out, a, b, offsets
 * in elements of out, a, b, batch, batch strides of out, a, b. numbers: is it double, are a and b
 * transposed, accumulate, - (in blocks: their share), does b stay packed */
int
gemm_numbers(const HostRun *r, const HostStep *s, int64_t *v)
{
    for (int i = 0; i < GEMM_NUMBERS; i++) {
        v[i] = r->slots[s->more[i]];
    }
    if (v[GEMM_M] <= 0 || v[GEMM_N] <= 0 || v[GEMM_BATCH] <= 0) {
        return 0;
    }
    for (int i = 0; i <= GEMM_LDB; i++) {
        if (v[i] > INT32_MAX || v[i] < 0) {
            PyErr_SetString(PyExc_OverflowError, "a matrix has more than 2**31 rows or columns");
            return -1;
        }
    }
    if (r->data[s->items[0]] == NULL ||
        (v[GEMM_K] > 0 && (r->data[s->items[1]] == NULL || r->data[s->items[2]] == NULL))) {
        PyErr_SetString(PyExc_TypeError, "a product needs a tensor where there is none");
        return -1;
    }
    return 1;
}

void
gemm_run(const HostStep *s, const int64_t *v, char *c, char *a, char *b)
{
    int wide = s->numbers[0];
    int64_t bytes = wide ? 8 : 4;
    int m = (int)v[GEMM_M], n = (int)v[GEMM_N], k = (int)v[GEMM_K], ldc = (int)v[GEMM_LDC],
        lda = (int)v[GEMM_LDA], ldb = (int)v[GEMM_LDB];
    const char *ta = s->numbers[1] ? "T" : "N", *tb = s->numbers[2] ? "T" : "N";
    static const float one = 1, zero = 0;
    static const double wide_one = 1, wide_zero = 0;
    const void *alpha = wide ? (const void *)&wide_one : &one;
    const void *beta = wide ? (const void *)(s->numbers[3] ? &wide_one : &wide_zero)
                            : (s->numbers[3] ? &one : &zero);
    GemmFunction function = wide ? torch_c.dgemm : torch_c.sgemm;
    for (int64_t i = 0; i < v[GEMM_BATCH]; i++) { /* row-major: out' = b' a' */
        function(tb, ta, &n, &m, &k, alpha, b + (v[GEMM_B] + i * v[GEMM_STEP_B]) * bytes, &ldb,
                 a + (v[GEMM_A] + i * v[GEMM_STEP_A]) * bytes, &lda, beta,
                 c + (v[GEMM_C] + i * v[GEMM_STEP_C]) * bytes, &ldc);
    }
}

static int
gemm(HostRun *r, const HostStep *s)
{
    int64_t v[GEMM_NUMBERS];
    if (!memory_stands(r, s->items[0]) || !memory_stands(r, s->items[1]) ||
        !memory_stands(r, s->items[2])) {
        return -1;
    }
    int some = gemm_numbers(r, s, v);
    if (some <= 0) {
        return some;
    }
    int packed = s->numbers[5] ? multiply_packed(r, s, v) : 0;
    if (packed != 0) {
        return packed < 0 ? -1 : 0;
    }
    double work =
        (double)v[GEMM_M] * (double)v[GEMM_N] * (double)(v[GEMM_K] + 1) * (double)v[GEMM_BATCH];
    PyThreadState *saved = work >= LONG_WORK ? PyEval_SaveThread() : NULL;
    gemm_run(s, v, r->data[s->items[0]], r->data[s->items[1]], r->data[s->items[2]]);
    if (saved != NULL) {
        PyEval_RestoreThread(saved);
    }
    return 0;
}

/* items: registers of the inputs. more: those of the outputs */
static int
call_tape(HostRun *r, const HostStep *s)
{
    PyObject *inputs[64], *outputs[64];
    for (int i = 0; i < s->count; i++) {
        inputs[i] = r->registers[s->items[i]];
    }
    if (tape_outputs(s->object, inputs, s->count, outputs) != s->more_count) {
        return -1;
    }
    int failed = 0;
    for (int i = 0; i < s->more_count; i++) {
        failed |= set_register(r, s->more[i], outputs[i]) < 0;
    }
    /* an operator may be any Python */
    return failed || (r->h->on_gpu && gpu_stream(r) < 0) ? -1 : 0;
}

int
host_step(HostRun *r, const HostStep *s)
{
    switch (s->kind) {
    case STEP_ALLOCATE:
        return allocate(r, s);
    case STEP_KERNEL:
        return launch(r, s);
    case STEP_GEMM:
        return gemm(r, s);
    case STEP_CALL:
        return call_tape(r, s);
    case STEP_ALIAS:
        return make_alias(r, s);
    case STEP_EXPECT:
        return expect(r, s);
    case STEP_LAUNCH:
        return gpu_launch(r, s);
    case STEP_UPLOAD:
        return gpu_upload(r, s);
    case STEP_BLOCKS:
        return host_blocks(r, s);
    default:
        for (int i = 0; i < s->count; i++) {
            Py_CLEAR(r->registers[s->items[i]]);
        }
        return 0;
    }
}

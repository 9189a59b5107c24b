/* The host function of a compiled graph, as data: check the inputs, allocate, launch kernels, call the BLAS and the dispatcher.
 *
 * `codegen.host` makes it from a loop program. Registers hold tensors; buffers are memory that kernels and GEMMs use: a tensor's, or a
 * part of the arena, which belongs to one call. Numbers (sizes, strides, offsets) lie in slots; those that depend on the inputs are
 * computed first. Nothing is touched before every input was compared with what the graph was compiled for, in this very call.
 */
#include "native.h"
#include "tensor.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { STEP_ALLOCATE, STEP_KERNEL, STEP_GEMM, STEP_CALL, STEP_ALIAS, STEP_EXPECT, STEP_FREE };
enum { LONG_WORK = 20000, PARALLEL_WORK = 32768 };

typedef void (*KernelFunction)(char **buffers, const int64_t *sizes, int64_t lo, int64_t hi, char *scratch, int64_t *status);

typedef struct {
    int kind;
    int count;      /* of `items` */
    int *items;     /* registers, buffers or slots, by kind; owned */
    int *more;      /* a second list; owned, or NULL */
    int more_count;
    int numbers[16];
    PyObject *object; /* a tape, or what keeps machine code alive. Owned */
    KernelFunction function;
} HostStep;

typedef struct {
    int reg;    /* register of the tensor; -1: in the arena */
    int offset; /* slot: offset in the arena, in bytes */
} HostBuffer;

typedef struct {
    int reg, dtype, rank;
    int reach;  /* slot: elements that kernels may touch, from the first on; -1: none do */
    int itemsize;
    int *sizes; /* slots: sizes, then strides; owned */
    int written; /* do kernels write to it? */
} HostInput;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    HostStep *steps;
    HostInput *checks;
    HostBuffer *buffers;
    int64_t *slots;      /* known ones have their values */
    int *outputs;
    int *buffer_of;      /* by register: the buffer that is its memory, or -1 */
    PyObject *constants; /* a tuple: registers behind the inputs */
    PyObject *compute;   /* a callable (inputs) -> tuple of the unknown slots, or NULL */
    PyObject *fallback;  /* a callable (inputs) -> results: the same graph by other means */
    PyObject *restore;   /* a callable (state): undoes what was drawn since */
    int state;           /* the register of that state, or -1 */
    int step_count, check_count, buffer_count, slot_count, known, output_count, inputs, registers, arena, keeps_inputs;
    int writes; /* to inputs */
    int ready; /* 0: being made, or taken apart by the garbage collector */
} Host;

/* ---- what is taken from torch's libraries ---- */

typedef void (*GemmFunction)(const char *, const char *, const int *, const int *, const int *, const void *, const void *,
                             const int *, const void *, const int *, const void *, void *, const int *);
static struct {
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
    int (*max_threads)(void), (*thread)(void), (*threads)(void), (*in_parallel)(void);
    GemmFunction sgemm, dgemm;
    int32_t (*empty)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, void **);
    int32_t (*alias)(void *, int64_t, const int64_t *, const int64_t *, int64_t, void **);
    int32_t (*destroy)(void *);
    int32_t (*data)(void *, void **), (*storage_size)(void *, int64_t *), (*storage_offset)(void *, int64_t *), (*device)(void *, int32_t *);
    PyObject *(*wrap)(const void *);
    uint64_t keys, needed_keys; /* dispatch keys that a tensor which is plain memory may have, and must have */
} torch_c;

static PyObject *
host_learn(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *cpu, *python, *omp;
    unsigned long long keys, needed_keys;
    if (!PyArg_ParseTuple(args, "sssKK", &cpu, &python, &omp, &keys, &needed_keys)) {
        return NULL;
    }
    torch_c.keys = keys;
    torch_c.needed_keys = needed_keys;
    void *c = dlopen(cpu, RTLD_LAZY | RTLD_NOLOAD), *p = dlopen(python, RTLD_LAZY | RTLD_NOLOAD);
    void *o = *omp ? dlopen(omp, RTLD_LAZY | RTLD_NOLOAD) : NULL;
#define TAKE(field, library, name) (*(void **)&torch_c.field = (library) == NULL ? NULL : dlsym((library), (name)))
    TAKE(parallel, o, "GOMP_parallel");
    TAKE(max_threads, o, "omp_get_max_threads");
    TAKE(thread, o, "omp_get_thread_num");
    TAKE(threads, o, "omp_get_num_threads");
    TAKE(in_parallel, o, "omp_in_parallel");
    TAKE(sgemm, c, "sgemm_");
    TAKE(dgemm, c, "dgemm_");
    TAKE(empty, c, "aoti_torch_empty_strided");
    TAKE(alias, c, "aoti_torch__reinterpret_tensor");
    TAKE(destroy, c, "aoti_torch_delete_tensor_object");
    TAKE(data, c, "aoti_torch_get_data_ptr");
    TAKE(storage_size, c, "aoti_torch_get_storage_size");
    TAKE(storage_offset, c, "aoti_torch_get_storage_offset");
    TAKE(device, c, "aoti_torch_get_device_type");
    TAKE(wrap, p, "_Z16THPVariable_WrapRKN2at10TensorBaseE");
#undef TAKE
    if (torch_c.max_threads == NULL || torch_c.thread == NULL || torch_c.threads == NULL || torch_c.in_parallel == NULL) {
        torch_c.parallel = NULL;
    }
    int usable = torch_c.empty && torch_c.alias && torch_c.destroy && torch_c.data && torch_c.storage_size && torch_c.storage_offset &&
                 torch_c.device && torch_c.wrap && tensor_places.way != TENSOR_UNKNOWN && needed_keys != 0;
    return Py_BuildValue("OO", usable ? Py_True : Py_False, torch_c.sgemm && torch_c.dgemm ? Py_True : Py_False);
}

/* ---- the arena: a block per thread is kept for the next call ---- */

typedef struct {
    char *memory;
    size_t size;
    int taken;
} Block;

enum { MOST_KEPT = 1 << 28 };
static pthread_key_t block_key;

static void
block_free(void *p)
{
    Block *b = p;
    if (b != NULL) {
        free(b->memory);
        free(b);
    }
}

static char *
arena_take(size_t size, Block **from)
{
    Block *b = pthread_getspecific(block_key);
    *from = NULL;
    if (b == NULL && (b = calloc(1, sizeof(Block))) != NULL && pthread_setspecific(block_key, b) != 0) {
        free(b);
        b = NULL;
    }
    if (b != NULL && !b->taken && size <= MOST_KEPT) {
        if (b->size < size) {
            free(b->memory);
            b->memory = NULL;
            b->size = 0;
            void *made;
            if (posix_memalign(&made, 64, size) != 0) {
                return NULL;
            }
            b->memory = made;
            b->size = size;
        }
        b->taken = 1;
        *from = b;
        return b->memory;
    }
    void *made;
    return posix_memalign(&made, 64, size) == 0 ? made : NULL;
}

static void
arena_give(char *memory, Block *from)
{
    if (from != NULL) {
        from->taken = 0;
    }
    else {
        free(memory);
    }
}

/* ---- one call ---- */

typedef struct {
    Host *h;
    const int64_t *slots;
    PyObject **registers; /* owned */
    char **data;          /* by buffer */
    char *arena;
    int64_t status;
} Run;

static void *
handle_of(PyObject *tensor)
{
    return tensor_impl(tensor) == NULL ? NULL : (char *)tensor + tensor_places.impl;
}

/* 1: it is what the graph was compiled for; 0: it is not; -1: its storage is too small for it, which is an error whoever computes.
 * Runs no Python code. Tensors with other dispatch keys than plain memory has (negated and conjugated views, zeros without memory,
 * sparse ones, those inside of transforms) are not. */
static int
input_holds(const HostInput *in, PyObject *value, const int64_t *slots)
{
    void *handle = handle_of(value);
    int64_t rank, bytes, offset, end;
    int32_t dtype, device;
    const int64_t *sizes, *strides;
    if (handle == NULL) {
        return 0;
    }
    uint64_t keys = TENSOR_AT(tensor_impl(value), tensor_places.keys, uint64_t);
    if ((keys & ~torch_c.keys) != 0 || (keys & torch_c.needed_keys) != torch_c.needed_keys || tensor_places.get_dim(handle, &rank) ||
        rank != in->rank || tensor_places.get_dtype(handle, &dtype) || dtype != in->dtype || torch_c.device(handle, &device) ||
        device != 0 || tensor_places.get_sizes(handle, &sizes) || tensor_places.get_strides(handle, &strides)) {
        return 0;
    }
    for (int64_t i = 0; i < rank; i++) {
        if (sizes[i] != slots[in->sizes[i]] || (strides[i] != slots[in->sizes[rank + i]] && sizes[i] > 1)) {
            return 0;
        }
    }
    if (in->reach < 0 || slots[in->reach] == 0) {
        return 1;
    }
    void *data;
    if (torch_c.storage_size(handle, &bytes) || torch_c.storage_offset(handle, &offset) || torch_c.data(handle, &data)) {
        return 0;
    }
    if (data == NULL || offset < 0 || slots[in->reach] < 0 || __builtin_add_overflow(offset, slots[in->reach], &end) ||
        __builtin_mul_overflow(end, (int64_t)in->itemsize, &end) || end > bytes) {
        return -1;
    }
    return (uintptr_t)data % (uintptr_t)in->itemsize == 0;
}

static int
too_small(void)
{
    PyErr_SetString(PyExc_RuntimeError, "the storage of a tensor is smaller than the tensor");
    return -1;
}

/* What a check is about: an input, or a constant. Borrowed. */
static PyObject *
checked_value(const Host *h, PyObject *list, const HostInput *in)
{
    return in->reg < h->inputs ? PyList_GET_ITEM(list, in->reg) : PyTuple_GET_ITEM(h->constants, in->reg - h->inputs);
}

/* 1: no input that kernels write to shares memory with another one that they touch. */
static int
written_alone(const Host *h, PyObject *list, const int64_t *slots)
{
    for (int i = 0; i < h->check_count; i++) {
        const HostInput *in = &h->checks[i];
        void *data, *other;
        if (!in->written || in->reach < 0) {
            continue;
        }
        if (torch_c.data(handle_of(checked_value(h, list, in)), &data)) {
            return 0;
        }
        uintptr_t low = (uintptr_t)data, high = low + (uintptr_t)(slots[in->reach] * in->itemsize);
        for (int j = 0; j < h->check_count; j++) {
            const HostInput *with = &h->checks[j];
            if (j == i || with->reach < 0) {
                continue;
            }
            if (torch_c.data(handle_of(checked_value(h, list, with)), &other)) {
                return 0;
            }
            uintptr_t begin = (uintptr_t)other, end = begin + (uintptr_t)(slots[with->reach] * with->itemsize);
            if (begin < high && low < end) {
                return 0;
            }
        }
    }
    return 1;
}

static int
set_register(Run *r, int reg, PyObject *value)
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
            data = &((PyFloatObject *)value)->ob_fval;
        }
        r->data[buffer] = data;
    }
    return 0;
}

static int
allocate(Run *r, const HostStep *s)
{
    int rank = s->numbers[2];
    int64_t shape[64];
    for (int i = 0; i < 2 * rank; i++) {
        shape[i] = r->slots[s->items[i]];
    }
    void *handle;
    if (torch_c.empty(rank, shape, shape + rank, s->numbers[1], 0, 0, &handle)) {
        PyErr_SetString(PyExc_MemoryError, "cannot allocate a tensor");
        return -1;
    }
    PyObject *made = torch_c.wrap(handle);
    torch_c.destroy(handle);
    return made == NULL ? -1 : set_register(r, s->numbers[0], made);
}

/* items: slots of sizes, strides and the offset. more: the register that it is a part of. numbers: register of the result, -, rank */
static int
make_alias(Run *r, const HostStep *s)
{
    int rank = s->numbers[2];
    int64_t shape[65];
    for (int i = 0; i < 2 * rank + 1; i++) {
        shape[i] = r->slots[s->items[i]];
    }
    void *handle = handle_of(r->registers[s->more[0]]), *made;
    if (handle == NULL || torch_c.alias(handle, rank, shape, shape + rank, shape[2 * rank], &made)) {
        PyErr_SetString(PyExc_RuntimeError, "a tensor cannot be seen otherwise");
        return -1;
    }
    PyObject *alias = torch_c.wrap(made);
    torch_c.destroy(made);
    return alias == NULL ? -1 : set_register(r, s->numbers[0], alias);
}

static PyObject *
as_list(const int64_t *slots, const int *items, int count)
{
    PyObject *list = PyList_New(count);
    for (int i = 0; list != NULL && i < count; i++) {
        PyObject *number = PyLong_FromLongLong(slots[items[i]]);
        if (number == NULL) {
            Py_CLEAR(list);
        }
        else {
            PyList_SET_ITEM(list, i, number);
        }
    }
    return list;
}

/* What a call gave is as kernels expect it, or is copied until it is. numbers: register, dtype, slot of the reach, itemsize */
static int
expect(Run *r, const HostStep *s)
{
    HostInput in = {s->numbers[0], s->numbers[1], s->count / 2, s->numbers[2], s->numbers[3], s->items, 0};
    PyObject *value = r->registers[in.reg];
    if (value == NULL) {
        PyErr_SetString(PyExc_SystemError, "a register is read before it is set");
        return -1;
    }
    int holds = input_holds(&in, value, r->slots);
    if (holds != 0) { /* where it lies is read anew: operators in between may have given it other memory */
        return holds < 0 ? too_small() : set_register(r, in.reg, Py_NewRef(value));
    }
    PyObject *sizes = as_list(r->slots, s->items, in.rank), *strides = as_list(r->slots, s->items + in.rank, in.rank);
    PyObject *made = NULL;
    if (sizes != NULL && strides != NULL) {
        made = PyObject_CallFunction(s->object, "OOOi", value, sizes, strides, in.itemsize);
    }
    Py_XDECREF(sizes);
    Py_XDECREF(strides);
    if (made == NULL) {
        return -1;
    }
    if (input_holds(&in, made, r->slots) <= 0) {
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

/* numbers: slots of count, work, scratch; align */
static int
launch(Run *r, const HostStep *s)
{
    char *buffers[64];
    int64_t sizes[64];
    for (int i = 0; i < s->more_count; i++) {
        sizes[i] = r->slots[s->more[i]];
    }
    int64_t count = r->slots[s->numbers[0]], work = r->slots[s->numbers[1]], scratch = r->slots[s->numbers[2]];
    if (count <= 0 || work <= 0) {
        return 0;
    }
    for (int i = 0; i < s->count; i++) {
        int reg = r->h->buffers[s->items[i]].reg;
        buffers[i] = r->data[s->items[i]];
        if (buffers[i] == NULL && (reg < 0 || r->registers[reg] == NULL || handle_of(r->registers[reg]) == NULL)) {
            PyErr_SetString(PyExc_TypeError, "a kernel needs a tensor or a float where there is none"); /* NULL: a tensor of size 0 */
            return -1;
        }
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
    if (scratch * threads > (int64_t)sizeof few && posix_memalign(&memory, 64, (size_t)(scratch * threads)) != 0) {
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

/* items: buffers of out, a, b. more: slots of m, n, k, the leading dimensions of out, a, b, offsets in elements of out, a, b, batch,
 * batch strides of out, a, b. numbers: is it double, are a and b transposed, accumulate */
static int
gemm(Run *r, const HostStep *s)
{
    int64_t v[16];
    for (int i = 0; i < s->more_count; i++) {
        v[i] = r->slots[s->more[i]];
    }
    if (v[0] <= 0 || v[1] <= 0 || v[9] <= 0) {
        return 0;
    }
    for (int i = 0; i < 6; i++) {
        if (v[i] > INT32_MAX || v[i] < 0) {
            PyErr_SetString(PyExc_OverflowError, "a matrix has more than 2**31 rows or columns");
            return -1;
        }
    }
    if (r->data[s->items[0]] == NULL || (v[2] > 0 && (r->data[s->items[1]] == NULL || r->data[s->items[2]] == NULL))) {
        PyErr_SetString(PyExc_TypeError, "a product needs a tensor where there is none");
        return -1;
    }
    int wide = s->numbers[0];
    int64_t bytes = wide ? 8 : 4;
    int m = (int)v[0], n = (int)v[1], k = (int)v[2], ldc = (int)v[3], lda = (int)v[4], ldb = (int)v[5];
    const char *ta = s->numbers[1] ? "T" : "N", *tb = s->numbers[2] ? "T" : "N";
    char *c = r->data[s->items[0]] + v[6] * bytes, *a = r->data[s->items[1]] + v[7] * bytes, *b = r->data[s->items[2]] + v[8] * bytes;
    static const float one = 1, zero = 0;
    static const double wide_one = 1, wide_zero = 0;
    const void *alpha = wide ? (const void *)&wide_one : &one;
    const void *beta = wide ? (const void *)(s->numbers[3] ? &wide_one : &wide_zero) : (s->numbers[3] ? &one : &zero);
    GemmFunction function = wide ? torch_c.dgemm : torch_c.sgemm;
    PyThreadState *saved = (double)v[0] * (double)v[1] * (double)(v[2] + 1) * (double)v[9] >= LONG_WORK ? PyEval_SaveThread() : NULL;
    for (int64_t i = 0; i < v[9]; i++) { /* row-major: out' = b' a' */
        function(tb, ta, &n, &m, &k, alpha, b + i * v[12] * bytes, &ldb, a + i * v[11] * bytes, &lda, beta, c + i * v[10] * bytes, &ldc);
    }
    if (saved != NULL) {
        PyEval_RestoreThread(saved);
    }
    return 0;
}

/* items: registers of the inputs. more: those of the outputs */
static int
call_tape(Run *r, const HostStep *s)
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
    return failed ? -1 : 0;
}

static int
step(Run *r, const HostStep *s)
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
    default:
        for (int i = 0; i < s->count; i++) {
            Py_CLEAR(r->registers[s->items[i]]);
        }
        return 0;
    }
}

static PyObject *
run_steps(Run *r)
{
    Host *h = r->h;
    for (int i = 0; i < h->buffer_count; i++) {
        if (h->buffers[i].reg < 0) {
            r->data[i] = r->arena + r->slots[h->buffers[i].offset];
        }
    }
    for (int i = 0; i < h->step_count; i++) {
        if (step(r, &h->steps[i]) < 0) {
            return NULL;
        }
        if (r->status && !h->keeps_inputs) { /* too late to begin again */
            PyErr_SetString(PyExc_IndexError, "index out of range in self");
            return NULL;
        }
        if (r->status) {
            Py_RETURN_NONE;
        }
    }
    PyObject *results = PyTuple_New(h->output_count);
    for (int i = 0; results != NULL && i < h->output_count; i++) {
        if (r->registers[h->outputs[i]] == NULL) {
            Py_CLEAR(results);
            PyErr_SetString(PyExc_SystemError, "a result was not made");
            return NULL;
        }
        PyTuple_SET_ITEM(results, i, Py_NewRef(r->registers[h->outputs[i]]));
    }
    return results;
}

/* The slots of this call: a copy, where some depend on the inputs. 1: the inputs are others than the graph was compiled for. */
static int
compute_slots(Host *h, PyObject *list, int64_t *slots)
{
    memcpy(slots, h->slots, (size_t)h->known * sizeof(int64_t));
    PyObject *numbers = PyObject_CallOneArg(h->compute, list);
    if (numbers == Py_None) {
        Py_DECREF(numbers);
        return 1;
    }
    if (numbers == NULL || !PyTuple_Check(numbers) || PyTuple_GET_SIZE(numbers) != h->slot_count - h->known) {
        Py_XDECREF(numbers);
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_SystemError, "sizes are a tuple");
        }
        return -1;
    }
    for (int i = h->known; i < h->slot_count; i++) {
        slots[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(numbers, i - h->known));
        if (slots[i] == -1 && PyErr_Occurred()) {
            Py_DECREF(numbers);
            return -1;
        }
    }
    Py_DECREF(numbers);
    return 0;
}

/* 1: every input and constant is what the graph was compiled for; 0: one is not; -1: an exception is set. */
static int
inputs_hold(const Host *h, PyObject *list, const int64_t *slots)
{
    for (int i = 0; i < h->check_count; i++) {
        int holds = input_holds(&h->checks[i], checked_value(h, list, &h->checks[i]), slots);
        if (holds <= 0) {
            return holds < 0 ? too_small() : 0;
        }
    }
    for (int i = 0; i < h->inputs; i++) { /* kernels read the others as they are */
        PyObject *value = PyList_GET_ITEM(list, i);
        if (h->buffer_of[i] >= 0 && handle_of(value) == NULL && !PyFloat_Check(value)) {
            return 0;
        }
    }
    return 1;
}

static PyObject *
run_host(Host *h, PyObject *list, char *memory, size_t registers_at, size_t data_at)
{
    Run r = {h, h->slots, (PyObject **)(memory + registers_at), (char **)(memory + data_at), NULL, 0};
    if (PyList_GET_SIZE(list) != h->inputs) {
        PyErr_Format(PyExc_TypeError, "this graph takes %d inputs", h->inputs);
        return NULL;
    }
    if (h->compute != NULL) {
        int other = compute_slots(h, list, (int64_t *)memory);
        if (other != 0 || PyList_GET_SIZE(list) != h->inputs) { /* it runs Python code */
            return other < 0 ? NULL : Py_NewRef(Py_None);
        }
        r.slots = (int64_t *)memory;
    }
    int holds = inputs_hold(h, list, r.slots);
    if (holds <= 0) {
        return holds < 0 ? NULL : Py_NewRef(Py_None);
    }
    if (h->writes && !written_alone(h, list, r.slots)) {
        Py_RETURN_NONE;
    }
    Block *from = NULL;
    if (r.slots[h->arena] > 0 && (r.arena = arena_take((size_t)r.slots[h->arena], &from)) == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *result = NULL;
    int failed = 0;
    for (int i = 0; i < h->inputs; i++) {
        failed |= set_register(&r, i, Py_NewRef(PyList_GET_ITEM(list, i))) < 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(h->constants); i++) {
        failed |= set_register(&r, h->inputs + (int)i, Py_NewRef(PyTuple_GET_ITEM(h->constants, i))) < 0;
    }
    if (!failed) {
        if (!h->keeps_inputs && PyList_SetSlice(list, 0, PyList_GET_SIZE(list), NULL) < 0) {
            failed = 1;
        }
        result = failed ? NULL : run_steps(&r);
        if (h->keeps_inputs && result != NULL && result != Py_None) {
            failed = PyList_SetSlice(list, 0, PyList_GET_SIZE(list), NULL) < 0;
        }
    }
    if (result == Py_None && h->state >= 0 && r.registers[h->state] != NULL) { /* numbers were drawn that are drawn again */
        PyObject *done = PyObject_CallOneArg(h->restore, r.registers[h->state]);
        failed |= done == NULL;
        Py_XDECREF(done);
    }
    for (int i = 0; i < h->registers; i++) {
        Py_XDECREF(r.registers[i]);
    }
    if (r.arena != NULL) {
        arena_give(r.arena, from);
    }
    if (failed) {
        Py_CLEAR(result);
    }
    return result;
}

/* (list of inputs) -> results, and the list is cleared. Where the inputs are others than those the graph was compiled for, or an index
 * lies outside, the graph runs by other means, and eager's own exception comes of that. */
static PyObject *
host_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Host *h = (Host *)self;
    if (PyVectorcall_NARGS(nargsf) != 1 || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0) || !PyList_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "a host function takes a list");
        return NULL;
    }
    if (!h->ready) {
        PyErr_SetString(PyExc_RuntimeError, "this host function is being taken apart");
        return NULL;
    }
    char few[4096] __attribute__((aligned(16)));
    size_t registers_at = h->compute == NULL ? 0 : (size_t)h->slot_count * sizeof(int64_t);
    size_t data_at = registers_at + (size_t)h->registers * sizeof(PyObject *);
    size_t size = data_at + (size_t)h->buffer_count * sizeof(char *);
    char *memory = size <= sizeof few ? few : PyMem_Malloc(size);
    if (memory == NULL) {
        return PyErr_NoMemory();
    }
    memset(memory + registers_at, 0, size - registers_at);
    Py_INCREF(h);
    PyObject *list = Py_NewRef(args[0]);
    PyObject *result = run_host(h, list, memory, registers_at, data_at);
    if (result == Py_None) { /* other inputs than those it was compiled for, or an index lies outside */
        Py_DECREF(result);
        result = PyObject_CallOneArg(h->fallback, list);
    }
    Py_DECREF(list);
    Py_DECREF(h);
    if (memory != few) {
        PyMem_Free(memory);
    }
    return result;
}

/* ---- making ---- */

static int
refuse(const char *what)
{
    if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "host: %s", what);
    }
    return -1;
}

/* A tuple of ints, each from 0 (or -1, if that is allowed) to below `limit`. */
static int
ints_from(PyObject *tuple, int **to, int *count, int limit)
{
    if (!PyTuple_Check(tuple)) {
        return refuse("numbers are a tuple");
    }
    *count = (int)PyTuple_GET_SIZE(tuple);
    *to = PyMem_Calloc((size_t)*count + 1, sizeof(int));
    if (*to == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int i = 0; i < *count; i++) {
        long n = PyLong_AsLong(PyTuple_GET_ITEM(tuple, i));
        if (n < 0 || n >= limit) {
            return refuse("a number is out of range");
        }
        (*to)[i] = (int)n;
    }
    return 0;
}

/* (kind, items, more, numbers, address, object) */
static int
step_from(Host *h, HostStep *s, PyObject *row)
{
    PyObject *items, *more, *numbers, *object;
    unsigned long long address;
    if (!PyTuple_Check(row) || !PyArg_ParseTuple(row, "iOOO!KO", &s->kind, &items, &more, &PyTuple_Type, &numbers, &address, &object)) {
        return refuse("a step is a tuple of six");
    }
    s->object = Py_NewRef(object);
    s->function = (KernelFunction)(uintptr_t)address;
    int of_buffers = s->kind == STEP_KERNEL || s->kind == STEP_GEMM;
    int of_slots = s->kind == STEP_ALLOCATE || s->kind == STEP_ALIAS || s->kind == STEP_EXPECT;
    int limit = of_buffers ? h->buffer_count : of_slots ? h->slot_count : h->registers;
    if (s->kind < 0 || s->kind > STEP_FREE || ints_from(items, &s->items, &s->count, limit) < 0 ||
        ints_from(more, &s->more, &s->more_count, of_buffers ? h->slot_count : h->registers) < 0 || PyTuple_GET_SIZE(numbers) > 16) {
        return refuse("no such step");
    }
    for (int i = 0; i < PyTuple_GET_SIZE(numbers); i++) {
        s->numbers[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(numbers, i));
        if (s->numbers[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    const int *n = s->numbers;
    int fine = s->kind == STEP_ALLOCATE ? n[0] >= 0 && n[0] < h->registers && n[2] >= 0 && n[2] <= 32 && s->count == 2 * n[2]
               : s->kind == STEP_KERNEL ? s->count <= 64 && s->more_count <= 64 && address != 0 && n[3] > 0 && n[0] >= 0 &&
                                              n[0] < h->slot_count && n[1] >= 0 && n[1] < h->slot_count && n[2] >= 0 && n[2] < h->slot_count
               : s->kind == STEP_GEMM   ? s->count == 3 && s->more_count == 13 && torch_c.sgemm != NULL && torch_c.dgemm != NULL
               : s->kind == STEP_ALIAS  ? n[0] >= 0 && n[0] < h->registers && n[2] >= 0 && n[2] <= 32 && s->count == 2 * n[2] + 1 && s->more_count == 1
               : s->kind == STEP_EXPECT ? n[0] >= 0 && n[0] < h->registers && n[2] >= 0 && n[2] < h->slot_count && n[3] > 0 && s->count % 2 == 0 &&
                                              PyCallable_Check(object)
               : s->kind == STEP_CALL   ? s->count <= 64 && s->more_count <= 64 && tape_output_count(object) == s->more_count
                                        : 1;
    return fine ? 0 : refuse("a step does not fit its kind");
}

/* (register, dtype, reach, itemsize, slots of sizes and strides, do kernels write to it?) */
static int
check_from(Host *h, HostInput *in, PyObject *row)
{
    PyObject *sizes;
    int count;
    if (!PyTuple_Check(row) || !PyArg_ParseTuple(row, "iiiiOi", &in->reg, &in->dtype, &in->reach, &in->itemsize, &sizes, &in->written) ||
        ints_from(sizes, &in->sizes, &count, h->slot_count) < 0) {
        return refuse("a check is a tuple of six");
    }
    h->writes |= in->written;
    in->rank = count / 2;
    return in->reg >= 0 && in->reg < h->inputs + PyTuple_GET_SIZE(h->constants) && in->reach < h->slot_count && in->itemsize > 0 && count % 2 == 0
               ? 0
               : refuse("a check of something that is no input");
}

static int
tables_from(Host *h, PyObject *slots, PyObject *buffers, PyObject *checks, PyObject *steps, PyObject *outputs)
{
    h->known = (int)PyList_GET_SIZE(slots);
    h->slots = PyMem_Calloc((size_t)h->known + 1, sizeof(int64_t));
    h->buffers = PyMem_Calloc((size_t)PyList_GET_SIZE(buffers) + 1, sizeof(HostBuffer));
    h->buffer_of = PyMem_Calloc((size_t)h->registers + 1, sizeof(int));
    h->checks = PyMem_Calloc((size_t)PyList_GET_SIZE(checks) + 1, sizeof(HostInput));
    h->steps = PyMem_Calloc((size_t)PyList_GET_SIZE(steps) + 1, sizeof(HostStep));
    if (h->slots == NULL || h->buffers == NULL || h->buffer_of == NULL || h->checks == NULL || h->steps == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memset(h->buffer_of, -1, (size_t)h->registers * sizeof(int));
    for (int i = 0; i < h->known; i++) {
        h->slots[i] = PyLong_AsLongLong(PyList_GET_ITEM(slots, i));
        if (h->slots[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    h->buffer_count = (int)PyList_GET_SIZE(buffers);
    for (int i = 0; i < h->buffer_count; i++) {
        HostBuffer *b = &h->buffers[i];
        PyObject *row = PyList_GET_ITEM(buffers, i);
        if (!PyTuple_Check(row) || !PyArg_ParseTuple(row, "ii", &b->reg, &b->offset) || b->reg >= h->registers ||
            (b->reg < 0 && (b->offset < 0 || b->offset >= h->slot_count))) {
            return refuse("a buffer is a register or an offset");
        }
        if (b->reg >= 0) {
            h->buffer_of[b->reg] = i;
        }
    }
    for (; h->check_count < PyList_GET_SIZE(checks);) {
        HostInput *in = &h->checks[h->check_count++];
        if (check_from(h, in, PyList_GET_ITEM(checks, h->check_count - 1)) < 0) {
            return -1;
        }
    }
    for (; h->step_count < PyList_GET_SIZE(steps);) {
        HostStep *s = &h->steps[h->step_count++];
        if (step_from(h, s, PyList_GET_ITEM(steps, h->step_count - 1)) < 0) {
            return -1;
        }
    }
    return ints_from(outputs, &h->outputs, &h->output_count, h->registers);
}

static PyObject *
host_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *slots, *buffers, *checks, *steps, *outputs, *constants, *compute, *fallback, *restore;
    int inputs, registers, unknown, arena, keeps, state;
    if (!PyArg_ParseTuple(args, "iiO!iOO!O!O!O!O!ipOiO", &inputs, &registers, &PyList_Type, &slots, &unknown, &compute, &PyList_Type,
                          &buffers, &PyList_Type, &checks, &PyList_Type, &steps, &PyTuple_Type, &outputs, &PyTuple_Type,
                          &constants, &arena, &keeps, &fallback, &state, &restore)) {
        return NULL;
    }
    Host *h = (Host *)type->tp_alloc(type, 0);
    if (h == NULL) {
        return NULL;
    }
    h->call = host_call;
    h->inputs = inputs;
    h->registers = registers;
    h->slot_count = (int)PyList_GET_SIZE(slots) + unknown;
    h->arena = arena;
    h->keeps_inputs = keeps;
    h->constants = Py_NewRef(constants);
    h->compute = compute == Py_None ? NULL : Py_NewRef(compute);
    h->fallback = Py_NewRef(fallback);
    h->restore = Py_NewRef(restore);
    h->state = state;
    if (inputs < 0 || state >= registers || unknown < 0 || (unknown > 0) != (h->compute != NULL) || arena < 0 || arena >= h->slot_count ||
        registers < inputs + PyTuple_GET_SIZE(constants) || tables_from(h, slots, buffers, checks, steps, outputs) < 0) {
        refuse("the parts do not fit together");
        Py_CLEAR(h);
        return NULL;
    }
    h->ready = 1;
    return (PyObject *)h;
}

static int
host_traverse(Host *h, visitproc visit, void *arg)
{
    Py_VISIT(h->constants);
    Py_VISIT(h->compute);
    Py_VISIT(h->fallback);
    Py_VISIT(h->restore);
    for (int i = 0; i < h->step_count; i++) {
        Py_VISIT(h->steps[i].object);
    }
    return 0;
}

static int
host_clear(Host *h)
{
    h->ready = 0;
    Py_CLEAR(h->compute);
    Py_CLEAR(h->fallback);
    return 0;
}

static void
host_dealloc(Host *h)
{
    PyObject_GC_UnTrack(h);
    Py_XDECREF(h->constants);
    Py_XDECREF(h->compute);
    Py_XDECREF(h->fallback);
    Py_XDECREF(h->restore);
    for (int i = 0; i < h->step_count; i++) {
        Py_XDECREF(h->steps[i].object);
        PyMem_Free(h->steps[i].items);
        PyMem_Free(h->steps[i].more);
    }
    for (int i = 0; i < h->check_count; i++) {
        PyMem_Free(h->checks[i].sizes);
    }
    PyMem_Free(h->steps);
    PyMem_Free(h->checks);
    PyMem_Free(h->buffers);
    PyMem_Free(h->buffer_of);
    PyMem_Free(h->slots);
    PyMem_Free(h->outputs);
    Py_TYPE(h)->tp_free((PyObject *)h);
}

static PyTypeObject HostType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "stator._native.Host",
    .tp_doc = "The host function of a compiled graph: takes a list of inputs, gives a tuple of results",
    .tp_basicsize = sizeof(Host),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = host_new,
    .tp_dealloc = (destructor)host_dealloc,
    .tp_traverse = (traverseproc)host_traverse,
    .tp_clear = (inquiry)host_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Host, call),
};

static PyMethodDef functions[] = {
    {"host_learn", host_learn, METH_VARARGS,
     "Where torch's C functions are: (libtorch_cpu, libtorch_python, libgomp or '', dispatch keys that a tensor may have, and must). "
     "(usable, is there a BLAS)"},
    {NULL},
};

int
host_setup(PyObject *module)
{
    static const struct {
        const char *name;
        int value;
    } kinds[] = {{"HOST_ALLOCATE", STEP_ALLOCATE}, {"HOST_KERNEL", STEP_KERNEL}, {"HOST_GEMM", STEP_GEMM}, {"HOST_CALL", STEP_CALL}, {"HOST_ALIAS", STEP_ALIAS}, {"HOST_EXPECT", STEP_EXPECT}, {"HOST_FREE", STEP_FREE}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (PyModule_AddIntConstant(module, kinds[i].name, kinds[i].value) < 0) {
            return -1;
        }
    }
    if (pthread_key_create(&block_key, block_free) != 0) {
        PyErr_SetString(PyExc_ImportError, "no key for memory of threads");
        return -1;
    }
    if (PyModule_AddFunctions(module, functions) < 0 || PyModule_AddType(module, &HostType) < 0) {
        return -1;
    }
    return PyDict_SetItemString(HostType.tp_dict, "_boxed_call", Py_True); /* it takes a list, and clears it */
}

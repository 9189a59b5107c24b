/* The host function's steps on an NVIDIA GPU: kernels go to the driver, on the stream that is
 * current in the call.
 *
 * `codegen.gpu_host` makes the tables. A kernel has variants; what each requires of addresses and
 * sizes is asked at every launch, and the last one requires nothing: a misaligned vector access
 * would end the context. Numbers that lie on the CPU are written to the arena by memsets, which
 * take them by value: nothing waits, and whoever changes them afterwards changes nothing.
 */
#include "host.h"
#include <dlfcn.h>

enum { MOST_PARAMETERS = 256 };

typedef struct {
    int slot, of, is_multiple; /* a size is a multiple of `of`, or at most that */
} Condition;

typedef struct {
    int buffer;
    uintptr_t bits; /* of its address that must be 0 */
} Aligned;

typedef struct {
    void *function;
    int blocks; /* slot */
    unsigned splits, threads;
} Grid;

typedef struct {
    Condition *conditions;
    Aligned *aligned;
    Grid *grids;
    int condition_count, aligned_count, grid_count;
    int scratch; /* slot: bytes */
    int loaded;
} LaunchVariant;

typedef struct {
    PyObject_HEAD
    LaunchVariant *variants;
    int variant_count, buffers, slots;
    /* (number of a variant) -> addresses of its functions; it keeps them alive. Owned */
    PyObject *load;
} LaunchedKernel;

/* What is taken from the driver, and from torch's library for CUDA. */
static struct {
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  void *, void **, void **);
    int (*get_context)(void **), (*set_context)(void *), (*error_text)(int, const char **);
    int (*set8)(uint64_t, unsigned char, size_t, void *),
        (*set16)(uint64_t, unsigned short, size_t, void *),
        (*set32)(uint64_t, unsigned, size_t, void *);
    int32_t (*new_guard)(int32_t, void **), (*delete_guard)(void *),
        (*current_stream)(int32_t, void **);
} cuda;

static PyTypeObject KernelType;

static PyObject *
gpu_learn(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *driver, *torch;
    if (!PyArg_ParseTuple(args, "ss", &driver, &torch)) {
        return NULL;
    }
    void *d = dlopen(driver, RTLD_NOW), *t = dlopen(torch, RTLD_LAZY | RTLD_NOLOAD);
#define TAKE(field, library, name)                                                                 \
    (*(void **)&cuda.field = (library) == NULL ? NULL : dlsym((library), (name)))
    TAKE(launch, d, "cuLaunchKernel");
    TAKE(get_context, d, "cuCtxGetCurrent");
    TAKE(set_context, d, "cuCtxSetCurrent");
    TAKE(error_text, d, "cuGetErrorString");
    TAKE(set8, d, "cuMemsetD8Async");
    TAKE(set16, d, "cuMemsetD16Async");
    TAKE(set32, d, "cuMemsetD32Async");
    TAKE(new_guard, t, "aoti_torch_create_cuda_guard");
    TAKE(delete_guard, t, "aoti_torch_delete_cuda_guard");
    TAKE(current_stream, t, "aoti_torch_get_current_cuda_stream");
#undef TAKE
    return PyBool_FromLong(cuda.launch && cuda.get_context && cuda.set_context && cuda.error_text &&
                           cuda.set8 && cuda.set16 && cuda.set32 && cuda.new_guard &&
                           cuda.delete_guard && cuda.current_stream);
}

static int
failed(const char *what, int code)
{
    const char *text = NULL;
    cuda.error_text(code, &text);
    PyErr_Format(PyExc_RuntimeError, "%s: %s (%d)", what, text == NULL ? "unknown error" : text,
                 code);
    return -1;
}

/* ---- a kernel ---- */

static int
refuse(const char *what)
{
    if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "gpu: %s", what);
    }
    return -1;
}

/* Memory for as many as a tuple has. */
static void *
room_for(PyObject *tuple, size_t each)
{
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) > MOST_PARAMETERS) {
        refuse("a list of parts is a tuple");
        return NULL;
    }
    void *made = PyMem_Calloc((size_t)PyTuple_GET_SIZE(tuple) + 1, each);
    return made == NULL ? PyErr_NoMemory() : made;
}

/* (((buffer, bits), ...), ((slot, of, is it a multiple), ...), slot of scratch, ((slot of blocks,
 * splits, threads), ...)) */
static int
variant_from(LaunchedKernel *k, LaunchVariant *v, PyObject *row)
{
    PyObject *aligned, *conditions, *grids;
    if (!PyTuple_Check(row) ||
        !PyArg_ParseTuple(row, "OOiO", &aligned, &conditions, &v->scratch, &grids) ||
        (v->aligned = room_for(aligned, sizeof(Aligned))) == NULL ||
        (v->conditions = room_for(conditions, sizeof(Condition))) == NULL ||
        (v->grids = room_for(grids, sizeof(Grid))) == NULL || v->scratch < 0 ||
        v->scratch >= k->slots) {
        return refuse("a variant is a tuple of four");
    }
    for (; v->aligned_count < PyTuple_GET_SIZE(aligned); v->aligned_count++) {
        Aligned *a = &v->aligned[v->aligned_count];
        unsigned long bits;
        PyObject *pair = PyTuple_GET_ITEM(aligned, v->aligned_count);
        if (!PyTuple_Check(pair) || !PyArg_ParseTuple(pair, "ik", &a->buffer, &bits) ||
            a->buffer < 0 || a->buffer >= k->buffers) {
            return refuse("there is no such buffer");
        }
        a->bits = bits;
    }
    for (; v->condition_count < PyTuple_GET_SIZE(conditions); v->condition_count++) {
        Condition *c = &v->conditions[v->condition_count];
        PyObject *triple = PyTuple_GET_ITEM(conditions, v->condition_count);
        if (!PyTuple_Check(triple) ||
            !PyArg_ParseTuple(triple, "iip", &c->slot, &c->of, &c->is_multiple) || c->slot < 0 ||
            c->slot >= k->slots || c->of <= 0) {
            return refuse("a condition is about a size");
        }
    }
    for (; v->grid_count < PyTuple_GET_SIZE(grids); v->grid_count++) {
        Grid *g = &v->grids[v->grid_count];
        PyObject *triple = PyTuple_GET_ITEM(grids, v->grid_count);
        if (!PyTuple_Check(triple) ||
            !PyArg_ParseTuple(triple, "iII", &g->blocks, &g->splits, &g->threads) ||
            g->blocks < 0 || g->blocks >= k->slots || g->splits == 0 || g->threads == 0) {
            return refuse("a launch has blocks and threads");
        }
    }
    return 0;
}

static PyObject *
kernel_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *variants, *load;
    int buffers, slots;
    if (!PyArg_ParseTuple(args, "O!iiO", &PyTuple_Type, &variants, &buffers, &slots, &load)) {
        return NULL;
    }
    LaunchedKernel *k = (LaunchedKernel *)type->tp_alloc(type, 0);
    if (k == NULL) {
        return NULL;
    }
    k->load = Py_NewRef(load);
    k->buffers = buffers;
    k->slots = slots;
    k->variants = room_for(variants, sizeof(LaunchVariant));
    int wrong = k->variants == NULL || !PyCallable_Check(load) || PyTuple_GET_SIZE(variants) == 0;
    while (!wrong && k->variant_count < PyTuple_GET_SIZE(variants)) {
        LaunchVariant *v = &k->variants[k->variant_count++];
        wrong = variant_from(k, v, PyTuple_GET_ITEM(variants, k->variant_count - 1)) < 0;
    }
    if (!wrong) {
        const LaunchVariant *last = &k->variants[k->variant_count - 1];
        wrong = last->aligned_count > 0 || last->condition_count > 0;
    }
    if (wrong) {
        refuse("the last variant requires nothing");
        Py_CLEAR(k);
    }
    return (PyObject *)k;
}

static int
kernel_traverse(LaunchedKernel *k, visitproc visit, void *arg)
{
    Py_VISIT(k->load);
    return 0;
}

static void
kernel_dealloc(LaunchedKernel *k)
{
    PyObject_GC_UnTrack(k);
    Py_XDECREF(k->load);
    for (int i = 0; i < k->variant_count; i++) {
        PyMem_Free(k->variants[i].aligned);
        PyMem_Free(k->variants[i].conditions);
        PyMem_Free(k->variants[i].grids);
    }
    PyMem_Free(k->variants);
    Py_TYPE(k)->tp_free((PyObject *)k);
}

static PyTypeObject KernelType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator._native.GpuKernel",
    .tp_doc = "GpuKernel(variants, buffers, slots, load): how a kernel is launched, for the steps "
              "of a host function",
    .tp_basicsize = sizeof(LaunchedKernel),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = kernel_new,
    .tp_dealloc = (destructor)kernel_dealloc,
    .tp_traverse = (traverseproc)kernel_traverse,
};

int
gpu_kernel_fits(PyObject *object, int buffers, int sizes, int slots)
{
    const LaunchedKernel *k = (const LaunchedKernel *)object;
    return Py_IS_TYPE(object, &KernelType) && k->buffers == buffers && k->slots == slots &&
           buffers + sizes + 2 <= MOST_PARAMETERS;
}

/* ---- one call ---- */

int
gpu_enter(HostRun *r)
{
    const Host *h = r->h;
    void *now = NULL;
    int code = cuda.get_context(&now);
    if (code) {
        return failed("cuCtxGetCurrent", code);
    }
    if (now != h->context) { /* another device's, or a thread that never called CUDA has none yet */
        if (cuda.new_guard(h->device_index, &r->guard)) {
            r->guard = NULL;
            PyErr_Format(PyExc_RuntimeError, "cannot change to CUDA device %d", h->device_index);
            return -1;
        }
        if ((code = cuda.get_context(&now)) == 0 && now != h->context) {
            code = cuda.set_context(h->context);
        }
        if (code) {
            return failed("cuCtxSetCurrent", code);
        }
    }
    return gpu_stream(r);
}

void
gpu_leave(HostRun *r)
{
    if (r->guard != NULL) {
        cuda.delete_guard(r->guard);
        r->guard = NULL;
    }
}

int
gpu_stream(HostRun *r)
{
    if (cuda.current_stream(r->h->device_index, &r->stream)) {
        PyErr_SetString(PyExc_RuntimeError, "torch does not tell its current stream");
        return -1;
    }
    return 0;
}

/* The most scratch memory that any launch of this call can need: one piece for all of them, as they
 * run one after the other. */
int64_t
gpu_scratch(const Host *h, const int64_t *slots)
{
    int64_t most = 0;
    for (int i = 0; i < h->step_count; i++) {
        if (h->steps[i].kind != STEP_LAUNCH) {
            continue;
        }
        const LaunchedKernel *k = (const LaunchedKernel *)h->steps[i].object;
        for (int v = 0; v < k->variant_count; v++) {
            int64_t bytes = slots[k->variants[v].scratch];
            most = bytes > most ? bytes : most;
        }
    }
    return most;
}

static int
loaded(LaunchedKernel *k, int number)
{
    LaunchVariant *v = &k->variants[number];
    if (v->loaded) {
        return 0;
    }
    PyObject *addresses = PyObject_CallFunction(k->load, "i", number);
    if (addresses == NULL || !PyTuple_Check(addresses) ||
        PyTuple_GET_SIZE(addresses) != v->grid_count) {
        Py_XDECREF(addresses);
        return PyErr_Occurred() ? -1 : refuse("an address for each launch");
    }
    for (int i = 0; i < v->grid_count; i++) {
        v->grids[i].function = PyLong_AsVoidPtr(PyTuple_GET_ITEM(addresses, i));
    }
    Py_DECREF(addresses);
    v->loaded = !PyErr_Occurred();
    return v->loaded ? 0 : -1;
}

static int
variant_fits(const LaunchVariant *v, const uint64_t *values, const int64_t *slots)
{
    for (int i = 0; i < v->aligned_count; i++) {
        if (values[v->aligned[i].buffer] & v->aligned[i].bits) {
            return 0;
        }
    }
    for (int i = 0; i < v->condition_count; i++) {
        const Condition *c = &v->conditions[i];
        if (c->is_multiple ? slots[c->slot] % c->of != 0 : slots[c->slot] > c->of) {
            return 0;
        }
    }
    return 1;
}

/* items: buffers. more: slots of the sizes */
int
gpu_launch(HostRun *r, const HostStep *s)
{
    LaunchedKernel *k = (LaunchedKernel *)s->object;
    uint64_t values[MOST_PARAMETERS];
    void *arguments[MOST_PARAMETERS];
    for (int i = 0; i < s->count; i++) {
        int reg = r->h->buffers[s->items[i]].reg;
        values[i] = (uint64_t)(uintptr_t)r->data[s->items[i]];
        if (reg >= 0 && (r->registers[reg] == NULL || handle_of(r->registers[reg]) == NULL)) {
            PyErr_SetString(PyExc_TypeError, "a kernel needs a tensor where there is none");
            return -1;
        }
    }
    values[s->count] = (uint64_t)(uintptr_t)r->scratch;
    values[s->count + 1] = 0; /* no status word: a check that fails stops the kernel */
    for (int i = 0; i < s->more_count; i++) {
        values[s->count + 2 + i] = (uint64_t)r->slots[s->more[i]];
    }
    int count = s->count + 2 + s->more_count, number = 0;
    for (int i = 0; i < count; i++) {
        arguments[i] = &values[i];
    }
    while (number < k->variant_count - 1 && !variant_fits(&k->variants[number], values, r->slots)) {
        number++;
    }
    if (loaded(k, number) < 0) {
        return -1;
    }
    const LaunchVariant *v = &k->variants[number];
    int code = 0;
    for (int i = 0; i < v->grid_count && code == 0; i++) {
        int64_t blocks = r->slots[v->grids[i].blocks];
        if (blocks <= 0) {
            continue;
        }
        if (blocks > INT32_MAX) {
            PyErr_SetString(PyExc_OverflowError, "a kernel needs more than 2**31 blocks");
            return -1;
        }
        /* where the queue is full it waits, maybe for a thread that needs Python */
        PyThreadState *saved = PyEval_SaveThread();
        code = cuda.launch(v->grids[i].function, (unsigned)blocks, v->grids[i].splits, 1,
                           v->grids[i].threads, 1, 1, 0, r->stream, arguments, NULL);
        PyEval_RestoreThread(saved);
    }
    return code ? failed("cuLaunchKernel", code) : 0;
}

/* A number on the CPU goes to its place in the arena. items: the buffer. numbers: register,
 * bytes */
int
gpu_upload(HostRun *r, const HostStep *s)
{
    PyObject *value = r->registers[s->numbers[0]];
    uint64_t to = (uint64_t)(uintptr_t)r->data[s->items[0]];
    int bytes = s->numbers[1], code = 0;
    char number[16];
    void *handle = value == NULL ? NULL : handle_of(value), *data = NULL;
    if (handle != NULL) {
        if (!input_stands(r, s->numbers[0])) {
            return -1;
        }
        if (torch_c.data(handle, &data) || data == NULL) {
            PyErr_SetString(PyExc_RuntimeError, "a tensor has no memory that can be told");
            return -1;
        }
    }
    else if (value != NULL && PyFloat_Check(value) && bytes == sizeof(double)) {
        data = &((PyFloatObject *)value)->ob_fval;
    }
    else {
        PyErr_SetString(PyExc_TypeError, "a kernel needs a tensor or a float where there is none");
        return -1;
    }
    memcpy(number, data, (size_t)bytes);
    if (bytes == 1) {
        code = cuda.set8(to, (unsigned char)number[0], 1, r->stream);
    }
    else if (bytes == 2) {
        unsigned short half;
        memcpy(&half, number, sizeof half);
        code = cuda.set16(to, half, 1, r->stream);
    }
    for (int i = 0; bytes >= 4 && i < bytes && code == 0; i += 4) {
        unsigned word;
        memcpy(&word, number + i, sizeof word);
        code = cuda.set32(to + (uint64_t)i, word, 1, r->stream);
    }
    return code ? failed("cuMemsetAsync", code) : 0;
}

static PyMethodDef functions[] = {
    {"gpu_learn", gpu_learn, METH_VARARGS,
     "Where the driver's and torch's C functions for CUDA are: (library of the driver, "
     "libtorch_cuda). Usable?"},
    {NULL},
};

int
gpu_setup(PyObject *module)
{
    return PyModule_AddFunctions(module, functions) < 0 ? -1
                                                        : PyModule_AddType(module, &KernelType);
}

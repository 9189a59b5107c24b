/* The host function of a compiled graph, as data: check the inputs, allocate, launch kernels, call
 * the BLAS and the dispatcher.
 *
 * `codegen.host` makes it from a loop program. Registers hold tensors; buffers are memory that
 * kernels and GEMMs use: a tensor's, or a part of the arena, which belongs to one call. Numbers
 * (sizes, strides, offsets) lie in slots; those that depend on the inputs are computed first.
 * Nothing is touched before every input was compared with what the graph was compiled for, in this
 * very call.
 */
#include "host.h"

static PyObject *
run_steps(HostRun *r)
{
    Host *h = r->h;
    for (int i = 0; i < h->buffer_count; i++) {
        if (h->buffers[i].reg < 0) {
            r->data[i] = r->arena + r->slots[h->buffers[i].offset];
        }
    }
    for (int i = 0; i < h->step_count; i++) {
        if (host_step(r, &h->steps[i]) < 0) {
            return NULL;
        }
        if (r->status && !h->keeps_inputs) { /* too late to begin again */
            PyErr_SetString(PyExc_IndexError, "index out of range in self");
            return NULL;
        }
        if (r->status) {
            Py_RETURN_NONE;
        }
        /* these have run with it */
        i += h->steps[i].kind == STEP_BLOCKS ? h->steps[i].numbers[0] : 0;
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

/* The slots of this call: a copy, where some depend on the inputs. 1: the inputs are others than
 * the graph was compiled for. */
static int
compute_slots(Host *h, PyObject *list, int64_t *slots)
{
    memcpy(slots, h->slots, (size_t)h->known * sizeof(int64_t));
    PyObject *numbers = PyObject_CallOneArg(h->compute, list);
    if (numbers == Py_None) {
        Py_DECREF(numbers);
        return 1;
    }
    if (numbers == NULL || !PyTuple_Check(numbers) ||
        PyTuple_GET_SIZE(numbers) != h->slot_count - h->known) {
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

/* The device becomes current; the arena and scratch memory are one piece of memory of the stream
 * that is current. */
static int
take_gpu(HostRun *r)
{
    int64_t arena = (r->slots[r->h->arena] + 63) & ~(int64_t)63,
            scratch = gpu_scratch(r->h, r->slots), shape[2] = {arena + scratch, 1};
    void *data = NULL;
    if (gpu_enter(r) < 0) {
        return -1;
    }
    if (shape[0] <= 0) {
        return 0;
    }
    if ((r->memory = host_allocate(r, 1, shape, 0)) == NULL) {
        return -1;
    }
    if (handle_of(r->memory) == NULL || torch_c.data(handle_of(r->memory), &data) || data == NULL) {
        Py_CLEAR(r->memory);
        PyErr_SetString(PyExc_RuntimeError, "memory was allocated that cannot be told");
        return -1;
    }
    r->arena = data;
    r->scratch = (char *)data + arena;
    return 0;
}

/* The inputs, and behind them the constants. */
static int
fill_registers(HostRun *r, PyObject *list)
{
    Host *h = r->h;
    int failed = 0;
    for (int i = 0; i < h->inputs; i++) {
        failed |= set_register(r, i, Py_NewRef(PyList_GET_ITEM(list, i))) < 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(h->constants); i++) {
        PyObject *constant = PyTuple_GET_ITEM(h->constants, i);
        failed |= set_register(r, h->inputs + (int)i, Py_NewRef(constant)) < 0;
    }
    return failed ? -1 : 0;
}

static PyObject *
run_host(Host *h, PyObject *list, char *memory, size_t registers_at, size_t data_at)
{
    HostRun r = {h, h->slots, (PyObject **)(memory + registers_at), (char **)(memory + data_at),
                 .arena = NULL};
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
    if (!inputs_hold(h, list, r.slots) || (h->writes && !written_alone(h, list, r.slots))) {
        Py_RETURN_NONE;
    }
    Block *from = NULL;
    if (h->on_gpu ? take_gpu(&r) < 0
                  : r.slots[h->arena] > 0 &&
                        (r.arena = arena_take((size_t)r.slots[h->arena], &from)) == NULL) {
        gpu_leave(&r);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    PyObject *result = NULL;
    int failed = fill_registers(&r, list) < 0;
    if (!failed) {
        if (!h->keeps_inputs && PyList_SetSlice(list, 0, PyList_GET_SIZE(list), NULL) < 0) {
            failed = 1;
        }
        result = failed ? NULL : run_steps(&r);
        if (h->keeps_inputs && result != NULL && result != Py_None) {
            failed = PyList_SetSlice(list, 0, PyList_GET_SIZE(list), NULL) < 0;
        }
    }
    /* numbers were drawn that are drawn again */
    if (result == Py_None && h->state >= 0 && r.registers[h->state] != NULL) {
        PyObject *done = PyObject_CallOneArg(h->restore, r.registers[h->state]);
        failed |= done == NULL;
        Py_XDECREF(done);
    }
    for (int i = 0; i < h->registers; i++) {
        Py_XDECREF(r.registers[i]);
    }
    if (h->on_gpu) {
        Py_XDECREF(r.memory);
        gpu_leave(&r);
    }
    else if (r.arena != NULL) {
        arena_give(r.arena, from);
    }
    if (failed) {
        Py_CLEAR(result);
    }
    return result;
}

/* (list of inputs) -> results, and the list is cleared. Where the inputs are others than those the
 * graph was compiled for, or an index lies outside, the graph runs by other means, and eager's own
 * exception comes of that. */
PyObject *
host_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Host *h = (Host *)self;
    if (PyVectorcall_NARGS(nargsf) != 1 || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0) ||
        !PyList_CheckExact(args[0])) {
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
    /* other inputs than those it was compiled for, or an index lies outside */
    if (result == Py_None) {
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

/* looks(inputs, skipped) -> bytes: where each input lies, 8 bytes each, 0 for those that are
 * skipped; None if they are not what the graph was compiled for, or not on its device. For whoever
 * runs a captured graph in its place, on the same memory. */
static PyObject *
host_looks(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Host *h = (Host *)self;
    if (nargs != 2 || !PyList_CheckExact(args[0]) || !PyTuple_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "looks(inputs, skipped)");
        return NULL;
    }
    if (!h->ready || h->compute != NULL || PyList_GET_SIZE(args[0]) != h->inputs ||
        !inputs_hold(h, args[0], h->slots)) {
        Py_RETURN_NONE;
    }
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)h->inputs * 8);
    if (bytes == NULL) {
        return NULL;
    }
    uint64_t *looks = (uint64_t *)(void *)PyBytes_AS_STRING(bytes);
    for (int i = 0; i < h->inputs; i++) {
        void *handle = handle_of(PyList_GET_ITEM(args[0], i)), *data = NULL;
        int32_t device;
        if (handle == NULL || torch_c.device(handle, &device) || device != h->device ||
            torch_c.data(handle, &data)) {
            Py_DECREF(bytes);
            Py_RETURN_NONE;
        }
        uint64_t address = (uint64_t)(uintptr_t)data;
        memcpy(looks + i, &address, sizeof address);
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[1]); i++) {
        Py_ssize_t skipped = PyLong_AsSsize_t(PyTuple_GET_ITEM(args[1], i));
        if (skipped < 0 || skipped >= h->inputs) {
            Py_DECREF(bytes);
            return PyErr_Occurred()
                       ? NULL
                       : PyErr_Format(PyExc_IndexError, "there is no input %zd", skipped);
        }
        memset(looks + skipped, 0, sizeof *looks);
    }
    return bytes;
}

static PyMethodDef host_methods[] = {
    {"looks", FAST(host_looks),
     "Where each input lies; None if they are not what the graph was compiled for."},
    {NULL},
};

static int
host_traverse(Host *h, visitproc visit, void *arg)
{
    Py_VISIT(h->constants);
    Py_VISIT(h->compute);
    Py_VISIT(h->fallback);
    Py_VISIT(h->restore);
    Py_VISIT(h->allocate);
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
    Py_XDECREF(h->allocate);
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
    PyMem_Free(h->check_of);
    PyMem_Free(h->slots);
    PyMem_Free(h->outputs);
    Py_TYPE(h)->tp_free((PyObject *)h);
}

static PyTypeObject HostType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator._native.Host",
    .tp_doc =
        "The host function of a compiled graph: takes a list of inputs, gives a tuple of results",
    .tp_basicsize = sizeof(Host),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = host_new,
    .tp_dealloc = (destructor)host_dealloc,
    .tp_traverse = (traverseproc)host_traverse,
    .tp_clear = (inquiry)host_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Host, call),
    .tp_methods = host_methods,
};

static PyMethodDef functions[] = {
    {"host_learn", host_learn, METH_VARARGS,
     "Where torch's C functions are: (libtorch_cpu, libtorch_python, libgomp or '', dispatch keys "
     "that a tensor may have, and must). (usable, is there a BLAS)"},
    {"host_pack_bytes", host_pack_bytes, METH_VARARGS,
     "(m, n, k): bytes of the second matrix of a product, packed; 0: it cannot be"},
    {NULL},
};

int
host_setup(PyObject *module)
{
    static const struct {
        const char *name;
        int value;
    } kinds[] = {{"HOST_ALLOCATE", STEP_ALLOCATE}, {"HOST_KERNEL", STEP_KERNEL},
                 {"HOST_GEMM", STEP_GEMM},         {"HOST_CALL", STEP_CALL},
                 {"HOST_ALIAS", STEP_ALIAS},       {"HOST_EXPECT", STEP_EXPECT},
                 {"HOST_LAUNCH", STEP_LAUNCH},     {"HOST_UPLOAD", STEP_UPLOAD},
                 {"HOST_FREE", STEP_FREE},         {"HOST_BLOCKS", STEP_BLOCKS}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (PyModule_AddIntConstant(module, kinds[i].name, kinds[i].value) < 0) {
            return -1;
        }
    }
    if (arena_setup() != 0) {
        PyErr_SetString(PyExc_ImportError, "no key for memory of threads");
        return -1;
    }
    if (PyModule_AddFunctions(module, functions) < 0 || PyModule_AddType(module, &HostType) < 0 ||
        gpu_setup(module) < 0) {
        return -1;
    }
    /* it takes a list, and clears it */
    return PyDict_SetItemString(HostType.tp_dict, "_boxed_call", Py_True);
}

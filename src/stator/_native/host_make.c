/* Making a host function from the tables of `codegen.host`: everything is checked against
 * everything else, once. */
#include "host.h"

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
    if (!PyTuple_Check(row) || !PyArg_ParseTuple(row, "iOOO!KO", &s->kind, &items, &more,
                                                 &PyTuple_Type, &numbers, &address, &object)) {
        return refuse("a step is a tuple of six");
    }
    s->object = Py_NewRef(object);
    s->function = (KernelFunction)(uintptr_t)address;
    int of_buffers = s->kind == STEP_KERNEL || s->kind == STEP_GEMM || s->kind == STEP_LAUNCH ||
                     s->kind == STEP_UPLOAD || s->kind == STEP_BLOCKS;
    int of_slots = s->kind == STEP_ALLOCATE || s->kind == STEP_ALIAS || s->kind == STEP_EXPECT;
    int limit = of_buffers ? h->buffer_count : of_slots ? h->slot_count : h->registers;
    if (s->kind < 0 || s->kind > STEP_BLOCKS || ints_from(items, &s->items, &s->count, limit) < 0 ||
        ints_from(more, &s->more, &s->more_count, of_buffers ? h->slot_count : h->registers) < 0 ||
        PyTuple_GET_SIZE(numbers) > 16) {
        return refuse("no such step");
    }
    for (int i = 0; i < PyTuple_GET_SIZE(numbers); i++) {
        s->numbers[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(numbers, i));
        if (s->numbers[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    const int *n = s->numbers;
    int fine =
        s->kind == STEP_ALLOCATE
            ? n[0] >= 0 && n[0] < h->registers && n[2] >= 0 && n[2] <= 32 && s->count == 2 * n[2]
        : s->kind == STEP_KERNEL ? s->count <= 64 && s->more_count <= 64 && address != 0 &&
                                       n[3] > 0 && n[0] >= 0 && n[0] < h->slot_count && n[1] >= 0 &&
                                       n[1] < h->slot_count && n[2] >= 0 && n[2] < h->slot_count
        : s->kind == STEP_GEMM
            ? (s->count == 3 || (s->count == 4 && torch_c.pack != NULL)) &&
                  s->more_count == GEMM_NUMBERS && torch_c.sgemm != NULL && torch_c.dgemm != NULL &&
                  (!n[5] || (!n[0] && torch_c.pack_bytes != NULL && torch_c.pack != NULL &&
                             torch_c.packed != NULL))
        : s->kind == STEP_ALIAS ? n[0] >= 0 && n[0] < h->registers && n[2] >= 0 && n[2] <= 32 &&
                                      s->count == 2 * n[2] + 1 && s->more_count == 1
        : s->kind == STEP_EXPECT
            ? n[0] >= 0 && n[0] < h->registers && n[2] >= 0 && n[2] < h->slot_count && n[3] > 0 &&
                  s->count % 2 == 0 && s->count <= 64 && (n[4] == 0 || n[4] == h->device) &&
                  PyCallable_Check(object)
        : s->kind == STEP_LAUNCH
            ? h->on_gpu && gpu_kernel_fits(object, s->count, s->more_count, h->slot_count)
        : s->kind == STEP_UPLOAD
            ? h->on_gpu && s->count == 1 && n[0] >= 0 && n[0] < h->registers && n[1] > 0 &&
                  n[1] <= 16 && (n[1] & (n[1] - 1)) == 0 && h->buffers[s->items[0]].reg < 0
        : s->kind == STEP_CALL
            ? s->count <= 64 && s->more_count <= 64 && tape_output_count(object) == s->more_count
            : 1;
    return fine ? 0 : refuse("a step does not fit its kind");
}

/* (register, dtype, reach, itemsize, slots of sizes and strides, do kernels write to it?, kind of
 * device, do they touch it?) */
static int
check_from(Host *h, HostInput *in, PyObject *row)
{
    PyObject *sizes;
    int count;
    if (!PyTuple_Check(row) ||
        !PyArg_ParseTuple(row, "iiiiOiii", &in->reg, &in->dtype, &in->reach, &in->itemsize, &sizes,
                          &in->written, &in->device, &in->by_kernels) ||
        ints_from(sizes, &in->sizes, &count, h->slot_count) < 0) {
        return refuse("a check is a tuple of eight");
    }
    h->writes |= in->written;
    in->rank = count / 2;
    return in->reg >= 0 && in->reg < h->inputs + PyTuple_GET_SIZE(h->constants) &&
                   in->reach < h->slot_count && in->itemsize > 0 && count % 2 == 0 &&
                   (in->device == 0 || in->device == h->device)
               ? 0
               : refuse("a check of something that is no input");
}

/* Do the steps of each block make it up? Packed matrices are for blocks alone. */
static int
blocks_are_whole(const Host *h)
{
    for (int i = 0; i < h->step_count; i++) {
        if (h->steps[i].kind == STEP_BLOCKS) {
            if (!blocks_fit(h, i)) {
                return refuse("a block of steps that does not fit them");
            }
            i += h->steps[i].numbers[0];
        }
        else if (h->steps[i].kind == STEP_GEMM && h->steps[i].count != 3) {
            return refuse("a packed matrix outside of a block");
        }
    }
    return 0;
}

static int
tables_from(Host *h, PyObject *slots, PyObject *buffers, PyObject *checks, PyObject *steps,
            PyObject *outputs)
{
    h->known = (int)PyList_GET_SIZE(slots);
    h->slots = PyMem_Calloc((size_t)h->known + 1, sizeof(int64_t));
    h->buffers = PyMem_Calloc((size_t)PyList_GET_SIZE(buffers) + 1, sizeof(HostBuffer));
    h->buffer_of = PyMem_Calloc((size_t)h->registers + 1, sizeof(int));
    h->check_of = PyMem_Calloc((size_t)h->registers + 1, sizeof(int));
    h->checks = PyMem_Calloc((size_t)PyList_GET_SIZE(checks) + 1, sizeof(HostInput));
    h->steps = PyMem_Calloc((size_t)PyList_GET_SIZE(steps) + 1, sizeof(HostStep));
    if (h->slots == NULL || h->buffers == NULL || h->buffer_of == NULL || h->check_of == NULL ||
        h->checks == NULL || h->steps == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memset(h->buffer_of, -1, (size_t)h->registers * sizeof(int));
    memset(h->check_of, -1, (size_t)h->registers * sizeof(int));
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
        if (!PyTuple_Check(row) || !PyArg_ParseTuple(row, "iid", &b->reg, &b->offset, &b->limit) ||
            b->reg >= h->registers ||
            (b->reg < 0 && (b->offset < 0 || b->offset >= h->slot_count))) {
            return refuse("a buffer is a register or an offset, and a limit");
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
        h->check_of[in->reg] = h->check_count - 1;
    }
    for (; h->step_count < PyList_GET_SIZE(steps);) {
        HostStep *s = &h->steps[h->step_count++];
        if (step_from(h, s, PyList_GET_ITEM(steps, h->step_count - 1)) < 0) {
            return -1;
        }
    }
    if (blocks_are_whole(h) < 0) {
        return -1;
    }
    return ints_from(outputs, &h->outputs, &h->output_count, h->registers);
}

/* (kind of device, its number, dispatch keys that a tensor there may have, and must, its context,
 * what allocates there), or None */
static int
gpu_from(Host *h, PyObject *row)
{
    unsigned long long keys, needed_keys;
    PyObject *context, *allocate;
    if (row == Py_None) {
        return 0;
    }
    if (!PyTuple_Check(row) ||
        !PyArg_ParseTuple(row, "iiKKOO", &h->device, &h->device_index, &keys, &needed_keys,
                          &context, &allocate) ||
        h->device < 0 || (h->device != 0 && needed_keys == 0) || !PyCallable_Check(allocate)) {
        return refuse("a device is a tuple of six");
    }
    h->keys = keys;
    h->needed_keys = needed_keys;
    h->context = PyLong_AsVoidPtr(context);
    h->allocate = Py_NewRef(allocate);
    h->on_gpu = 1;
    return PyErr_Occurred() ? -1 : 0;
}

PyObject *
host_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *slots, *buffers, *checks, *steps, *outputs, *constants, *compute, *fallback, *restore,
        *gpu;
    int inputs, registers, unknown, arena, keeps, state;
    if (!PyArg_ParseTuple(args, "iiO!iOO!O!O!O!O!ipOiOO", &inputs, &registers, &PyList_Type, &slots,
                          &unknown, &compute, &PyList_Type, &buffers, &PyList_Type, &checks,
                          &PyList_Type, &steps, &PyTuple_Type, &outputs, &PyTuple_Type, &constants,
                          &arena, &keeps, &fallback, &state, &restore, &gpu)) {
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
    if (inputs < 0 || state >= registers || unknown < 0 || (unknown > 0) != (h->compute != NULL) ||
        arena < 0 || arena >= h->slot_count || registers < inputs + PyTuple_GET_SIZE(constants) ||
        gpu_from(h, gpu) < 0 || tables_from(h, slots, buffers, checks, steps, outputs) < 0) {
        refuse("the parts do not fit together");
        Py_CLEAR(h);
        return NULL;
    }
    h->ready = 1;
    return (PyObject *)h;
}

/* Is what a call was given what its graph was compiled for? Nothing is touched before this says so,
 * in this very call. */
#include "host.h"

#include <math.h>

/* 1: it is what the graph was compiled for; 0: it is not; -1: its storage is too small for it. Runs
 * no Python code. Tensors with other dispatch keys than plain memory has (negated and conjugated
 * views, zeros without memory, sparse ones, those inside of transforms) are not. */
int
input_holds(const Host *h, const HostInput *in, PyObject *value, const int64_t *slots)
{
    void *handle = handle_of(value);
    int64_t rank, bytes, offset, end;
    int32_t dtype, device, index;
    const int64_t *sizes, *strides;
    if (handle == NULL) {
        return 0;
    }
    /* Operators alone see those that no kernel touches, and they take numbers from the CPU as well:
     * torch has the seeds of its attention there, where nothing is captured. */
    if (torch_c.device(handle, &device) ||
        (device != in->device && !(!in->by_kernels && device == 0))) {
        return 0;
    }
    uint64_t keys = TENSOR_AT(tensor_impl(value), tensor_places.keys, uint64_t);
    uint64_t allowed = device == 0 ? torch_c.keys : h->keys,
             needed = device == 0 ? torch_c.needed_keys : h->needed_keys;
    if ((keys & ~allowed) != 0 || (keys & needed) != needed ||
        tensor_places.get_dim(handle, &rank) || rank != in->rank ||
        tensor_places.get_dtype(handle, &dtype) || dtype != in->dtype ||
        tensor_places.get_sizes(handle, &sizes) || tensor_places.get_strides(handle, &strides)) {
        return 0;
    }
    if (device != 0 && (torch_c.device_index == NULL || torch_c.device_index(handle, &index) ||
                        index != h->device_index)) {
        return 0;
    }
    for (int64_t i = 0; i < rank; i++) {
        if (sizes[i] != slots[in->sizes[i]] ||
            (strides[i] != slots[in->sizes[rank + i]] && sizes[i] > 1)) {
            return 0;
        }
    }
    if (in->reach < 0 || slots[in->reach] == 0) {
        return 1;
    }
    void *data;
    if (torch_c.storage_size(handle, &bytes) || torch_c.storage_offset(handle, &offset) ||
        torch_c.data(handle, &data)) {
        return 0;
    }
    if (data == NULL || offset < 0 || slots[in->reach] < 0 ||
        __builtin_add_overflow(offset, slots[in->reach], &end) ||
        __builtin_mul_overflow(end, (int64_t)in->itemsize, &end) || end > bytes) {
        return -1;
    }
    return !in->by_kernels || (uintptr_t)data % (uintptr_t)in->itemsize == 0;
}

/* 1: an input is what it was when the call began, or no kernel touches it; else 0 with an
 * exception. */
int
input_stands(const HostRun *r, int reg)
{
    int check = r->h->check_of[reg];
    if (check < 0 || input_holds(r->h, &r->h->checks[check], r->registers[reg], r->slots) > 0) {
        return 1;
    }
    PyErr_SetString(PyExc_RuntimeError,
                    "an input of a compiled graph was changed while the graph ran");
    return 0;
}

/* Since a tensor was looked at, other threads may have run, and with them Python code that gave it
 * other memory. Whoever is about to use the memory asks again: what lies elsewhere now is looked at
 * anew. */
int
memory_stands(HostRun *r, int buffer)
{
    int reg = r->h->buffers[buffer].reg;
    void *handle = reg < 0 || r->registers[reg] == NULL ? NULL : handle_of(r->registers[reg]),
         *data;
    if (handle == NULL) {
        return 1; /* the arena, a number, or nothing, which is not used */
    }
    if (torch_c.data(handle, &data) == 0 && (data == r->data[buffer] || r->h->check_of[reg] >= 0)) {
        if (data != r->data[buffer] && !input_stands(r, reg)) {
            return 0;
        }
        r->data[buffer] = data;
        return 1;
    }
    PyErr_SetString(PyExc_RuntimeError,
                    "a tensor of a compiled graph got other memory while the graph ran");
    return 0;
}

/* What a check is about: an input, or a constant. Borrowed. */
static PyObject *
checked_value(const Host *h, PyObject *list, const HostInput *in)
{
    return in->reg < h->inputs ? PyList_GET_ITEM(list, in->reg)
                               : PyTuple_GET_ITEM(h->constants, in->reg - h->inputs);
}

/* 1: no input that kernels write to shares memory with another one that they touch. */
int
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
            if (j == i || !with->by_kernels || with->reach < 0) {
                continue;
            }
            if (torch_c.data(handle_of(checked_value(h, list, with)), &other)) {
                return 0;
            }
            uintptr_t begin = (uintptr_t)other,
                      end = begin + (uintptr_t)(slots[with->reach] * with->itemsize);
            if (begin < high && low < end) {
                return 0;
            }
        }
    }
    return 1;
}

/* Whether every input and constant is what the graph was compiled for. */
int
inputs_hold(const Host *h, PyObject *list, const int64_t *slots)
{
    for (int i = 0; i < h->check_count; i++) {
        if (input_holds(h, &h->checks[i], checked_value(h, list, &h->checks[i]), slots) <= 0) {
            return 0;
        }
    }
    for (int i = 0; i < h->inputs; i++) { /* kernels read the others as they are */
        PyObject *value = PyList_GET_ITEM(list, i);
        if (h->buffer_of[i] < 0 || handle_of(value) != NULL) {
            continue;
        }
        double limit = h->buffers[h->buffer_of[i]].limit;
        if (!PyFloat_Check(value) || (limit >= 0 && !(fabs(PyFloat_AS_DOUBLE(value)) <= limit))) {
            return 0; /* eager raises, or its number is infinite or NaN */
        }
    }
    return 1;
}

/* What guards ask of a tensor, read from the tensor itself. See tensor.c. */
#ifndef STATOR_TENSOR_H
#define STATOR_TENSOR_H

#include "compat.h"
#include <stdint.h>

/* All that a graph assumes of an input tensor; the counterpart of `recording.TensorFields`. */
typedef struct {
    PyObject *source;   /* the tuple that it was made from; not owned */
    PyTypeObject *type; /* owned */
    uint64_t keys;      /* raw dispatch key set: it implies the kind of device */
    int64_t rank;
    int32_t dtype;        /* torch's number of it */
    int32_t device_index; /* -1: there is only one such device, it need not be asked */
    char requires_grad, is_leaf;
    int64_t *sizes; /* rank sizes, then rank strides */
} TensorFields;

/* Where tensors keep them, as `replay.layout` tells; see tensor.c. */
typedef int32_t (*TensorGetter)(void *tensor, void *result);

typedef struct {
    PyTypeObject *types[2]; /* torch.Tensor, torch.nn.Parameter */
    Py_ssize_t impl;        /* where the Python object holds the TensorImpl */
    Py_ssize_t keys;        /* in the TensorImpl, as are the next four */
    Py_ssize_t shape;       /* rank, then the sizes and strides, in place up to `inline_rank` */
    Py_ssize_t dtype;
    Py_ssize_t autograd; /* pointer to the AutogradMeta, or NULL */
    /* pointer to the memory that it shares with others; -1: not known where */
    Py_ssize_t storage;
    /* in that: its address, who gave it, its size; -1: not known where */
    Py_ssize_t data, context, bytes;
    Py_ssize_t flag, grad_fn; /* in the AutogradMeta */
    Py_ssize_t inline_rank;
    enum { TENSOR_UNKNOWN, TENSOR_ABI, TENSOR_LAYOUT } way;
    TensorGetter get_dim, get_sizes, get_strides, get_dtype, get_device_index;
    PyGetSetDef *requires_grad, *is_leaf, *grad;
} TensorPlaces;

extern TensorPlaces tensor_places __attribute__((visibility("hidden")));

#define TENSOR_ANY INT64_MIN /* a size or stride that may be any */
#define TENSOR_AT(base, offset, type) (*(type *)((char *)(base) + (offset)))

static inline int
tensor_same_numbers(const int64_t *a, const int64_t *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (a[i] != b[i] && b[i] != TENSOR_ANY) {
            return 0;
        }
    }
    return 1;
}

static inline int
tensor_is_leaf_by_layout(const char *meta)
{
    return meta == NULL || TENSOR_AT(meta, tensor_places.grad_fn, void *) == NULL;
}

static inline int
tensor_holds_by_layout(const TensorFields *f, char *impl)
{
    const TensorPlaces *at = &tensor_places;
    char *shape = impl + at->shape;
    int64_t rank = TENSOR_AT(shape, 0, int64_t);
    if (rank != f->rank || TENSOR_AT(impl, at->dtype, uint16_t) != f->dtype) {
        return 0;
    }
    if (rank <= at->inline_rank) {
        const int64_t *sizes = &TENSOR_AT(shape, 8, int64_t);
        if (!tensor_same_numbers(sizes, f->sizes, rank) ||
            !tensor_same_numbers(sizes + at->inline_rank, f->sizes + rank, rank)) {
            return 0;
        }
    }
    else if (!tensor_same_numbers(TENSOR_AT(shape, 8, const int64_t *), f->sizes, 2 * rank)) {
        return 0;
    }
    char *meta = TENSOR_AT(impl, at->autograd, char *);
    int is_leaf = tensor_is_leaf_by_layout(meta);
    int requires_grad = !is_leaf || (meta != NULL && TENSOR_AT(meta, at->flag, char) != 0);
    return requires_grad == f->requires_grad && is_leaf == f->is_leaf;
}

int tensor_holds_by_call(const TensorFields *facts, PyObject *value);

/* 1: they hold, 0: they do not. Runs no Python code, raises nothing. */
static inline int
tensor_holds(const TensorFields *f, PyObject *value)
{
    const TensorPlaces *at = &tensor_places;
    PyTypeObject *type = Py_TYPE(value);
    if (type != f->type || (type != at->types[0] && type != at->types[1])) {
        return 0;
    }
    char *impl = TENSOR_AT(value, at->impl, char *);
    if (impl == NULL || at->way == TENSOR_UNKNOWN ||
        TENSOR_AT(impl, at->keys, uint64_t) != f->keys) {
        return 0;
    }
    if (f->device_index >= 0) {
        int32_t index;
        if (at->get_device_index == NULL ||
            at->get_device_index((char *)value + at->impl, &index) || index != f->device_index) {
            return 0;
        }
    }
    return at->way == TENSOR_LAYOUT ? tensor_holds_by_layout(f, impl)
                                    : tensor_holds_by_call(f, value);
}

/* The TensorImpl of an object that is exactly a tensor or a parameter; else NULL. */
static inline char *
tensor_impl(PyObject *value)
{
    const TensorPlaces *at = &tensor_places;
    int is_tensor = at->way != TENSOR_UNKNOWN &&
                    (Py_TYPE(value) == at->types[0] || Py_TYPE(value) == at->types[1]);
    return is_tensor ? TENSOR_AT(value, at->impl, char *) : NULL;
}

/* The memory in which a tensor lies; NULL if that cannot be told. */
static inline const void *
tensor_storage(PyObject *value)
{
    char *impl = tensor_places.way == TENSOR_LAYOUT && tensor_places.storage >= 0
                     ? tensor_impl(value)
                     : NULL;
    return impl == NULL ? NULL : TENSOR_AT(impl, tensor_places.storage, const void *);
}

/* Is it memory that torch's allocator did not give, such as an array of numpy's? Others may lie in
 * it, too. To be asked only if it is known where that stands. */
static inline int
storage_is_foreign(const void *storage)
{
    return TENSOR_AT(storage, tensor_places.data, char *) !=
           TENSOR_AT(storage, tensor_places.context, char *);
}

static inline int
storages_overlap(const void *a, const void *b)
{
    const char *first = TENSOR_AT(a, tensor_places.data, const char *),
               *second = TENSOR_AT(b, tensor_places.data, const char *);
    return first < second + TENSOR_AT(b, tensor_places.bytes, int64_t) &&
           second < first + TENSOR_AT(a, tensor_places.bytes, int64_t);
}

/* The gradient of a leaf, or None; NULL without an exception if it cannot be read. A new reference:
 * the object may have been made for it. Runs no Python code while no torch function mode is
 * active. */
PyObject *tensor_grad(PyObject *value);
/* From the tuple that `replay.layout.native_facts` makes. NULL with an exception. */
TensorFields *tensor_facts_new(PyObject *tuple);
void tensor_facts_free(TensorFields *facts);
int tensor_setup(PyObject *module);

#endif

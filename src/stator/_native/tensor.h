/* What guards ask of a tensor, read from the tensor itself. See tensor.c. */
#ifndef STATOR_TENSOR_H
#define STATOR_TENSOR_H

#include "compat.h"
#include <stdint.h>

/* All that a graph assumes of an input tensor; the counterpart of `recording.TensorFacts`. */
typedef struct {
    PyObject *source;   /* the tuple that it was made from; not owned */
    PyTypeObject *type; /* owned */
    uint64_t keys;      /* raw dispatch key set: it implies the kind of device */
    int64_t rank;
    int32_t dtype;        /* torch's number of it */
    int32_t device_index; /* -1: there is only one such device, it need not be asked */
    char requires_grad, is_leaf;
    int64_t *sizes;   /* rank sizes, then rank strides */
} TensorFacts;

/* 1: they hold, 0: they do not. Runs no Python code, raises nothing. */
int tensor_holds(const TensorFacts *facts, PyObject *value);

/* From the tuple that `replay.layout.native_facts` makes. NULL with an exception. */
TensorFacts *tensor_facts_new(PyObject *tuple);
void tensor_facts_free(TensorFacts *facts);
int tensor_setup(PyObject *module);

#endif

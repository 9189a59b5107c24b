/* Weights that stay packed for the BLAS from call to call, for who has promised to write to
 * parameters by operators alone (`options.frozen_weights`): then a tensor's version tells whether
 * it was written to.
 *
 * A product keeps one pack, in its step. It is made when the same weight comes with the same
 * version for the second time, so that weights which change in each call are never packed. */
#include "host.h"
#include <stdlib.h>

enum { ROW_MAJOR = 101, NOT_TRANSPOSED = 111, TRANSPOSED = 112, PACKED = 151, SECOND = 162 };

typedef struct {
    PyObject *weight; /* a weak reference */
    const char *data;
    long long version;
    float *packed; /* NULL: it was seen once */
} Pack;

static void
pack_free(PyObject *capsule)
{
    Pack *p = PyCapsule_GetPointer(capsule, NULL);
    Py_XDECREF(p->weight);
    free(p->packed);
    PyMem_Free(p);
}

/* Its version, or -1: it has none, as tensors of inference mode. No exception is left. */
static long long
version_of(PyObject *tensor)
{
    PyObject *number = PyObject_GetAttrString(tensor, "_version");
    long long version = number == NULL || !PyLong_Check(number) ? -1 : PyLong_AsLongLong(number);
    Py_XDECREF(number);
    PyErr_Clear();
    return version;
}

static int
is_of(const Pack *p, PyObject *weight, const char *data, long long version)
{
    PyObject *known = weakref_get(p->weight);
    Py_XDECREF(known);
    return known == weight && p->data == data && p->version == version;
}

static PyObject *
pack_new(PyObject *weight, const char *data, long long version)
{
    Pack *p = PyMem_Calloc(1, sizeof *p);
    PyObject *reference = p == NULL ? PyErr_NoMemory() : PyWeakref_NewRef(weight, NULL);
    PyObject *capsule = reference == NULL ? NULL : PyCapsule_New(p, NULL, pack_free);
    if (capsule == NULL) {
        Py_XDECREF(reference);
        PyMem_Free(p);
        return NULL;
    }
    *p = (Pack){reference, data, version, NULL};
    return capsule;
}

/* Packed while no other Python code runs, so nobody sees half of it. Whoever writes to the weight
 * meanwhile, in a thread of its own, raises the version when it is done. Without memory, nothing is
 * packed. */
static void
fill_pack(Pack *p, const HostStep *s, const int64_t *v, const float *weight)
{
    size_t size = torch_c.pack_bytes(SECOND, (int)v[GEMM_M], (int)v[GEMM_N], (int)v[GEMM_K]);
    void *made;
    if (size > 0 && posix_memalign(&made, 64, size) == 0) {
        torch_c.pack(ROW_MAJOR, SECOND, s->numbers[2] ? TRANSPOSED : NOT_TRANSPOSED, (int)v[GEMM_M],
                     (int)v[GEMM_N], (int)v[GEMM_K], 1, weight, (int)v[GEMM_LDB], made);
        p->packed = made;
    }
}

/* 1: multiplied, with the packed weight; 0: there is none yet; -1: an exception is set. */
int
multiply_packed(HostRun *r, const HostStep *s, const int64_t *v)
{
    HostStep *own = &r->h->steps[s - r->h->steps];
    char *data = r->data[s->items[2]];
    int reg = r->h->buffers[s->items[2]].reg;
    PyObject *weight = reg < 0 ? NULL : r->registers[reg];
    long long version = weight == NULL || handle_of(weight) == NULL ? -1 : version_of(weight);
    if (version < 0 || v[GEMM_BATCH] != 1) {
        return 0;
    }
    PyObject *capsule = own->object;
    if (!PyCapsule_CheckExact(capsule) ||
        !is_of(PyCapsule_GetPointer(capsule, NULL), weight, data, version)) {
        PyObject *fresh = pack_new(weight, data, version);
        if (fresh != NULL) {
            Py_SETREF(own->object, fresh);
        }
        return fresh == NULL ? -1 : 0;
    }
    Pack *p = PyCapsule_GetPointer(capsule, NULL);
    if (p->packed == NULL) {
        fill_pack(p, s, v, (float *)data + v[GEMM_B]);
    }
    if (p->packed == NULL) {
        return 0;
    }
    const float *a = (float *)r->data[s->items[1]] + v[GEMM_A];
    float *c = (float *)r->data[s->items[0]] + v[GEMM_C];
    Py_INCREF(capsule); /* another thread may put another one in its place */
    Py_BEGIN_ALLOW_THREADS torch_c.packed(ROW_MAJOR, s->numbers[1] ? TRANSPOSED : NOT_TRANSPOSED,
                                          PACKED, (int)v[GEMM_M], (int)v[GEMM_N], (int)v[GEMM_K], a,
                                          (int)v[GEMM_LDA], p->packed, (int)v[GEMM_LDB],
                                          s->numbers[3] ? 1 : 0, c, (int)v[GEMM_LDC]);
    Py_END_ALLOW_THREADS Py_DECREF(capsule);
    return 1;
}

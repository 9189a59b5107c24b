/* Reading tensors: type, sizes, strides, dtype, device, requires_grad, is_leaf and dispatch keys.
 *
 * No torch headers. A tensor's Python object holds a pointer to a TensorImpl; both are read in one of two ways:
 *
 * - LAYOUT: the fields of TensorImpl are read where `replay.layout` found them. It looks for them at import, in tensors
 *   whose facts it knows, and trusts the places only if every probe tensor reads back right.
 * - ABI: torch's stable C interface (`aoti_torch_get_*`) for sizes, strides and dtype, and the getters behind
 *   `Tensor.requires_grad` and `Tensor.is_leaf`. The key set has no such interface and comes from its place.
 *
 * If neither way was verified, nothing holds here, and Python checks tensors. An object is looked into only if
 * its type is exactly one of the two that were learned.
 */
#include "tensor.h"
#include <dlfcn.h>

typedef int32_t (*Getter)(void *tensor, void *result);

static struct {
    PyTypeObject *types[2]; /* torch.Tensor, torch.nn.Parameter */
    Py_ssize_t impl;        /* where the Python object holds the TensorImpl */
    Py_ssize_t keys;        /* in the TensorImpl, as are the next four */
    Py_ssize_t shape;       /* rank, then the sizes and strides, in place up to `inline_rank` */
    Py_ssize_t dtype;
    Py_ssize_t autograd;    /* pointer to the AutogradMeta, or NULL */
    Py_ssize_t flag, grad_fn; /* in the AutogradMeta */
    Py_ssize_t inline_rank;
    enum { UNKNOWN, ABI, LAYOUT } way;
    Getter get_dim, get_sizes, get_strides, get_dtype, get_device_index;
    PyGetSetDef *requires_grad, *is_leaf;
} known;

#define AT(base, offset, type) (*(type *)((char *)(base) + (offset)))

static inline int
same_numbers(const int64_t *a, const int64_t *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (a[i] != b[i]) {
            return 0;
        }
    }
    return 1;
}

static inline int
layout_holds(const TensorFacts *f, char *impl)
{
    char *shape = impl + known.shape;
    int64_t rank = AT(shape, 0, int64_t);
    if (rank != f->rank || AT(impl, known.dtype, uint16_t) != f->dtype) {
        return 0;
    }
    if (rank <= known.inline_rank) {
        const int64_t *sizes = &AT(shape, 8, int64_t);
        if (!same_numbers(sizes, f->sizes, rank) || !same_numbers(sizes + known.inline_rank, f->sizes + rank, rank)) {
            return 0;
        }
    }
    else if (!same_numbers(AT(shape, 8, const int64_t *), f->sizes, 2 * rank)) {
        return 0;
    }
    char *meta = AT(impl, known.autograd, char *);
    int is_leaf = meta == NULL || AT(meta, known.grad_fn, void *) == NULL;
    int requires_grad = !is_leaf || (meta != NULL && AT(meta, known.flag, char) != 0);
    return requires_grad == f->requires_grad && is_leaf == f->is_leaf;
}

/* What a getter of torch.Tensor says: 1, 0, or -1 if it fails. */
static int
ask(PyGetSetDef *getter, PyObject *tensor)
{
    PyObject *answer = getter->get(tensor, getter->closure);
    if (answer == NULL) {
        PyErr_Clear();
        return -1;
    }
    int yes = answer == Py_True;
    Py_DECREF(answer);
    return yes;
}

static int
abi_holds(const TensorFacts *f, PyObject *value)
{
    void *tensor = (char *)value + known.impl;
    int64_t rank;
    int32_t dtype;
    const int64_t *sizes, *strides;
    if (known.get_dim(tensor, &rank) || rank != f->rank || known.get_dtype(tensor, &dtype) || dtype != f->dtype ||
        known.get_sizes(tensor, &sizes) || !same_numbers(sizes, f->sizes, rank) ||
        known.get_strides(tensor, &strides) || !same_numbers(strides, f->sizes + rank, rank)) {
        return 0;
    }
    return ask(known.requires_grad, value) == f->requires_grad && ask(known.is_leaf, value) == f->is_leaf;
}

int
tensor_holds(const TensorFacts *f, PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (type != f->type || (type != known.types[0] && type != known.types[1])) {
        return 0;
    }
    char *impl = AT(value, known.impl, char *);
    if (impl == NULL || known.way == UNKNOWN || AT(impl, known.keys, uint64_t) != f->keys) {
        return 0;
    }
    if (f->device_index >= 0) {
        int32_t index;
        if (known.get_device_index == NULL || known.get_device_index((char *)value + known.impl, &index) ||
            index != f->device_index) {
            return 0;
        }
    }
    return known.way == LAYOUT ? layout_holds(f, impl) : abi_holds(f, value);
}

TensorFacts *
tensor_facts_new(PyObject *tuple)
{
    PyObject *type, *sizes, *strides;
    unsigned long long keys;
    int dtype, device_index, requires_grad, is_leaf;
    if (!PyTuple_Check(tuple) ||
        !PyArg_ParseTuple(tuple, "O!KO!O!iipp", &PyType_Type, &type, &keys, &PyTuple_Type, &sizes, &PyTuple_Type,
                          &strides, &dtype, &device_index, &requires_grad, &is_leaf)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "facts of a tensor are a tuple");
        }
        return NULL;
    }
    Py_ssize_t rank = PyTuple_GET_SIZE(sizes);
    if (PyTuple_GET_SIZE(strides) != rank) {
        PyErr_SetString(PyExc_ValueError, "as many strides as sizes");
        return NULL;
    }
    TensorFacts *f = PyMem_Calloc(1, sizeof(TensorFacts) + 2 * (size_t)rank * sizeof(int64_t));
    if (f == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    f->sizes = (int64_t *)(f + 1);
    for (Py_ssize_t i = 0; i < 2 * rank; i++) {
        f->sizes[i] = PyLong_AsLongLong(i < rank ? PyTuple_GET_ITEM(sizes, i) : PyTuple_GET_ITEM(strides, i - rank));
        if (f->sizes[i] == -1 && PyErr_Occurred()) {
            PyMem_Free(f);
            return NULL;
        }
    }
    f->source = tuple;
    f->type = (PyTypeObject *)Py_NewRef(type);
    f->keys = keys;
    f->rank = rank;
    f->dtype = dtype;
    f->device_index = device_index;
    f->requires_grad = (char)requires_grad;
    f->is_leaf = (char)is_leaf;
    return f;
}

void
tensor_facts_free(TensorFacts *facts)
{
    Py_XDECREF(facts->type);
    PyMem_Free(facts);
}

/* ---- what replay.layout tells ---- */

static PyGetSetDef *
getter_of(PyObject *descriptor)
{
    return Py_IS_TYPE(descriptor, &PyGetSetDescr_Type) ? ((PyGetSetDescrObject *)descriptor)->d_getset : NULL;
}

static Getter
symbol(void *library, const char *name)
{
    return library == NULL ? NULL : (Getter)(uintptr_t)dlsym(library, name);
}

static PyObject *
tensor_learn(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tensor, *parameter, *requires_grad, *is_leaf, *layout;
    Py_ssize_t impl, keys;
    const char *library;
    if (!PyArg_ParseTuple(args, "O!O!nnOOsO", &PyType_Type, &tensor, &PyType_Type, &parameter, &impl, &keys,
                          &requires_grad, &is_leaf, &library, &layout)) {
        return NULL;
    }
    known.way = UNKNOWN;
    if (layout != Py_None && !PyArg_ParseTuple(layout, "nnnnnn", &known.shape, &known.inline_rank, &known.dtype,
                                               &known.autograd, &known.flag, &known.grad_fn)) {
        return NULL;
    }
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD); /* torch has loaded it, and never unloads it */
    known.get_dim = symbol(handle, "aoti_torch_get_dim");
    known.get_sizes = symbol(handle, "aoti_torch_get_sizes");
    known.get_strides = symbol(handle, "aoti_torch_get_strides");
    known.get_dtype = symbol(handle, "aoti_torch_get_dtype");
    known.get_device_index = symbol(handle, "aoti_torch_get_device_index");
    known.requires_grad = getter_of(requires_grad);
    known.is_leaf = getter_of(is_leaf);
    known.impl = impl;
    known.keys = keys;
    Py_XSETREF(known.types[0], (PyTypeObject *)Py_NewRef(tensor));
    Py_XSETREF(known.types[1], (PyTypeObject *)Py_NewRef(parameter));
    if (layout != Py_None) {
        known.way = LAYOUT;
    }
    else if (known.get_dim && known.get_sizes && known.get_strides && known.get_dtype && known.requires_grad &&
             known.is_leaf) {
        known.way = ABI;
    }
    return PyBool_FromLong(known.way != UNKNOWN);
}

static PyObject *
tensor_forget(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    known.way = UNKNOWN;
    Py_RETURN_NONE;
}

static PyObject *
tensor_way(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    static const char *const names[] = {"unknown", "abi", "layout"};
    return PyUnicode_FromString(names[known.way]);
}

/* The numbers that stand for a tensor's dtype and the index of its device (-1 if it cannot be asked). */
static PyObject *
tensor_numbers(PyObject *Py_UNUSED(module), PyObject *value)
{
    if (known.way == UNKNOWN || (Py_TYPE(value) != known.types[0] && Py_TYPE(value) != known.types[1]) ||
        AT(value, known.impl, char *) == NULL) {
        PyErr_SetString(PyExc_TypeError, "not a tensor that can be read");
        return NULL;
    }
    void *tensor = (char *)value + known.impl;
    int32_t dtype = -1, index = -1;
    if (known.way == LAYOUT) {
        dtype = AT(AT(value, known.impl, char *), known.dtype, uint16_t);
    }
    else if (known.get_dtype(tensor, &dtype)) {
        dtype = -1;
    }
    if (known.get_device_index == NULL || known.get_device_index(tensor, &index)) {
        index = -1;
    }
    return Py_BuildValue("ii", dtype, index);
}

/* The raw dispatch key set; None if it cannot be read here. */
static PyObject *
tensor_keys(PyObject *Py_UNUSED(module), PyObject *value)
{
    int readable = known.way != UNKNOWN && (Py_TYPE(value) == known.types[0] || Py_TYPE(value) == known.types[1]);
    char *impl = readable ? AT(value, known.impl, char *) : NULL;
    return impl == NULL ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(AT(impl, known.keys, uint64_t));
}

static PyObject *
tensor_matches(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "tensor_matches(value, facts)");
        return NULL;
    }
    TensorFacts *facts = tensor_facts_new(args[1]);
    if (facts == NULL) {
        return NULL;
    }
    int holds = tensor_holds(facts, args[0]);
    tensor_facts_free(facts);
    return PyBool_FromLong(holds);
}

static PyMethodDef functions[] = {
    {"tensor_learn", tensor_learn, METH_VARARGS,
     "Where tensors keep what guards ask: (Tensor, Parameter, impl, keys, getters of requires_grad and is_leaf, "
     "libtorch_cpu, layout or None). True if tensors can be read now."},
    {"tensor_forget", tensor_forget, METH_NOARGS, "Tensors are not read by C code from now on."},
    {"tensor_way", tensor_way, METH_NOARGS, "How tensors are read: 'layout', 'abi' or 'unknown'."},
    {"tensor_numbers", tensor_numbers, METH_O, "The numbers of a tensor's dtype and of its device's index."},
    {"tensor_keys", tensor_keys, METH_O, "A tensor's raw dispatch key set; None if it cannot be read."},
    {"tensor_matches", (PyCFunction)(void (*)(void))tensor_matches, METH_FASTCALL,
     "Do these facts hold of this value?"},
    {NULL},
};

int
tensor_setup(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}

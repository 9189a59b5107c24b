/* Reading tensors: type, sizes, strides, dtype, device, requires_grad, is_leaf and dispatch keys.
 *
 * No torch headers. A tensor's Python object holds a pointer to a TensorImpl; both are read in one
 * of two ways:
 *
 * - LAYOUT: the fields of TensorImpl are read where `replay.layout` found them. It looks for them
 * at import, in tensors whose facts it knows, and trusts the places only if every probe tensor
 * reads back right.
 * - ABI: torch's stable C interface (`aoti_torch_get_*`) for sizes, strides and dtype, and the
 * getters behind `Tensor.requires_grad` and `Tensor.is_leaf`. The key set has no such interface and
 * comes from its place.
 *
 * If neither way was verified, nothing holds here, and Python checks tensors. An object is looked
 * into only if its type is exactly one of the two that were learned.
 */
#include "tensor.h"
#include <dlfcn.h>

TensorPlaces tensor_places;

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

/* The stable interface. */
int
tensor_holds_by_call(const TensorFields *f, PyObject *value)
{
    void *tensor = (char *)value + tensor_places.impl;
    int64_t rank;
    int32_t dtype;
    const int64_t *sizes, *strides;
    if (tensor_places.get_dim(tensor, &rank) || rank != f->rank ||
        tensor_places.get_dtype(tensor, &dtype) || dtype != f->dtype ||
        tensor_places.get_sizes(tensor, &sizes) || !tensor_same_numbers(sizes, f->sizes, rank) ||
        tensor_places.get_strides(tensor, &strides) ||
        !tensor_same_numbers(strides, f->sizes + rank, rank)) {
        return 0;
    }
    return ask(tensor_places.requires_grad, value) == f->requires_grad &&
           ask(tensor_places.is_leaf, value) == f->is_leaf;
}

PyObject *
tensor_grad(PyObject *value)
{
    const TensorPlaces *at = &tensor_places;
    char *impl = at->grad == NULL ? NULL : tensor_impl(value);
    if (impl == NULL) {
        return NULL;
    }
    int is_leaf = at->way == TENSOR_LAYOUT
                      ? tensor_is_leaf_by_layout(TENSOR_AT(impl, at->autograd, char *))
                      : ask(at->is_leaf, value) == 1;
    /* torch warns of others */
    PyObject *grad = is_leaf ? at->grad->get(value, at->grad->closure) : NULL;
    if (grad == NULL) {
        PyErr_Clear();
    }
    return grad;
}

TensorFields *
tensor_facts_new(PyObject *tuple)
{
    PyObject *type, *sizes, *strides;
    unsigned long long keys;
    int dtype, device_index, requires_grad, is_leaf;
    if (!PyTuple_Check(tuple) ||
        !PyArg_ParseTuple(tuple, "O!KO!O!iipp", &PyType_Type, &type, &keys, &PyTuple_Type, &sizes,
                          &PyTuple_Type, &strides, &dtype, &device_index, &requires_grad,
                          &is_leaf)) {
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
    TensorFields *f = PyMem_Calloc(1, sizeof(TensorFields) + 2 * (size_t)rank * sizeof(int64_t));
    if (f == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    f->sizes = (int64_t *)(f + 1);
    for (Py_ssize_t i = 0; i < 2 * rank; i++) {
        PyObject *number =
            i < rank ? PyTuple_GET_ITEM(sizes, i) : PyTuple_GET_ITEM(strides, i - rank);
        f->sizes[i] = number == Py_None ? TENSOR_ANY : PyLong_AsLongLong(number);
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
tensor_facts_free(TensorFields *facts)
{
    Py_XDECREF(facts->type);
    PyMem_Free(facts);
}

/* ---- what replay.layout tells ---- */

static PyGetSetDef *
getter_of(PyObject *descriptor)
{
    return Py_IS_TYPE(descriptor, &PyGetSetDescr_Type)
               ? ((PyGetSetDescrObject *)descriptor)->d_getset
               : NULL;
}

static TensorGetter
symbol(void *library, const char *name)
{
    return library == NULL ? NULL : (TensorGetter)(uintptr_t)dlsym(library, name);
}

static PyObject *
tensor_learn(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tensor, *parameter, *requires_grad, *is_leaf, *grad, *layout;
    Py_ssize_t impl, keys;
    const char *library;
    if (!PyArg_ParseTuple(args, "O!O!nnOOOsO", &PyType_Type, &tensor, &PyType_Type, &parameter,
                          &impl, &keys, &requires_grad, &is_leaf, &grad, &library, &layout)) {
        return NULL;
    }
    tensor_places.way = TENSOR_UNKNOWN;
    if (layout != Py_None &&
        !PyArg_ParseTuple(layout, "nnnnnnnnnn", &tensor_places.shape, &tensor_places.inline_rank,
                          &tensor_places.dtype, &tensor_places.autograd, &tensor_places.flag,
                          &tensor_places.grad_fn, &tensor_places.storage, &tensor_places.data,
                          &tensor_places.context, &tensor_places.bytes)) {
        return NULL;
    }
    /* torch has loaded it, and never unloads it */
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    tensor_places.get_dim = symbol(handle, "aoti_torch_get_dim");
    tensor_places.get_sizes = symbol(handle, "aoti_torch_get_sizes");
    tensor_places.get_strides = symbol(handle, "aoti_torch_get_strides");
    tensor_places.get_dtype = symbol(handle, "aoti_torch_get_dtype");
    tensor_places.get_device_index = symbol(handle, "aoti_torch_get_device_index");
    tensor_places.requires_grad = getter_of(requires_grad);
    tensor_places.is_leaf = getter_of(is_leaf);
    tensor_places.grad = getter_of(grad);
    tensor_places.impl = impl;
    tensor_places.keys = keys;
    Py_XSETREF(tensor_places.types[0], (PyTypeObject *)Py_NewRef(tensor));
    Py_XSETREF(tensor_places.types[1], (PyTypeObject *)Py_NewRef(parameter));
    if (layout != Py_None) {
        tensor_places.way = TENSOR_LAYOUT;
    }
    else if (tensor_places.get_dim && tensor_places.get_sizes && tensor_places.get_strides &&
             tensor_places.get_dtype && tensor_places.requires_grad && tensor_places.is_leaf) {
        tensor_places.way = TENSOR_ABI;
    }
    return PyBool_FromLong(tensor_places.way != TENSOR_UNKNOWN);
}

static PyObject *
tensor_forget(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    tensor_places.way = TENSOR_UNKNOWN;
    Py_RETURN_NONE;
}

static PyObject *
tensor_way(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    static const char *const names[] = {"unknown", "abi", "layout"};
    return PyUnicode_FromString(names[tensor_places.way]);
}

/* The numbers that stand for a tensor's dtype and the index of its device (-1 if it cannot be
 * asked). */
static PyObject *
tensor_numbers(PyObject *Py_UNUSED(module), PyObject *value)
{
    if (tensor_impl(value) == NULL) {
        PyErr_SetString(PyExc_TypeError, "not a tensor that can be read");
        return NULL;
    }
    void *tensor = (char *)value + tensor_places.impl;
    int32_t dtype = -1, index = -1;
    if (tensor_places.way == TENSOR_LAYOUT) {
        dtype =
            TENSOR_AT(TENSOR_AT(value, tensor_places.impl, char *), tensor_places.dtype, uint16_t);
    }
    else if (tensor_places.get_dtype(tensor, &dtype)) {
        dtype = -1;
    }
    if (tensor_places.get_device_index == NULL || tensor_places.get_device_index(tensor, &index)) {
        index = -1;
    }
    return Py_BuildValue("ii", dtype, index);
}

/* The raw dispatch key set; None if it cannot be read here. */
static PyObject *
tensor_keys(PyObject *Py_UNUSED(module), PyObject *value)
{
    char *impl = tensor_impl(value);
    return impl == NULL
               ? Py_NewRef(Py_None)
               : PyLong_FromUnsignedLongLong(TENSOR_AT(impl, tensor_places.keys, uint64_t));
}

/* The address of the memory in which a tensor lies, as `untyped_storage()._cdata`; None if it
 * cannot be told here. */
static PyObject *
tensor_storage_method(PyObject *Py_UNUSED(module), PyObject *value)
{
    const void *storage = tensor_storage(value);
    return storage == NULL ? Py_NewRef(Py_None) : PyLong_FromVoidPtr((void *)storage);
}

static PyObject *
tensor_matches(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "tensor_matches(value, facts)");
        return NULL;
    }
    TensorFields *facts = tensor_facts_new(args[1]);
    if (facts == NULL) {
        return NULL;
    }
    int holds = tensor_holds(facts, args[0]);
    tensor_facts_free(facts);
    return PyBool_FromLong(holds);
}

/* The memory in which a tensor lies: its address, its size, and whether torch's allocator did not
 * give it. None if it cannot be told here. */
static PyObject *
tensor_memory(PyObject *Py_UNUSED(module), PyObject *value)
{
    const void *storage = tensor_places.data >= 0 ? tensor_storage(value) : NULL;
    if (storage == NULL) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("NLN", PyLong_FromVoidPtr(TENSOR_AT(storage, tensor_places.data, void *)),
                         (long long)TENSOR_AT(storage, tensor_places.bytes, int64_t),
                         PyBool_FromLong(storage_is_foreign(storage)));
}

static PyMethodDef functions[] = {
    {"tensor_memory", tensor_memory, METH_O,
     "Address and size of a tensor's memory, and is it not from torch's allocator? None if it "
     "cannot be told."},
    {"tensor_learn", tensor_learn, METH_VARARGS,
     "Where tensors keep what guards ask: (Tensor, Parameter, impl, keys, getters of requires_grad "
     "and is_leaf, libtorch_cpu, layout or None). True if tensors can be read now."},
    {"tensor_forget", tensor_forget, METH_NOARGS, "Tensors are not read by C code from now on."},
    {"tensor_way", tensor_way, METH_NOARGS, "How tensors are read: 'layout', 'abi' or 'unknown'."},
    {"tensor_numbers", tensor_numbers, METH_O,
     "The numbers of a tensor's dtype and of its device's index."},
    {"tensor_storage", tensor_storage_method, METH_O,
     "The address of a tensor's storage; None if it cannot be told."},
    {"tensor_keys", tensor_keys, METH_O,
     "A tensor's raw dispatch key set; None if it cannot be read."},
    {"tensor_matches", FAST(tensor_matches), "Do these facts hold of this value?"},
    {NULL},
};

int
tensor_setup(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}

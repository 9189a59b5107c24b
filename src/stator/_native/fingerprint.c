/* What the tensor mode asks of every operand and result, in one call. Tensors are asked through
 * Python attributes: there are no torch headers here. All of these are C code of torch for plain
 * tensors and parameters, the only ones that the mode lets through. */
#include "native.h"

enum { INFERENCE, VERSION, LAYOUT, POINTER, DTYPE, SHAPE, GRAD, BASE, PARTS };
static PyObject *names[PARTS];

/* What `torch.Tensor` has under those names, once it was shown to us: asked without a lookup. */
static PyTypeObject *tensor_base;
static PyGetSetDef *getters[PARTS];
static PyCFunction methods[PARTS];

int
fingerprint_setup(void)
{
    static const char *const texts[PARTS] = {"is_inference",  "_version", "layout",
                                             "data_ptr",      "dtype",    "shape",
                                             "requires_grad", "_base"};
    for (int i = 0; i < PARTS; i++) {
        if ((names[i] = PyUnicode_InternFromString(texts[i])) == NULL) {
            return -1;
        }
    }
    return 0;
}

static void
learn_part(PyObject *found, PyTypeObject *base, int part)
{
    getters[part] = NULL;
    methods[part] = NULL;
    if (Py_IS_TYPE(found, &PyGetSetDescr_Type) && PyDescr_TYPE(found) == base) {
        getters[part] = ((PyGetSetDescrObject *)found)->d_getset;
    }
    else if (Py_IS_TYPE(found, &PyMethodDescr_Type) && PyDescr_TYPE(found) == base &&
             ((PyMethodDescrObject *)found)->d_method->ml_flags == METH_NOARGS) {
        methods[part] = ((PyMethodDescrObject *)found)->d_method->ml_meth;
    }
}

/* tensors_are(torch.Tensor, its base in C) */
PyObject *
tensors_are(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyType_Check(args[0]) || !PyType_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "tensors_are(class, base) takes two classes");
        return NULL;
    }
    for (int i = 0; i < PARTS; i++) {
        PyObject *found = PyObject_GetAttr(args[0], names[i]);
        if (found == NULL) {
            return NULL;
        }
        learn_part(found, (PyTypeObject *)args[1], i);
        Py_DECREF(found);
    }
    Py_XSETREF(tensor_base, (PyTypeObject *)Py_NewRef(args[1])); /* which holds the descriptors */
    Py_RETURN_NONE;
}

int
is_tensor(PyObject *value)
{
    return tensor_base != NULL && PyType_IsSubtype(Py_TYPE(value), tensor_base);
}

static PyObject *
ask(PyObject *tensor, int part)
{
    if (is_tensor(tensor)) {
        if (getters[part] != NULL) {
            return getters[part]->get(tensor, getters[part]->closure);
        }
        if (methods[part] != NULL) {
            return methods[part](tensor, NULL);
        }
    }
    return part == INFERENCE || part == POINTER ? PyObject_CallMethodNoArgs(tensor, names[part])
                                                : PyObject_GetAttr(tensor, names[part]);
}

PyObject *
tensor_view_base(PyObject *tensor)
{
    return ask(tensor, BASE);
}

int
tensor_requires_grad(PyObject *tensor)
{
    PyObject *answer = ask(tensor, GRAD);
    int yes = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return yes;
}

static int
is_inference(PyObject *tensor)
{
    PyObject *answer = ask(tensor, INFERENCE);
    int yes = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return yes;
}

/* The version counter; None for inference tensors, which have none and say so by an exception. */
PyObject *
tensor_version(PyObject *Py_UNUSED(module), PyObject *tensor)
{
    static int expect_none; /* what the last one had: either way is right, one is quicker */
    if (!expect_none && is_tensor(tensor)) {
        PyObject *version = ask(tensor, VERSION);
        if (version != NULL) {
            return version;
        }
        SavedError error = error_save();
        expect_none = is_inference(tensor) == 1;
        if (!expect_none) {
            PyErr_Clear();
            error_restore(error);
            return NULL;
        }
        error_drop(error);
        Py_RETURN_NONE;
    }
    int inference = is_inference(tensor);
    if (inference != 0) {
        return inference < 0 ? NULL : Py_NewRef(Py_None);
    }
    expect_none &= !is_tensor(tensor);
    return ask(tensor, VERSION);
}

/* The address of the memory; 0 unless the layout is `strided`, and of tensors that have none (of
 * function transforms). */
static PyObject *
pointer_of(PyObject *tensor, PyObject *strided)
{
    PyObject *layout = ask(tensor, LAYOUT);
    if (layout == NULL) {
        return NULL;
    }
    int plain = layout == strided;
    Py_DECREF(layout);
    PyObject *address = plain ? ask(tensor, POINTER) : PyLong_FromLong(0);
    if (address == NULL && PyErr_ExceptionMatches(PyExc_RuntimeError)) {
        PyErr_Clear();
        return PyLong_FromLong(0);
    }
    return address;
}

PyObject *
fingerprint_of(PyObject *tensor, PyObject *strided)
{
    PyObject *print = PyTuple_New(5);
    for (int i = 0; print != NULL && i < 5; i++) {
        PyObject *part = i == 0   ? tensor_version(NULL, tensor)
                         : i == 1 ? pointer_of(tensor, strided)
                                  : ask(tensor, i == 2   ? DTYPE
                                                : i == 3 ? SHAPE
                                                         : GRAD);
        if (part == NULL) {
            Py_CLEAR(print);
            break;
        }
        PyTuple_SET_ITEM(print, i, part);
    }
    return print;
}

/* fingerprint(tensor, torch.strided) -> (version, address, dtype, shape, requires_grad) */
PyObject *
tensor_fingerprint(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "fingerprint(tensor, strided) takes two arguments");
        return NULL;
    }
    return fingerprint_of(args[0], args[1]);
}

/* answers(functions) -> what each function of a tuple answers, called without arguments */
PyObject *
call_each(PyObject *Py_UNUSED(module), PyObject *functions)
{
    if (!PyTuple_Check(functions)) {
        PyErr_SetString(PyExc_TypeError, "answers(functions) takes a tuple");
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(functions);
    PyObject *answers = PyTuple_New(count);
    for (Py_ssize_t i = 0; answers != NULL && i < count; i++) {
        PyObject *answer = PyObject_CallNoArgs(PyTuple_GET_ITEM(functions, i));
        if (answer == NULL) {
            Py_CLEAR(answers);
            break;
        }
        PyTuple_SET_ITEM(answers, i, answer);
    }
    return answers;
}

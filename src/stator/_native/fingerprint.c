/* What the tensor mode asks of every operand and result, in one call. Tensors are asked through Python attributes:
 * there are no torch headers here. All of these are C code of torch for plain tensors and parameters, the only ones
 * that the mode lets through. */
#include "native.h"

static PyObject *name_inference, *name_version, *name_layout, *name_pointer, *name_dtype, *name_shape, *name_grad;

int
fingerprint_setup(void)
{
    name_inference = PyUnicode_InternFromString("is_inference");
    name_version = PyUnicode_InternFromString("_version");
    name_layout = PyUnicode_InternFromString("layout");
    name_pointer = PyUnicode_InternFromString("data_ptr");
    name_dtype = PyUnicode_InternFromString("dtype");
    name_shape = PyUnicode_InternFromString("shape");
    name_grad = PyUnicode_InternFromString("requires_grad");
    return name_inference == NULL || name_version == NULL || name_layout == NULL || name_pointer == NULL ||
                   name_dtype == NULL || name_shape == NULL || name_grad == NULL
               ? -1
               : 0;
}

/* The version counter; None for inference tensors, which have none. */
PyObject *
tensor_version(PyObject *Py_UNUSED(module), PyObject *tensor)
{
    PyObject *answer = PyObject_CallMethodNoArgs(tensor, name_inference);
    if (answer == NULL) {
        return NULL;
    }
    int inference = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    if (inference != 0) {
        return inference < 0 ? NULL : Py_NewRef(Py_None);
    }
    return PyObject_GetAttr(tensor, name_version);
}

/* The address of the memory; 0 unless the layout is `strided`. */
static PyObject *
pointer_of(PyObject *tensor, PyObject *strided)
{
    PyObject *layout = PyObject_GetAttr(tensor, name_layout);
    if (layout == NULL) {
        return NULL;
    }
    int plain = layout == strided;
    Py_DECREF(layout);
    return plain ? PyObject_CallMethodNoArgs(tensor, name_pointer) : PyLong_FromLong(0);
}

/* fingerprint(tensor, torch.strided) -> (version, address, dtype, shape, requires_grad) */
PyObject *
tensor_fingerprint(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "fingerprint(tensor, strided) takes two arguments");
        return NULL;
    }
    PyObject *print = PyTuple_New(5);
    if (print == NULL) {
        return NULL;
    }
    PyObject *tensor = args[0], *part;
    for (int i = 0; i < 5; i++) {
        part = i == 0   ? tensor_version(module, tensor)
               : i == 1 ? pointer_of(tensor, args[1])
                        : PyObject_GetAttr(tensor, i == 2 ? name_dtype : i == 3 ? name_shape : name_grad);
        if (part == NULL) {
            Py_DECREF(print);
            return NULL;
        }
        PyTuple_SET_ITEM(print, i, part);
    }
    return print;
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

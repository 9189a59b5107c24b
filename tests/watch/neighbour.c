/* Another frame evaluator, as a debugger or another compiler would install it: counts frames and
 * passes them on to whoever was installed before. Built by test_neighbour.py. */
#include <Python.h>

static _PyFrameEvalFunction before = NULL;
static long frames = 0;

static PyObject *
evaluate(PyThreadState *ts, struct _PyInterpreterFrame *f, int throwflag)
{
    frames++;
    return before(ts, f, throwflag);
}

static PyObject *
install(PyObject *module, PyObject *none)
{
    PyInterpreterState *interp = PyInterpreterState_Get();
    if (_PyInterpreterState_GetEvalFrameFunc(interp) != evaluate) {
        before = _PyInterpreterState_GetEvalFrameFunc(interp);
        _PyInterpreterState_SetEvalFrameFunc(interp, evaluate);
    }
    Py_RETURN_NONE;
}

static PyObject *
uninstall(PyObject *module, PyObject *none)
{
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), before);
    Py_RETURN_NONE;
}

static PyObject *
reset(PyObject *module, PyObject *none)
{
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), _PyEval_EvalFrameDefault);
    Py_RETURN_NONE;
}

static PyObject *
counted(PyObject *module, PyObject *none)
{
    long n = frames;
    frames = 0;
    return PyLong_FromLong(n);
}

static PyObject *
installed(PyObject *module, PyObject *none)
{
    return PyBool_FromLong(_PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) ==
                           evaluate);
}

static PyMethodDef methods[] = {
    {"install", install, METH_NOARGS, NULL},     {"uninstall", uninstall, METH_NOARGS, NULL},
    {"reset", reset, METH_NOARGS, NULL},         {"counted", counted, METH_NOARGS, NULL},
    {"installed", installed, METH_NOARGS, NULL}, {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "neighbour", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC
PyInit_neighbour(void)
{
    return PyModule_Create(&definition);
}

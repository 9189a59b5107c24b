/* What is known about a code object, kept in its co_extra: how the recorder classified it, and its
 * instrumented copy.
 *
 * Who keeps whom alive: the original's co_extra owns the copy, the copy's constants own the probes,
 * and the probes refer to the original weakly. So the copy dies with the original, and there is no
 * cycle (the garbage collector does not look into co_extra). While a copy runs, the function made
 * for it holds the original (hook.c).
 */
#include "native.h"

PyObject *Unwatchable = NULL;
static Py_ssize_t extra_index = -1;
/* stator.watch.bytecode.instrument.instrument, imported at first use */
static PyObject *instrumenter = NULL;

static void
codeinfo_free(void *p)
{
    CodeInfo *info = p;
    if (info == NULL) {
        return;
    }
    Py_XDECREF(info->payload);
    Py_XDECREF(info->copy);
    Py_XDECREF(info->reason);
    Py_XDECREF(info->original);
    PyMem_Free(info);
}

CodeInfo *
codeinfo_find(PyCodeObject *code)
{
    void *info = NULL;
    if (code_get_extra(code, extra_index, &info) < 0) {
        PyErr_Clear();
        return NULL;
    }
    return info;
}

CodeInfo *
codeinfo_get(PyCodeObject *code)
{
    CodeInfo *info = codeinfo_find(code);
    if (info != NULL) {
        return info;
    }
    info = PyMem_Calloc(1, sizeof(CodeInfo));
    if (info == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    info->kind = CODE_UNKNOWN;
    info->finalizer = PyUnicode_CompareWithASCIIString(code->co_name, "__del__") == 0;
    if (code_set_extra(code, extra_index, info) < 0) {
        PyMem_Free(info);
        return NULL;
    }
    return info;
}

/* ---- classification ---- */

static int
parse_verdict(PyObject *answer, Verdict *v)
{
    if (!PyTuple_Check(answer) || PyTuple_GET_SIZE(answer) != 3) {
        PyErr_SetString(PyExc_TypeError, "classify must return (kind, payload, trusted)");
        return -1;
    }
    long kind = PyLong_AsLong(PyTuple_GET_ITEM(answer, 0));
    if (kind == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (kind < 0 || kind >= CODE_INSTRUMENTED) {
        PyErr_Format(PyExc_ValueError, "classify returned no kind of code: %ld", kind);
        return -1;
    }
    int trusted = PyObject_IsTrue(PyTuple_GET_ITEM(answer, 2));
    if (trusted < 0) {
        return -1;
    }
    *v = (Verdict){(int)kind, trusted, Py_NewRef(PyTuple_GET_ITEM(answer, 1))};
    return 0;
}

/* Asks once per code object. What goes wrong is reported and not remembered: the code is blind this
 * time. */
Verdict
codeinfo_classify(Watcher *w, PyCodeObject *code)
{
    Verdict v = {CODE_BLIND, 0, NULL};
    CodeInfo *info = codeinfo_find(code);
    if (info != NULL && info->kind != CODE_UNKNOWN) {
        return (Verdict){info->kind, info->trusted, Py_XNewRef(info->payload)};
    }
    Shield s;
    shield_up(&s, &thread_here, w);
    PyObject *answer = PyObject_CallOneArg(w->classify, (PyObject *)code);
    if (answer == NULL || parse_verdict(answer, &v) < 0) {
        watcher_failed(w);
    }
    else if ((info = codeinfo_get(code)) == NULL) {
        watcher_failed(w);
    }
    else if (info->kind == CODE_UNKNOWN) {
        info->kind = v.kind;
        info->trusted = v.trusted;
        Py_XSETREF(info->payload, Py_XNewRef(v.payload));
    }
    Py_XDECREF(answer);
    shield_down(&s);
    return v;
}

/* ---- the instrumented copy ---- */

static int
adopt_probe(PyCodeObject *copy, Probe *p, Py_ssize_t site)
{
    if (p->home != NULL || p->depth >= copy->co_stacksize || p->slot >= copy->co_nlocalsplus) {
        PyErr_SetString(PyExc_SystemError, "instrument: a probe does not fit its code");
        return -1;
    }
    p->home = copy;
    p->site = site;
    return 0;
}

/* Finds the instruction pairs that fire probes. In co_code all caches are zero, so no unit is
 * mistaken for one. */
static int
adopt_probes(PyCodeObject *copy)
{
    PyObject *raw = PyCode_GetCode(copy);
    if (raw == NULL) {
        return -1;
    }
    const unsigned char *units = (const unsigned char *)PyBytes_AS_STRING(raw);
    Py_ssize_t n = PyBytes_GET_SIZE(raw) / 2, high = 0;
    int result = 0;
    for (Py_ssize_t i = 0; result == 0 && i + 1 < n; i++) {
        Py_ssize_t arg = high | units[2 * i + 1];
        high = units[2 * i] == EXTENDED_ARG ? arg << 8 : 0;
        if (units[2 * i] != LOAD_CONST || arg >= PyTuple_GET_SIZE(copy->co_consts)) {
            continue;
        }
        PyObject *constant = PyTuple_GET_ITEM(copy->co_consts, arg);
        if (Py_IS_TYPE(constant, &ProbeType) && units[2 * i + 2] == UNARY_NEGATIVE) {
            result = adopt_probe(copy, (Probe *)constant, i + 1);
        }
    }
    Py_DECREF(raw);
    return result;
}

/* Checks what memory safety rests on, then marks the code as a copy. */
static int
adopt(PyObject *object, PyCodeObject *original)
{
    if (!PyCode_Check(object)) {
        PyErr_Format(PyExc_TypeError, "instrument returned %R", object);
        return -1;
    }
    PyCodeObject *copy = (PyCodeObject *)object;
    int slots = original->co_argcount + original->co_kwonlyargcount +
                ((original->co_flags & CO_VARARGS) != 0) +
                ((original->co_flags & CO_VARKEYWORDS) != 0);
    int flags = CO_VARARGS | CO_VARKEYWORDS;
    if (copy == original || copy->co_argcount != slots || copy->co_posonlyargcount ||
        copy->co_kwonlyargcount || (copy->co_flags & flags) ||
        copy->co_flags != (original->co_flags & ~flags) ||
        copy->co_nlocalsplus != original->co_nlocalsplus ||
        copy->co_nfreevars != original->co_nfreevars) {
        PyErr_SetString(PyExc_SystemError, "instrument: the copy's frame is not the original's");
        return -1;
    }
    CodeInfo *info = codeinfo_get(copy);
    if (info == NULL || adopt_probes(copy) < 0) {
        return -1;
    }
    PyObject *ref = PyWeakref_NewRef((PyObject *)original, NULL);
    if (ref == NULL) {
        return -1;
    }
    Py_XSETREF(info->original, ref);
    CodeInfo *of = codeinfo_find(original);
    info->trusted = of != NULL && of->trusted;
    info->kind = CODE_INSTRUMENTED;
    code_keep_generic(copy);
    return 0;
}

static PyObject *
make_copy(PyCodeObject *code)
{
    if (instrumenter == NULL) {
        PyObject *module = PyImport_ImportModule("stator.watch.bytecode.instrument");
        if (module == NULL) {
            return NULL;
        }
        instrumenter = PyObject_GetAttrString(module, "instrument");
        Py_DECREF(module);
        if (instrumenter == NULL) {
            return NULL;
        }
    }
    PyObject *copy = PyObject_CallOneArg(instrumenter, (PyObject *)code);
    if (copy != NULL && adopt(copy, code) < 0) {
        Py_CLEAR(copy);
    }
    return copy;
}

/* The reason why there is no copy; only Unwatchable is final. Takes the raised exception. */
static PyObject *
refusal(Watcher *w, PyCodeObject *code)
{
    if (!PyErr_ExceptionMatches(Unwatchable)) {
        watcher_failed(w);
        return PyUnicode_FromString("instrumenting failed");
    }
    PyObject *exc = error_take();
    PyObject *reason = exc == NULL ? NULL : PyObject_Str(exc);
    Py_XDECREF(exc);
    CodeInfo *info = reason == NULL ? NULL : codeinfo_get(code);
    if (info != NULL) {
        Py_XSETREF(info->reason, Py_NewRef(reason));
    }
    return reason;
}

PyObject *
codeinfo_copy(Watcher *w, PyCodeObject *code, PyObject **reason)
{
    CodeInfo *info = codeinfo_find(code);
    if (info != NULL && info->copy != NULL) {
        return Py_NewRef(info->copy);
    }
    if (info != NULL && info->reason != NULL) {
        *reason = Py_NewRef(info->reason);
        return NULL;
    }
    if (!builtins_intact()) { /* the instrumenter is Python code */
        *reason = PyUnicode_FromString("builtins were replaced");
        PyErr_Clear();
        return NULL;
    }
    Shield s;
    shield_up(&s, &thread_here, w);
    PyObject *copy = make_copy(code);
    if (copy == NULL) {
        *reason = refusal(w, code);
    }
    else if ((info = codeinfo_get(code)) != NULL && info->copy == NULL) {
        info->copy = Py_NewRef(copy);
    }
    PyErr_Clear(); /* no memory for the note: the copy is made again next time */
    shield_down(&s);
    return copy;
}

/* ---- for Python ---- */

static PyObject *
code_kind(PyObject *Py_UNUSED(module), PyObject *code)
{
    if (!PyCode_Check(code)) {
        PyErr_SetString(PyExc_TypeError, "code_kind(code) takes a code object");
        return NULL;
    }
    CodeInfo *info = codeinfo_find((PyCodeObject *)code);
    if (info == NULL || info->kind == CODE_UNKNOWN) {
        Py_RETURN_NONE;
    }
    return PyLong_FromLong(info->kind);
}

static PyObject *
forget_code(PyObject *Py_UNUSED(module), PyObject *code)
{
    if (!PyCode_Check(code)) {
        PyErr_SetString(PyExc_TypeError, "forget_code(code) takes a code object");
        return NULL;
    }
    CodeInfo *info = codeinfo_find((PyCodeObject *)code);
    if (info != NULL && info->kind != CODE_INSTRUMENTED) { /* a copy stays one */
        PyObject *payload = info->payload;
        info->payload = NULL;
        info->kind = CODE_UNKNOWN;
        info->trusted = 0;
        Py_XDECREF(payload); /* may run Python code: the note is consistent by now */
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"code_kind", code_kind, METH_O, "How a code object was classified, or None."},
    {"forget_code", forget_code, METH_O, "Classify this code object anew the next time."},
    {NULL},
};

int
codeinfo_setup(PyObject *module)
{
    extra_index = code_extra_index(codeinfo_free);
    if (extra_index < 0) {
        PyErr_SetString(PyExc_ImportError, "no co_extra index is left");
        return -1;
    }
    Unwatchable = PyErr_NewExceptionWithDoc("stator._native.Unwatchable",
                                            "This code cannot be watched; the argument says why.",
                                            NULL, NULL);
    if (Unwatchable == NULL || PyModule_AddObjectRef(module, "Unwatchable", Unwatchable) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}

/* One operation of the tensor mode. See watch/tensors/tensor_mode.py.
 *
 * An operation that is like most runs through here without a frame of ours: looked up, called,
 * noted. Whatever is out of the ordinary is left to the methods of `watch.tensors.Tracer`, which
 * ask tracer.c for the common parts. All this is called in state OFF; only the operation itself
 * runs in state SENTINEL.
 */
#include "tracer.h"

/* As in watch/tensors/op_targets.py. */
enum { TREATMENT_OPERATION, TREATMENT_FACT };
enum {
    WAY_KIND,
    WAY_NAME,
    WAY_LABEL,
    WAY_WRITES,
    WAY_METHOD,
    WAY_SPELLED,
    WAY_RANDOM,
    WAY_DATA,
    WAY_USUAL,
    WAY_FAILS,
    WAY_SIZES,
    WAY_COUNT
};
enum { MOST_ARGUMENTS = 60 };
enum { STEP_RUN = 5 }; /* of a `PreparedCall`: what is called in place of the function, or None */

enum {
    BEFORE,
    AFTER,
    RAISED,
    FAILED,
    REGISTER,
    RETURNED,
    TRACER,
    CALL_FUNCTION,
    CALL_METHOD,
    INPLACE,
    OUT,
    NAMES
};
static PyObject *names[NAMES], *no_index;

/* ---- one operation ---- */

typedef struct {
    PyObject *python; /* a `PreparedCall`; then the rest is empty */
    PyObject *info, *tensors, *op, *target, *args, *kwargs, *label; /* owned */
    int fact, in_place, random;
} OperationCall;

static void
step_clear(OperationCall *s)
{
    Py_XDECREF(s->python);
    Py_XDECREF(s->info);
    Py_XDECREF(s->tensors);
    Py_XDECREF(s->op);
    Py_XDECREF(s->target);
    Py_XDECREF(s->args);
    Py_XDECREF(s->kwargs);
    Py_XDECREF(s->label);
}

static inline int
says(PyObject *info, int what)
{
    return PyTuple_GET_ITEM(info, what) == Py_True;
}

static int
mentions_tensor(PyObject *value)
{
    if (PyTuple_Check(value) || PyList_Check(value)) {
        Py_ssize_t count = PySequence_Fast_GET_SIZE(value);
        for (Py_ssize_t i = 0; i < count; i++) {
            if (mentions_tensor(PySequence_Fast_GET_ITEM(value, i))) {
                return 1;
            }
        }
        return 0;
    }
    if (PySlice_Check(value)) {
        PySliceObject *s = (PySliceObject *)value;
        return is_tensor(s->start) || is_tensor(s->stop) || is_tensor(s->step);
    }
    return is_tensor(value);
}

/* May the shape of the result depend on the contents of a tensor? Bits tell where one would have to
 * be. */
static int
may_need_data(unsigned long long places, PyObject *args, PyObject *kwargs)
{
    if (places == 0) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) {
        if (places >> (i < MOST_ARGUMENTS ? i : MOST_ARGUMENTS) & 1 &&
            mentions_tensor(PyTuple_GET_ITEM(args, i))) {
            return 1;
        }
    }
    PyObject *key, *value;
    Py_ssize_t pos = 0;
    while (kwargs != NULL && PyDict_Next(kwargs, &pos, &key, &value)) {
        if (mentions_tensor(value)) {
            return 1;
        }
    }
    return 0;
}

/* Is there a tensor that is to hold the result? */
static int
gives_out(PyObject *kwargs)
{
    PyObject *out = kwargs == NULL ? NULL : PyDict_GetItemWithError(kwargs, names[OUT]);
    return out != NULL ? out != Py_None : PyErr_Occurred() ? -1 : 0;
}

/* Does it write to an operand, by its name and arguments? */
static int
writes(PyObject *info, PyObject *kwargs)
{
    if (says(info, WAY_WRITES) || kwargs == NULL) {
        return says(info, WAY_WRITES);
    }
    PyObject *inplace = Py_XNewRef(PyDict_GetItemWithError(kwargs, names[INPLACE]));
    int yes = inplace != NULL ? PyObject_IsTrue(inplace) : PyErr_Occurred() ? -1 : 0;
    Py_XDECREF(inplace);
    return yes == 0 ? gives_out(kwargs) : yes;
}

/* Without a tensor as index it cannot fail. */
static int
reads_item(PyObject *info)
{
    PyObject *name = PyTuple_GET_ITEM(info, WAY_NAME);
    return PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "__getitem__") == 0;
}

/* How the operation is written as a node. */
static int
spell(Tracer *t, OperationCall *s, PyObject *func, PyObject *args, PyObject *kwargs)
{
    PyObject *info = s->info, *name = PyTuple_GET_ITEM(info, WAY_NAME);
    if (says(info, WAY_SPELLED)) {
        int method = says(info, WAY_METHOD) && PyTuple_GET_SIZE(args) > 0 &&
                     is_tensor(PyTuple_GET_ITEM(args, 0));
        s->op = Py_NewRef(names[method ? CALL_METHOD : CALL_FUNCTION]);
        s->target = Py_NewRef(method ? name : func);
        s->args = Py_NewRef(args);
        s->label = Py_NewRef(PyTuple_GET_ITEM(info, WAY_LABEL));
        return 0;
    }
    PyObject *probe = Py_NewRef(t->watcher->last_probe);
    PyObject *arguments[] = {func, name, args, kwargs == NULL ? Py_True : Py_False, probe};
    PyObject *spelled = PyObject_Vectorcall(tracer_knows.spell, arguments, 5, NULL);
    Py_DECREF(probe);
    int failed = spelled == NULL || !PyArg_ParseTuple(spelled, "OOO!O", &s->op, &s->target,
                                                      &PyTuple_Type, &s->args, &s->label);
    if (failed) {
        s->op = s->target = s->args = s->label = NULL;
    }
    Py_XINCREF(s->op);
    Py_XINCREF(s->target);
    Py_XINCREF(s->args);
    Py_XINCREF(s->label);
    Py_XDECREF(spelled);
    return failed ? -1 : 0;
}

/* Look up the tensors that a question about facts is put to. */
static int
before_fact(Tracer *t, OperationCall *s, PyObject *args)
{
    s->fact = 1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) {
        if (is_tensor(PyTuple_GET_ITEM(args, i))) {
            PyObject *known = tracked_lookup(t, PyTuple_GET_ITEM(args, i));
            int failed = known == NULL || (says(s->info, WAY_SIZES) && tracked_asked(t, known) < 0);
            Py_XDECREF(known);
            if (failed) {
                return -1;
            }
        }
    }
    return 1;
}

/* 1: all is found out that is to be known of an operation; 0: ask Python. */
static int
before(Tracer *t, OperationCall *s, PyObject *func, PyObject *args, PyObject *kwargs)
{
    PyObject *info = s->info = Py_XNewRef(PyDict_GetItemWithError(tracer_knows.op_infos, func));
    if (info == NULL || !PyTuple_Check(info) || PyTuple_GET_SIZE(info) < WAY_COUNT) {
        return PyErr_Occurred() ? -1 : 0;
    }
    int fact = PyLong_AsLong(PyTuple_GET_ITEM(info, WAY_KIND)) == TREATMENT_FACT;
    if (!says(info, WAY_USUAL) || (fact && t->shapes != NULL)) {
        return 0;
    }
    unsigned long long places = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(info, WAY_DATA));
    if (may_need_data(places, args, kwargs)) {
        return PyErr_Occurred() ? -1 : 0;
    }
    if (fact) {
        return before_fact(t, s, args);
    }
    int in_place = says(info, WAY_FAILS) ? writes(info, kwargs) : 0;
    if (in_place != 0 || (says(info, WAY_FAILS) && (t->acted || t->mutates))) {
        return in_place < 0 ? -1 : 0;
    }
    int out = gives_out(kwargs);
    if (out != 0) {
        return out < 0 ? -1 : 0;
    }
    s->tensors = PyList_New(0);
    if (s->tensors == NULL || tracer_check_state(t) < 0 || spell(t, s, func, args, kwargs) < 0) {
        return -1;
    }
    Py_XSETREF(s->args, tracer_arguments(t, s->args, s->tensors));
    s->kwargs = s->args == NULL  ? NULL
                : kwargs == NULL ? Py_NewRef(tracer_knows.nothing)
                                 : tracer_keywords(t, kwargs, s->tensors);
    s->in_place = s->kwargs == NULL ? -1 : writes(info, kwargs);
    t->fails |= says(info, WAY_FAILS) && !(PyList_GET_SIZE(s->tensors) == 1 && reads_item(info));
    s->random = says(info, WAY_RANDOM);
    return s->in_place < 0 ? -1 : 1;
}

/* One tensor of a usual class that is not known yet; Python sees to everything else. */
static int
enter_result(Tracer *t, PyObject *result, PyObject *node, PyObject *tensors)
{
    int usual = is_tensor(result)
                    ? PySequence_Contains(tracer_knows.tensors, (PyObject *)Py_TYPE(result))
                    : 0;
    if (usual > 0) {
        int has = tracked_has(t, result);
        return has < 0 ? -1 : has ? 0 : tracked_enter(t, result, node, no_index, tensors);
    }
    PyObject *done = usual < 0 ? NULL
                               : PyObject_CallMethodObjArgs((PyObject *)t, names[REGISTER], result,
                                                            node, tensors, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* What sizes the result has, if they may be others in another call. */
static int
tell_sizes(Tracer *t, PyObject *node, PyObject *result)
{
    if (t->shapes == NULL) {
        return 0;
    }
    PyObject *shapes = Py_NewRef(t->shapes), *arguments[] = {node, result};
    PyObject *done = PyObject_Vectorcall(shapes, arguments, 2, NULL);
    Py_DECREF(shapes);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* It has run: the node, and what is known of the tensors now. Python may put another object in the
 * result's place. */
static int
after(Tracer *t, OperationCall *s, PyObject **place)
{
    PyObject *result = *place;
    if (s->python != NULL) {
        PyObject *given =
            PyObject_CallMethodObjArgs((PyObject *)t, names[AFTER], s->python, result, NULL);
        if (given == NULL) {
            return -1;
        }
        Py_SETREF(*place, given);
        return 0;
    }
    if (s->fact || result == Py_NotImplemented) {
        return 0;
    }
    int wrote = tracked_refresh(t, s->tensors, s->in_place);
    if (wrote < 0) {
        return -1;
    }
    t->operations++;
    if (wrote || s->random) {
        t->last_effect = (long long)t->watcher->events;
    }
    /* Operations like `to` and `contiguous` may give back the very tensor they got: no node is
     * needed then. */
    int returned = wrote ? 0 : tracked_has(t, result);
    if (returned > 0 && t->shapes != NULL) {
        PyObject *done = PyObject_CallMethodObjArgs((PyObject *)t, names[RETURNED], s->op,
                                                    s->target, s->args, s->kwargs, NULL);
        Py_XDECREF(done);
        return done == NULL ? -1 : 0;
    }
    if (returned != 0) {
        return returned < 0 ? -1 : 0;
    }
    PyObject *node = tracer_node(t, s->op, s->target, s->args, s->kwargs, s->label);
    int failed = node == NULL || tell_sizes(t, node, result) < 0 ||
                 enter_result(t, result, node, s->tensors) < 0;
    Py_XDECREF(node);
    return failed ? -1 : 0;
}

/* What has to be told could not be: the recording is over. -1: it is no fault of ours, the program
 * gets it. */
static int
give_up(Tracer *t)
{
    t->active = 0;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        return -1;
    }
    watcher_give_up(t->watcher);
    return 0;
}

/* Something of ours raised: the recording cannot go on, the program does. Called outside of a
 * handler: the program must not see our exception as one that is being handled. -1: it is none that
 * may be hidden. */
static int
tell_failure(Tracer *t)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        t->active = 0;
        return -1;
    }
    PyObject *exc = error_take();
    PyObject *done =
        exc == NULL ? NULL : PyObject_CallMethodOneArg((PyObject *)t, names[FAILED], exc);
    Py_XDECREF(exc);
    if (done == NULL) {
        return give_up(t);
    }
    Py_DECREF(done);
    return 0;
}

/* The operation raised: told, and raised on. Told outside of a handler: what the program's frames
 * are handling is part of their state, and its exception is not yet. */
static void
tell_raise(Tracer *t, PyObject *func)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        return;
    }
    PyObject *exc = error_take();
    if (exc == NULL) {
        return;
    }
    PyObject *done = PyObject_CallMethodObjArgs((PyObject *)t, names[RAISED], func, exc, NULL);
    if (done != NULL || give_up(t) == 0) {
        error_put(Py_NewRef(exc));
    }
    Py_XDECREF(done);
    Py_DECREF(exc);
}

static PyObject *
run_step(Tracer *t, OperationCall *s, PyObject *func, PyObject *args, PyObject *kwargs)
{
    Watcher *w = (Watcher *)Py_NewRef((PyObject *)t->watcher);
    PyObject *instead =
        s->python != NULL && PyTuple_Check(s->python) && PyTuple_GET_SIZE(s->python) > STEP_RUN
            ? PyTuple_GET_ITEM(s->python, STEP_RUN)
            : Py_None;
    PyObject *result = watcher_leaf(w, instead == Py_None ? func : instead, args, kwargs);
    Py_DECREF(w);
    if (result == NULL) {
        tell_raise(t, func);
    }
    /* not active: it ended inside */
    else if (t->active && after(t, s, &result) < 0 && tell_failure(t) < 0) {
        Py_CLEAR(result);
    }
    return result;
}

/* Run a torch function and record it. Only its own exceptions come out of here. */
static PyObject *
operation(Tracer *t, PyObject *func, PyObject *args, PyObject *kwargs)
{
    OperationCall step = {0};
    int ready = t->active;
    if (ready) {
        ready = before(t, &step, func, args, kwargs);
        if (ready == 0) {
            step_clear(&step);
            step = (OperationCall){0};
            step.python =
                PyObject_CallMethodObjArgs((PyObject *)t, names[BEFORE], func, args,
                                           kwargs == NULL ? tracer_knows.nothing : kwargs, NULL);
            ready = step.python == NULL ? -1 : 1;
        }
        if (ready < 0) {
            ready = tell_failure(t);
        }
    }
    PyObject *result = ready > 0   ? run_step(t, &step, func, args, kwargs)
                       : ready < 0 ? NULL
                                   : PyObject_Call(func, args, kwargs);
    step_clear(&step);
    return result;
}

/* ---- the mode ---- */

typedef struct {
    PyObject_HEAD
    PyObject *recorder; /* whose `tracer` it is now */
} Mode;

static int
mode_init(PyObject *self, PyObject *args, PyObject *kwds)
{
    PyObject *recorder;
    if (kwds != NULL || !PyArg_ParseTuple(args, "O:Mode", &recorder)) {
        return -1;
    }
    Py_XSETREF(((Mode *)self)->recorder, Py_NewRef(recorder));
    return 0;
}

static int
mode_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Mode *)self)->recorder);
    return 0;
}

static int
mode_clear(PyObject *self)
{
    Py_CLEAR(((Mode *)self)->recorder);
    return 0;
}

static void
mode_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    (void)mode_clear(self);
    Py_TYPE(self)->tp_free(self);
}

/* __torch_function__(func, types, args=(), kwargs=None) */
static PyObject *
mode_call(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs < 2 || nargs > 4 || (nargs > 2 && !PyTuple_Check(args[2])) ||
        (nargs > 3 && args[3] != Py_None && !PyDict_Check(args[3]))) {
        PyErr_SetString(PyExc_TypeError, "__torch_function__(func, types, args=(), kwargs=None)");
        return NULL;
    }
    PyObject *recorder = Py_XNewRef(((Mode *)self)->recorder);
    PyObject *tracer =
        recorder == NULL ? Py_NewRef(Py_None) : PyObject_GetAttr(recorder, names[TRACER]);
    Py_XDECREF(recorder);
    if (tracer == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear(); /* a segment could not be begun: nothing is recorded any more */
        PyObject *given = nargs > 2 ? Py_NewRef(args[2]) : PyTuple_New(0);
        PyObject *result =
            given == NULL
                ? NULL
                : PyObject_Call(args[0], given, nargs > 3 && args[3] != Py_None ? args[3] : NULL);
        Py_XDECREF(given);
        return result;
    }
    if (tracer == NULL || !PyObject_TypeCheck(tracer, &TracerType) ||
        ((Tracer *)tracer)->known == NULL) {
        if (tracer != NULL) {
            PyErr_SetString(PyExc_TypeError, "the recorder of this mode has no tracer");
        }
        Py_XDECREF(tracer);
        return NULL;
    }
    Thread *here = &thread_here;
    int state = here->state, watched = state == STATE_WATCHING || state == STATE_SENTINEL;
    if (watched) {
        here->state = STATE_OFF; /* as for a frame of ours */
    }
    PyObject *given = nargs > 2 ? Py_NewRef(args[2]) : PyTuple_New(0);
    PyObject *kwargs =
        nargs > 3 && args[3] != Py_None && PyDict_GET_SIZE(args[3]) > 0 ? args[3] : NULL;
    PyObject *result = given == NULL ? NULL : operation((Tracer *)tracer, args[0], given, kwargs);
    Py_XDECREF(given);
    Py_DECREF(tracer);
    if (watched) {
        watcher_restore(here, state);
    }
    return result;
}

static PyMethodDef mode_methods[] = {
    {"__torch_function__", FAST(mode_call), "Run an operation and record it."},
    {NULL},
};

static PyTypeObject ModeType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator._native.Mode",
    .tp_basicsize = sizeof(Mode),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_doc = "The part of the tensor mode that torch calls; made for a recorder.",
    .tp_new = PyType_GenericNew,
    .tp_init = mode_init,
    .tp_traverse = mode_traverse,
    .tp_clear = mode_clear,
    .tp_dealloc = mode_dealloc,
    .tp_methods = mode_methods,
};

int
operation_setup(PyObject *module)
{
    static const char *const texts[NAMES] = {"_before",     "_after",    "_raised", "_failed",
                                             "_register",   "_returned", "tracer",  "call_function",
                                             "call_method", "inplace",   "out"};
    for (int i = 0; i < NAMES; i++) {
        if ((names[i] = PyUnicode_InternFromString(texts[i])) == NULL) {
            return -1;
        }
    }
    no_index = PyTuple_New(0);
    return no_index == NULL ? -1 : PyModule_AddType(module, &ModeType);
}

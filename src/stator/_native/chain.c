/* The chain of frame evaluators (PEP 523): ours, and whoever else has one in this process.
 *
 * CPython has one evaluator for all threads. Whoever installs one keeps the former and hands frames
 * down to it, and puts it back when it leaves. So leaving out of order drops those above:
 * TorchDynamo leaves when the last thread leaves a compiled region, and puts back what it once
 * found, whether or not we came in between. Hence:
 *
 * - Nobody is believed to hand frames down to us. A call of a function of our own (a ping) shows
 * whether it does.
 * - A recording during which the hook was out of the chain is given up. That is noticed at the next
 * probe: all that was not seen lies between that and the one before. Where the hook comes back for
 * another recording, `absences` says so.
 * - A frame that comes back to us from below, because two evaluators hand down to each other, is
 * run by CPython.
 */
#define _GNU_SOURCE
#include "native.h"

static int installs = 0; /* recordings that are on, in all threads */
/* how often the hook was out of the chain while one was on */
static unsigned long absences = 0;
static _PyFrameEvalFunction below = NULL; /* whom the hook hands frames down to */
/* who was seen to hand frames down to the hook, since it was installed */
static _PyFrameEvalFunction tracked_above = NULL;
/* installed, and not taken off the top since: somebody may have it below */
static int in_chain = 0;
/* a function whose frame says that it has arrived */
static PyObject *ping = NULL;
static __thread int arrived;

/* ---- one evaluator ---- */

static inline _PyFrameEvalFunction
installed_evaluator(void)
{
    return _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
}

static void
install(_PyFrameEvalFunction evaluator)
{
    tracked_above = NULL;
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), evaluator);
}

int
hook_installed(void)
{
    return installed_evaluator() == hook_evaluate;
}

int
chain_is_empty(void)
{
    return installed_evaluator() == _PyEval_EvalFrameDefault;
}

int
chain_take_ping(Frame *f)
{
    if (ping == NULL || frame_code(f) != (PyCodeObject *)PyFunction_GET_CODE(ping)) {
        return 0;
    }
    arrived = 1;
    return 1;
}

/* Do frames reach the hook through the evaluator that is installed? */
static int
is_reached(_PyFrameEvalFunction now)
{
    /* nobody evaluates frames: nobody has it below */
    in_chain = in_chain && now != _PyEval_EvalFrameDefault;
    if (!in_chain) {
        return 0;
    }
    PyThreadState *ts = PyThreadState_Get();
    SavedError error = error_save();
    PyThreadState_EnterTracing(ts);
    arrived = 0;
    PyObject *result = PyObject_CallNoArgs(ping);
    PyThreadState_LeaveTracing(ts);
    error_settle(); /* not reached is the careful answer */
    Py_XDECREF(result);
    error_restore(error);
    return arrived;
}

int
chain_holds(void)
{
    _PyFrameEvalFunction now = installed_evaluator();
    if (now == hook_evaluate || (now == tracked_above && now != NULL)) {
        return 1;
    }
    if (!is_reached(now)) {
        return 0;
    }
    tracked_above = now;
    return 1;
}

/* ---- recordings come and go ---- */

/* The hook is in the chain when this returns. */
static void
put_in_chain(void)
{
    if (chain_holds()) {
        return;
    }
    below = installed_evaluator();
    install(hook_evaluate);
    in_chain = 1;
}

void
hook_acquire(Thread *t)
{
    if (installs > 0 && !chain_holds()) {
        absences++;
    }
    installs++;
    put_in_chain();
    t->absences = absences;
}

void
hook_release(void)
{
    if (--installs == 0) {
        hook_remove();
    }
}

/* Off the top of the chain. From under another evaluator it cannot be taken: then it only hands
 * down, and goes when it is on top again. */
void
hook_remove(void)
{
    if (hook_installed()) {
        install(below);
        in_chain = 0;
    }
}

int
hook_wanted(void)
{
    return installs > 0;
}

/* Has the hook been in the chain since this thread's recording began, or went on? */
int
hook_reached(Thread *t)
{
    return t->absences == absences && chain_holds();
}

/* This thread's recording goes on behind something that was not watched. */
void
hook_go_on(Thread *t)
{
    if (!chain_holds()) {
        absences++;
        put_in_chain();
    }
    t->absences = absences;
}

PyObject *
chain_pass_on(Thread *t, PyThreadState *ts, Frame *f, int throwflag)
{
    Frame *outer = t->passing;
    t->passing = f;
    PyObject *result = below(ts, f, throwflag);
    t->passing = outer;
    return result;
}

/* ---- the compiler behind another evaluator ---- */

/* other_compiler(callback) gives the one that it had in this thread, or None. Or NULL */
static PyObject *other_compiler;

PyObject *
chain_switch_off(void)
{
    return other_compiler == NULL ? Py_NewRef(Py_None)
                                  : PyObject_CallOneArg(other_compiler, Py_None);
}

PyObject *
chain_switch_on(PyObject *callback, PyObject *result)
{
    if (callback != Py_None) {
        PyObject *error = result == NULL && PyErr_Occurred() ? error_take() : NULL;
        PyObject *former = PyObject_CallOneArg(other_compiler, callback);
        if (error != NULL) { /* which counts more than what may have happened since */
            PyErr_Clear();
            error_put(error);
        }
        else if (former == NULL) {
            Py_CLEAR(result);
        }
        Py_XDECREF(former);
    }
    Py_DECREF(callback);
    return result;
}

/* ---- its stance: a global of one of its modules ---- */

/* versions of the dicts below for which `stance_default` holds */
static uint64_t modules_seen, stance_seen;
static PyObject *stance_dict; /* of its module, or NULL: not loaded */
static int stance_default = 1;
/* the class whose attributes its reset replaces, or NULL */
static PyTypeObject *tracker;
static unsigned int tracker_seen; /* its version when `on_reset` was last called */
static PyObject *on_reset;        /* asked whether there was a reset; or NULL */

static int
read_stance(void)
{
    PyObject *holder = PyDict_GetItemString(stance_dict, "_stance"); /* borrowed */
    PyObject *stance = holder == NULL ? NULL : PyObject_GetAttrString(holder, "stance");
    int found = stance == NULL || (PyUnicode_Check(stance) &&
                                   PyUnicode_CompareWithASCIIString(stance, "default") == 0);
    Py_XDECREF(stance);
    PyErr_Clear();
    return found;
}

static PyObject *
dict_of_module(PyObject *modules, const char *name) /* borrowed; NULL: not loaded */
{
    PyObject *module = PyDict_GetItemString(modules, name);
    return module != NULL && PyModule_Check(module) ? PyModule_GetDict(module) : NULL;
}

static void
find_modules(PyObject *modules)
{
    Py_XSETREF(stance_dict, Py_XNewRef(dict_of_module(modules, "torch._dynamo.eval_frame")));
    PyObject *dict = dict_of_module(modules, "torch._dynamo.mutation_guard");
    PyObject *found = dict == NULL ? NULL : PyDict_GetItemString(dict, "GenerationTracker");
    Py_XSETREF(tracker,
               (PyTypeObject *)Py_XNewRef(found != NULL && PyType_Check(found) ? found : NULL));
    stance_seen = tracker_seen = 0;
}

int
chain_stance_is_default(void)
{
    PyObject *modules = PyImport_GetModuleDict();
    uint64_t version = dict_version(modules);
    if (version == 0 || version != modules_seen) {
        find_modules(modules);
        modules_seen = version;
    }
    if (tracker != NULL && on_reset != NULL && tracker_seen != type_version_tag(tracker)) {
        PyObject *answer = PyObject_CallNoArgs(on_reset);
        PyErr_Clear(); /* it concerns nothing but memory */
        Py_XDECREF(answer);
        tracker_seen = tracker == NULL ? 0 : type_version_tag(tracker);
    }
    if (stance_dict == NULL) {
        return 1;
    }
    version = dict_version(stance_dict);
    if (version == 0 || version != stance_seen) {
        stance_default = read_stance();
        stance_seen = version;
    }
    return stance_default;
}

static PyObject *
set_other_compiler(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *switch_, *reset;
    if (!PyArg_ParseTuple(args, "OO:set_other_compiler", &switch_, &reset)) {
        return NULL;
    }
    if (!PyCallable_Check(switch_) || !PyCallable_Check(reset)) {
        PyErr_SetString(PyExc_TypeError, "set_other_compiler(switch, reset) takes two functions");
        return NULL;
    }
    Py_XSETREF(other_compiler, Py_NewRef(switch_));
    Py_XSETREF(on_reset, Py_NewRef(reset));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"set_other_compiler", set_other_compiler, METH_VARARGS,
     "set_other_compiler(switch, reset): switch(callback) says what another compiler of frames "
     "does in this thread, and gives what it did before. While a compiled callable runs it is "
     "called with None. reset() is called where that compiler may have been told to forget "
     "everything."},
    {NULL},
};

int
chain_setup(PyObject *module)
{
    PyObject *code = Py_CompileString("None", "<stator ping>", Py_eval_input);
    PyObject *globals = code == NULL ? NULL : PyDict_New();
    ping = globals == NULL ? NULL : PyFunction_New(code, globals);
    Py_XDECREF(code);
    Py_XDECREF(globals);
    return ping == NULL || PyModule_AddFunctions(module, functions) < 0 ? -1 : 0;
}

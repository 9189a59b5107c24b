/* Everything that differs between CPython 3.11, 3.12 and 3.13. No other C file asks for the
 * version.
 *
 * What is relied on: the layout of _PyInterpreterFrame (read through the headers of the interpreter
 * we are built for), PEP 523's eval hook, co_extra, and the order of a call's operands on the value
 * stack.
 */
#ifndef STATOR_COMPAT_H
#define STATOR_COMPAT_H

#define PY_SSIZE_T_CLEAN
#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1 /* pycore_frame.h refuses to be read without it */
#endif
#include <Python.h>
#include <frameobject.h>
#include <opcode.h>
#include <structmember.h>
#include <internal/pycore_dict.h>
#include <internal/pycore_frame.h>
#include <internal/pycore_object.h>
#if PY_VERSION_HEX >= 0x030D0000
#include <internal/pycore_setobject.h> /* _PySet_NextEntry */
#endif

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030E0000
#error "stator supports CPython 3.11, 3.12 and 3.13"
#endif
#ifdef Py_GIL_DISABLED
#error "stator needs the GIL: its sets and caches have no locks of their own"
#endif

#define PY312 (PY_VERSION_HEX >= 0x030C0000)
#define PY313 (PY_VERSION_HEX >= 0x030D0000)

/* In a table of methods: one that takes its arguments as an array. */
#define FAST(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL

typedef _PyInterpreterFrame Frame;

/* On 3.11 any new object may start a collection, and that runs Python code; later a collection
 * waits for the evaluator. */
#define ALLOCATIONS_COLLECT (!PY312)

#if PY312
#define code_extra_index(free) PyUnstable_Eval_RequestCodeExtraIndex(free)
#define code_get_extra(code, index, out) PyUnstable_Code_GetExtra((PyObject *)(code), index, out)
#define code_set_extra(code, index, value)                                                         \
    PyUnstable_Code_SetExtra((PyObject *)(code), index, value)
#else
#define code_extra_index(free) _PyEval_RequestCodeExtraIndex(free)
#define code_get_extra(code, index, out) _PyCode_GetExtra((PyObject *)(code), index, out)
#define code_set_extra(code, index, value) _PyCode_SetExtra((PyObject *)(code), index, value)
#endif

/* ---- frames ---- */

static inline PyCodeObject *
frame_code(Frame *f)
{
#if PY313
    return (PyCodeObject *)f->f_executable;
#else
    return f->f_code;
#endif
}

static inline PyFunctionObject *
frame_func(Frame *f)
{
#if PY312
    return (PyFunctionObject *)f->f_funcobj;
#else
    return f->f_func;
#endif
}

static inline Frame *
current_frame(PyThreadState *ts)
{
#if PY313
    return ts->current_frame;
#else
    return ts->cframe->current_frame;
#endif
}

/* True for a call's new frame, false for a generator that is resumed. */
static inline int
frame_is_start(Frame *f)
{
    if (f->owner != FRAME_OWNED_BY_THREAD) {
        return 0;
    }
#if PY313
    return f->instr_ptr == _PyCode_CODE(frame_code(f));
#else
    return f->prev_instr == _PyCode_CODE(frame_code(f)) - 1;
#endif
}

/* How many digits an int has room for, and how many bytes it takes with so many. */
static inline Py_ssize_t
long_digits(PyLongObject *number)
{
#if PY312
    Py_ssize_t digits = (Py_ssize_t)(number->long_value.lv_tag >> 3);
#else
    Py_ssize_t digits = Py_ABS(Py_SIZE(number));
#endif
    return digits > 0 ? digits : 1;
}

static inline size_t
long_size(Py_ssize_t digits)
{
#if PY312
    size_t header = offsetof(PyLongObject, long_value.ob_digit);
#else
    size_t header = offsetof(PyLongObject, ob_digit);
#endif
    return header + (size_t)digits * sizeof(digit);
}

/* 3.12+ puts frames of its own between those of the program where C code calls the evaluator. */
static inline int
frame_is_python(Frame *f)
{
#if PY312
    return f->owner != FRAME_OWNED_BY_CSTACK;
#else
    (void)f;
    return 1;
#endif
}

/* The Python frame that called this one, or NULL. */
static inline Frame *
frame_caller(Frame *f)
{
    do {
        f = f->previous;
    } while (f != NULL && !frame_is_python(f));
    return f;
}

/* The code unit of the instruction that a running frame executes. */
static inline Py_ssize_t
frame_unit(Frame *f)
{
#if PY313
    return f->instr_ptr - _PyCode_CODE(frame_code(f));
#else
    return f->prev_instr - _PyCode_CODE(frame_code(f));
#endif
}

/* Release a frame that was handed to the hook and never evaluated.
 *
 * 3.11: the caller does it. 3.12+: the evaluator does it, and the functions it uses are not
 * exported. A frame that never started has no frame object and no stack, so what remains is to drop
 * its references and to pop it from the thread's data stack (a chunk that becomes empty goes back
 * to the arena allocator it came from). */
static inline void
frame_discard(PyThreadState *ts, Frame *f)
{
#if PY312
    PyObject *code = (PyObject *)frame_code(f), *func = f->f_funcobj, *locals = f->f_locals;
    int slots = frame_code(f)->co_nlocalsplus;
    for (int i = 0; i < slots; i++) {
        Py_CLEAR(f->localsplus[i]);
    }
    PyObject **base = (PyObject **)f;
    if (base == &ts->datastack_chunk->data[0]) {
        _PyStackChunk *chunk = ts->datastack_chunk, *previous = chunk->previous;
        PyObjectArenaAllocator arena;
        PyObject_GetArenaAllocator(&arena);
        ts->datastack_top = &previous->data[previous->top];
        ts->datastack_chunk = previous;
        ts->datastack_limit = (PyObject **)((char *)previous + previous->size);
        arena.free(arena.ctx, chunk, chunk->size);
    }
    else {
        ts->datastack_top = base;
    }
    Py_XDECREF(locals);
    Py_XDECREF(func);
    Py_DECREF(code);
#else
    (void)ts;
    (void)f;
#endif
}

/* ---- C recursion ---- */

/* 3.12+ counts C calls apart from Python calls, and a hooked Python call is a C call. */
static inline int
c_recursion_low(PyThreadState *ts)
{
#if PY312
    return ts->c_recursion_remaining < 250;
#else
    (void)ts;
    return 0;
#endif
}

/* ---- the specialising interpreter ---- */

/* A few specialised instructions enter a Python frame without asking for an eval hook:
 * BINARY_SUBSCR_GETITEM before 3.11.4, CALL_ALLOC_AND_ENTER_INIT on 3.13. Here they are turned back
 * into their general form, which must then run `delay` times before it is specialised again. Places
 * are looked up in co_code, where caches are zero. */
#define NEVER 0xFFFF /* CPython's mark for a counter that does not count */

static inline void
code_generalise(PyCodeObject *code, unsigned int delay)
{
#if PY313
    const unsigned char general = CALL, special = CALL_ALLOC_AND_ENTER_INIT;
#elif PY312
    (void)code, (void)delay;
    return;
#else
    const unsigned char general = BINARY_SUBSCR, special = BINARY_SUBSCR_GETITEM;
    (void)delay; /* the general form is not specialised again */
    if (Py_Version >= 0x030B0400) {
        return;
    }
#endif
#if PY313 || !PY312
    PyObject *raw = PyCode_GetCode(code);
    if (raw == NULL) {
        PyErr_Clear();
        return;
    }
    const unsigned char *bytes = (const unsigned char *)PyBytes_AS_STRING(raw);
    _Py_CODEUNIT *units = _PyCode_CODE(code);
    for (Py_ssize_t i = 0; i < PyBytes_GET_SIZE(raw) / 2; i++) {
        unsigned char *live = (unsigned char *)&units[i];
        if (bytes[2 * i] != general) {
            continue;
        }
        if (*live == special) {
            *live = general;
        }
#if PY313
        if (*live == general && units[i + 1].cache != NEVER) {
            units[i + 1].cache = (uint16_t)delay;
        }
#endif
    }
    Py_DECREF(raw);
#endif
}

/* An instrumented copy must never enter a frame unseen. */
static inline void
code_keep_generic(PyCodeObject *code)
{
#if !PY312
    code->co_warmup = 0; /* 3.11 specialises code when this counter *reaches* zero */
#endif
    code_generalise(code, NEVER);
}

/* Code that runs in a leaf is not ours to slow down for good: no unseen frames in its next 4,095
 * calls. */
static inline void
code_delay_inlining(PyCodeObject *code)
{
    code_generalise(code, 0xFFF << 4 | 12);
}

/* ---- a call's operands ---- */

typedef struct {
    PyObject **callable; /* the slot of the callable */
    PyObject **args;     /* self first in the method form */
    int nargs;
} CallSlots;

/* slots: the two slots of the callable, then n arguments. */
static inline CallSlots
call_slots(PyObject **slots, int n)
{
    CallSlots c;
#if PY313 /* callable, self or NULL, arguments */
    c.callable = slots;
    int method = slots[1] != NULL;
#else /* NULL, callable, arguments; or method, self, arguments */
    int method = slots[0] != NULL;
    c.callable = method ? slots : slots + 1;
#endif
    c.args = slots + (method ? 1 : 2);
    c.nargs = n + method;
    return c;
}

/* slots: the two slots of the callable, the tuple, perhaps the dict. */
static inline PyObject **
call_ex_callable(PyObject **slots)
{
#if PY313
    return slots;
#else
    return slots + 1;
#endif
}

/* ---- objects ---- */

/* What a weak reference refers to, or None: a new reference. */
static inline PyObject *
weakref_get(PyObject *ref)
{
#if PY313
    PyObject *object = NULL;
    int found = PyWeakref_GetRef(ref, &object);
    return found < 0 ? NULL : found ? object : Py_NewRef(Py_None);
#else
    return Py_XNewRef(PyWeakref_GetObject(ref));
#endif
}

/* Are all keys of a dict plain strings, so that a lookup compares nothing else? */
static inline int
dict_is_text(PyObject *dict)
{
    return ((PyDictObject *)dict)->ma_keys->dk_kind != DICT_KEYS_GENERAL;
}

/* The table of a dict that is not `dict_is_text`, as CPython probes it: where a hash begins, what
 * comes behind a slot, and the number of the entry in a slot: DKIX_EMPTY ends the search, and other
 * negative numbers are entries that are gone. */
static inline size_t
dict_first_slot(PyObject *dict, Py_hash_t hash)
{
    return (size_t)hash & (((size_t)1 << ((PyDictObject *)dict)->ma_keys->dk_log2_size) - 1);
}

static inline size_t
dict_next_slot(PyObject *dict, size_t slot, size_t *rest)
{
    *rest >>= 5;
    return (slot * 5 + *rest + 1) &
           (((size_t)1 << ((PyDictObject *)dict)->ma_keys->dk_log2_size) - 1);
}

static inline Py_ssize_t
dict_slot(PyObject *dict, size_t slot)
{
    const PyDictKeysObject *keys = ((PyDictObject *)dict)->ma_keys;
    const char *places = keys->dk_indices;
    switch (keys->dk_log2_index_bytes - keys->dk_log2_size) {
    case 0:
        return ((const int8_t *)places)[slot];
    case 1:
        return ((const int16_t *)(const void *)places)[slot];
    case 2:
        return ((const int32_t *)(const void *)places)[slot];
    default:
        return (Py_ssize_t)((const int64_t *)(const void *)places)[slot];
    }
}

/* The dict of a class, not owned. */
static inline PyObject *
class_dict(PyTypeObject *type)
{
#if PY312
    PyObject *dict = PyType_GetDict(type);
    Py_XDECREF(dict);
    return dict;
#else
    return type->tp_dict;
#endif
}

/* Does a lookup in a class and its bases compare plain strings alone? Another key would run code of
 * its own. */
static inline int
class_is_text(PyTypeObject *type)
{
    PyObject *mro = type->tp_mro;
    for (Py_ssize_t i = 0, count = mro == NULL ? 0 : PyTuple_GET_SIZE(mro); i < count; i++) {
        PyObject *base = PyTuple_GET_ITEM(mro, i),
                 *dict = PyType_Check(base) ? class_dict((PyTypeObject *)base) : NULL;
        if (dict == NULL || !dict_is_text(dict)) {
            return 0;
        }
    }
    return mro != NULL;
}

/* The version of a type: another number after every change to it or its bases, no number is given
 * twice. Assigned if need be; 0 if the type cannot have one. Runs no Python code. */
static inline unsigned int
type_version_tag(PyTypeObject *type)
{
#if PY312
    if (type->tp_version_tag != 0 && (PY313 || type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG)) {
        return type->tp_version_tag;
    }
    return PyUnstable_Type_AssignVersionTag(type) ? type->tp_version_tag : 0;
#else
    if (!(type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG) && class_is_text(type)) {
        static PyObject *name = NULL;
        if (name == NULL && (name = PyUnicode_InternFromString("__class__")) == NULL) {
            PyErr_Clear();
            return 0;
        }
        (void)_PyType_Lookup(type, name); /* assigns a version */
    }
    return type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG ? type->tp_version_tag : 0;
#endif
}

/* The version of a dict: another number after every change to its entries, no number is given
 * twice. 0: it has none. And where it stands: another word there after every change; only of a dict
 * that has a version.
 *
 * 3.11 keeps one in the dict. On 3.12 that is deprecated, and on 3.13 an attribute that is stored
 * in the object itself does not move it: there CPython tells of changes (watched.c). */
#define DICTS_ARE_WATCHED PY312
#if DICTS_ARE_WATCHED
/* Are the values of a dict kept in the object whose instance dict it is? */
static inline int
dict_is_embedded(PyObject *dict)
{
#if PY313
    PyDictValues *values = ((PyDictObject *)dict)->ma_values;
    return values != NULL && values->embedded;
#else
    (void)dict;
    return 0;
#endif
}

uint64_t dict_version(PyObject *dict);
const void *dict_version_place(PyObject *dict); /* NULL: it has none */
#else
static inline uint64_t
dict_version(PyObject *dict)
{
    return ((PyDictObject *)dict)->ma_version_tag;
}

static inline const void *
dict_version_place(PyObject *dict)
{
    return &((PyDictObject *)dict)->ma_version_tag;
}
#endif

/* The instance dict, not owned (its object holds it), made if need be; NULL if the object can have
 * none. */
static inline PyObject *
instance_dict(PyObject *object)
{
#if !PY312
    if (Py_TYPE(object)->tp_flags & Py_TPFLAGS_MANAGED_DICT &&
        *_PyObject_ManagedDictPointer(object) != NULL) {
        return *_PyObject_ManagedDictPointer(object); /* there are no inline values then */
    }
#endif
#if !PY313
    PyObject **place = _PyObject_GetDictPtr(object);
    if (place != NULL && *place != NULL) {
        return *place;
    }
#endif
    PyObject *dict = PyObject_GenericGetDict(object, NULL);
    if (dict == NULL) {
        PyErr_Clear();
        return NULL;
    }
    Py_DECREF(dict);
    return dict;
}

/* Where an object that has an instance dict holds it, as it does for as long as it has this type;
 * NULL if that is not so simple. */
static inline const void *
instance_dict_place(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    void *place = NULL;
    if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
#if PY312 && !PY313
        place = _PyObject_DictOrValuesPointer(object);
#else
        place = _PyObject_ManagedDictPointer(object);
#endif
    }
    else if (type->tp_dictoffset > 0) {
        place = (char *)object + type->tp_dictoffset;
    }
    return place;
}

/* ---- exceptions ---- */

typedef struct {
#if PY312
    PyObject *value;
#else
    PyObject *type, *value, *traceback;
#endif
} SavedError;

static inline SavedError
error_save(void)
{
    SavedError e;
#if PY312
    e.value = PyErr_GetRaisedException();
#else
    PyErr_Fetch(&e.type, &e.value, &e.traceback);
#endif
    return e;
}

static inline void
error_restore(SavedError e)
{
#if PY312
    PyErr_SetRaisedException(e.value);
#else
    PyErr_Restore(e.type, e.value, e.traceback);
#endif
}

static inline void
error_drop(SavedError e)
{
#if PY312
    Py_XDECREF(e.value);
#else
    Py_XDECREF(e.type);
    Py_XDECREF(e.value);
    Py_XDECREF(e.traceback);
#endif
}

/* The raised exception as one object, cleared from the thread. A new reference; NULL only without
 * memory. */
static inline PyObject *
error_take(void)
{
#if PY312
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL && value != NULL) {
        PyException_SetTraceback(value, traceback);
    }
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
#endif
}

static inline void
error_put(PyObject *exc) /* steals */
{
#if PY312
    PyErr_SetRaisedException(exc);
#else
    PyObject *traceback = PyException_GetTraceback(exc);
    PyErr_Restore(Py_NewRef(Py_TYPE(exc)), exc, traceback);
#endif
}

/* What is no fault is raised again in this thread, between two instructions of Python code. */
void error_send_on(PyObject *exc);
void error_settle(void); /* the same with what is raised, if anything is; the rest is forgotten */

#endif

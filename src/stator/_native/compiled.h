/* The compiled callable, as the next two share it. See dispatch.c. */
#ifndef STATOR_COMPILED_H
#define STATOR_COMPILED_H

#include "entry_table.h"

enum { MAX_SLOTS = 32 };

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *dict, *weakrefs;
    PyObject *fallback;         /* does everything, in Python */
    PyFunctionObject *function; /* whose arguments are bound */
    PyObject *code;             /* that it had when it was compiled */
    EntryTable *table;
    Count *hits;
    PyObject *resume; /* resume(entry, values, slots): what follows when an entry's guards hold */
    /* failed(entry, exception, function, slots): what follows when a replay raised */
    PyObject *failed;
    /* a dict: steps and continuations that were given the closure of `function` */
    PyObject *bound;
    unsigned long long bound_at; /* `changes` of the table when it was last emptied */
    PyObject *go_on;             /* go_on(jump): what follows a step when C code has no recording */
    Count *passing; /* so many calls go by: they call `function` as it is, counted in `passed` */
    Count *spared;  /* and so do so many of those that no recording fits */
    Count *passed;
    /* of a compiled module: its own object stands for another; or NULL */
    PyObject *self_is, *self_becomes;
    PyTypeObject *self_type;
} Compiled;

/* ---- bind.c ---- */

typedef struct {
    PyObject *values[MAX_SLOTS + 1]; /* owned, NULL if not bound */
    Py_ssize_t count;
    Py_ssize_t made; /* the slot of **kwargs, which is a new dict in each call; or -1 */
} SlotBuffer;

void slots_clear(SlotBuffer *s);
/* 1: bound; 0: not without a question. In both cases the slots must be cleared. */
int bind(Compiled *c, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, SlotBuffer *s);

#endif

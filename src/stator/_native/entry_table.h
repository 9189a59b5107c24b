/* Recordings as C code uses them: what entry_table.c, relay.c, break_step.c and dispatch.c
 * share. */
#ifndef STATOR_ENTRY_TABLE_H
#define STATOR_ENTRY_TABLE_H

#include "native.h"
#include "guard.h"

/* ---- counting (entry_table.c) ---- */

typedef struct {
    PyObject_HEAD
    unsigned long long value;
} Count;

/* ---- replays without code of their own (relay.c) ---- */

extern PyTypeObject RelayType;

/* What the relay gives for these values, a tuple that the caller holds; NULL with an exception. */
PyObject *relay_run(PyObject *relay, PyObject *values);

/* ---- leaving a segment (break_step.c) ---- */

/* What was last found in a dict: `function`, not owned, is in the dict that has this version; 0:
 * nothing. */
typedef struct {
    uint64_t version;
    PyObject *function;
} FoundFunction;

typedef struct {
    PyObject_HEAD
    /* a function: takes the state, gives back (number of a target, what that one takes, ...) */
    PyObject *call;
    PyObject *targets;  /* a tuple */
    int closes;         /* `call` needs a closure: */
    FoundFunction last; /* with it */
    /* or NULL. Else the step only calls this method, which runs no Python code and lies before
     * its */
    PyObject *read;
    /* object, of exactly this type, at the end of the state. It leads to the first target, which
     * takes */
    PyTypeObject *of;
    int *moves;       /* these parts of the state (the method's place stands for the value) ... */
    Py_ssize_t moved; /* ... that many */
    int in_place;     /* all of them, in the same order */
    Py_ssize_t arguments; /* so many parts has the state */
    PyObject *callees;    /* asked about functions that start in the step (callees.c), or NULL */
    char idle;            /* the segment before it has no graph */
} BreakStep;

struct EntryTable;

typedef struct {
    PyObject_HEAD
    PyObject *point;    /* a `recording.ResumePoint` */
    PyObject *function; /* its outermost continuation, without a closure */
    /* the recordings from there on, or NULL: not known yet, or of no use to C code */
    struct EntryTable *table;
    int closes;         /* `function` needs a closure: */
    FoundFunction last; /* with it */
} ResumeTarget;

extern PyTypeObject BreakStepType;

/* Makes the step from a state. 0, or 1 if it only read a value and torch's state is what it was:
 * *target, and *inputs (what the continuation takes, and it itself), both owned. -1 with an
 * exception. Steals `state`. `function` is the one that is left: its closure goes on being used.
 * Functions with that closure are kept in the dict `known`, unless that is NULL. */
int break_step_make(BreakStep *step, PyObject *function, PyObject *known, PyObject *state,
                    ResumeTarget **target, PyObject **inputs);
/* A `PendingResume`, for Python code. Steals `inputs`. */
PyObject *pending_resume_new(ResumeTarget *target, PyObject *inputs);

/* ---- the recordings of one code object (entry_table.c) ---- */

typedef struct {
    PyObject *entry;
    Guards *guards;   /* NULL: not published, only Python code may use it */
    PyObject *replay; /* NULL: Python code goes on when the guards hold */
    BreakStep *step;  /* what follows the replay; NULL: it gives the result */
    Count *hits;
} TableRow;

typedef struct EntryTable {
    PyObject_HEAD
    TableRow *rows;
    Py_ssize_t count;
    unsigned long long changes; /* counts everything but a change of order */
} EntryTable;

extern PyTypeObject CountType, EntryTableType;

void row_clear(TableRow *row);
/* Looks for a recording that fits; `made` as in guards_walk; `known` is torch's state, or NULL if
 * it is to be read. 1: *row and *values (what its replay takes) are owned. 0: none fits. -1: C code
 * cannot tell, or cannot use it. */
int entry_table_fitting(EntryTable *s, const TorchState *known, PyObject *const *slots,
                        Py_ssize_t count, Py_ssize_t made, TableRow *row, PyObject **values);

#endif

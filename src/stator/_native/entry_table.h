/* Recordings as C code uses them: what entry_table.c, relay.c, break_step.c and dispatch.c share. */
#ifndef STATOR_SHELF_H
#define STATOR_SHELF_H

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

/* What was last found in a dict: `function`, not owned, is in the dict that has this version; 0: nothing. */
typedef struct {
    uint64_t version;
    PyObject *function;
} Found;

typedef struct {
    PyObject_HEAD
    PyObject *call;     /* a function: takes the state, gives back (number of a landing, what that one takes, ...) */
    PyObject *landings; /* a tuple */
    int closes;         /* `call` needs a closure: */
    Found last;         /* with it */
    PyObject *read;     /* or NULL. Else the step only calls this method, which runs no Python code and lies before its */
    PyTypeObject *of;   /* object, of exactly this type, at the end of the state. It leads to the first landing, which takes */
    int *moves;         /* these parts of the state (the method's place stands for the value) ... */
    Py_ssize_t moved;   /* ... that many */
    int in_place;       /* all of them, in the same order */
    Py_ssize_t arguments; /* so many parts has the state */
} Leave;

struct Shelf;

typedef struct {
    PyObject_HEAD
    PyObject *way;       /* a `recording.Way` */
    PyObject *function;  /* its outermost continuation, without a closure */
    struct Shelf *shelf; /* the recordings from there on, or NULL: not known yet, or of no use to C code */
    int closes;          /* `function` needs a closure: */
    Found last;          /* with it */
} Landing;

extern PyTypeObject LeaveType;

/* Makes the step from a state. 0, or 1 if it only read a value and torch's state is what it was: *landing, and *inputs (what the continuation takes, and it itself), both owned.
 * -1 with an exception. Steals `state`. `function` is the one that is left: its closure goes on being used. Functions with that closure are
 * kept in the dict `known`, unless that is NULL. */
int leave_step(Leave *leave, PyObject *function, PyObject *known, PyObject *state, Landing **landing, PyObject **inputs);
/* A `Jump`, for Python code. Steals `inputs`. */
PyObject *jump_new(Landing *landing, PyObject *inputs);

/* ---- the recordings of one code object (entry_table.c) ---- */

typedef struct {
    PyObject *entry;
    Guards *guards;   /* NULL: not armed, only Python code may use it */
    PyObject *replay; /* NULL: Python code goes on when the guards hold */
    Leave *leave;     /* what follows the replay; NULL: it gives the result */
    Count *hits;
} Row;

typedef struct Shelf {
    PyObject_HEAD
    Row *rows;
    Py_ssize_t count;
    unsigned long long changes; /* counts everything but a change of order */
} Shelf;

extern PyTypeObject CountType, ShelfType;

void row_clear(Row *row);
/* Looks for a recording that fits; `made` as in guards_walk; `known` is torch's state, or NULL if it is to be read. 1: *row and *values (what its replay takes) are owned. 0: none can be used. */
int shelf_fitting(Shelf *s, const TorchState *known, PyObject *const *slots, Py_ssize_t count, Py_ssize_t made, Row *row,
                  PyObject **values);

#endif

/* Guards: what state.c, guard.c, related.c, walk.c, digest.c and entry_table.c share. */
#ifndef STATOR_GUARD_H
#define STATOR_GUARD_H

#include "formula.h"
#include "guard_codes.h"

/* ---- torch's global state (state.c) ---- */

#define STATE_SIZE 10

typedef struct {
    intptr_t values[STATE_SIZE]; /* numbers; addresses of dtypes, which live for ever */
    PyObject *autocast;          /* owned; None if it is off */
} TorchState;

/* 0, or -1 (no exception) if it cannot be read. The reader clears it. Runs no code of the
 * program. */
int state_read(TorchState *state);
/* From the tuple that `facts.torch_state` gives; -1 with an exception. */
int state_from(TorchState *state, PyObject *tuple);
int state_same(const TorchState *a, const TorchState *b);
void state_clear(TorchState *state);
/* Has this thread torch function modes, or can that not be told? */
int state_has_function_modes(void);
int state_setup(PyObject *module);

/* ---- guards (guard.c, walk.c) ---- */

typedef struct {
    int fact;
    /* the check's own, for words: its origin, and its place among that one's checks */
    int origin, index;
    PyObject *expected; /* owned, or NULL */
    union {
        TensorFields *tensor; /* owned by the program */
        Py_ssize_t number;    /* a length, a hash */
        /* of UNHOOKED: the four dicts of hooks, as good as the values of nodes. Owned array */
        PyObject **hooks;
    };
} GuardCheck;

enum { HOOKS = 4 };
extern PyObject *hook_names[HOOKS], *method_names[3]; /* interned; see guards_setup */
enum { IN_RELATION = 1, IN_GROUP = 2 };
enum { TRIPWIRES = 4 };

typedef struct {
    unsigned char edge;
    unsigned char version;  /* what kind of version the value has */
    unsigned char is_entry; /* of a dict or class: fixed by the version of that */
    unsigned char related;  /* identity matters: IN_RELATION, IN_GROUP */
    unsigned char stands;   /* in this walk: the version of the value is the one that was seen */
    unsigned char covered;  /* the digest relies on the value and its version being those of now */
    unsigned char restless; /* that was so once, and they changed */
    int parent;             /* before this node; -1 for none */
    /* the first child (or later node) that must be visited though our version stands */
    int past_fixed;
    int check, live, own, fixed; /* index of the first check, how many of each kind follow */
    int origin;                  /* index of the origin that this node stands for */
    /* not owned; good only in the walk that set it, or below a version that stands */
    PyObject *value;
    uint64_t seen;     /* the version under which `fixed` children were checked; 0: none */
    PyObject *key;     /* owned, or NULL */
    Py_ssize_t number; /* index, hash or part */
    Py_ssize_t hint;   /* KEYED: where the key was last found */
} Node;

typedef struct {
    int a, b, same; /* the values of nodes a and b are (not) the same object */
    int origin, index;
} GuardRelation;

typedef struct {
    int size;
    int *nodes;        /* whose values must be different objects */
    PyObject **values; /* the values as they were last found to be so, in the same order */
    int holds;
} NodeGroup;

typedef struct {
    PyObject_HEAD
    TorchState state;
    Node *nodes;
    GuardCheck *checks;
    TensorFields **tensors;
    GuardRelation *relations;
    NodeGroup *groups;
    Formula *formulas; /* relations between sizes and numbers, over the values of these: */
    int *terms;
    PyObject **term_values;
    int *storages; /* nodes whose values are tensors that may share memory, or numbers, ... */
    /* ... and of each which of them is the first one that lies in the same; -1: it is a number */
    int *firsts;
    const void **memory; /* a hash table for that, of `memory_size` entries: storages, ... */
    int *memory_first;   /* ... and where each was found first */
    /* nodes whose values the replay gets; -1: the next one that `ask` gives back */
    int *wanted;
    /* nodes whose values `ask` gets; the first `always_count` even if no check is in doubt */
    int *asked;
    int node_count, check_count, tensor_count, relation_count, group_count, formula_count,
        term_count, storage_count, memory_size, wanted_count, asked_count, always_count;
    PyObject *ask; /* a Python function for what C code cannot tell; see guards_walk */
    int always_ask;
    int cleared;              /* by the garbage collector */
    int related_hold;         /* relations held for the values that related nodes have now */
    unsigned long long walks; /* how many were begun */
    int *fresh;               /* nodes whose version was noted in the walk that goes on */
    int fresh_count;
    int moved;             /* in this walk: the value or the version of a covered node did */
    struct Digest *digest; /* or NULL; see digest.c */
    /* how many walks must hold before one is made; how many it was last time */
    int patience, backoff;
    /* nodes at which long walks failed, the last one first: the next walk looks there first */
    int tripwires[TRIPWIRES];
    int tripwire_count, untripped;   /* `untripped`: how many walks in a row none of them ended */
    unsigned long long visited;      /* how many nodes were fetched or checked one by one */
    unsigned long long digested;     /* how many walks the digest stood for */
    int failed_origin, failed_check; /* where the last walk ended; -1: not at a check */
} Guards;

extern PyTypeObject GuardsType;

enum { HOLDS, FAILS, UNSURE };

/* Checks all guards but torch's state. `made`: a slot whose object was made for this call, or -1.
 * HOLDS: *values is a new tuple, the wanted values. UNSURE: Python has to check. No exception is
 * set in any case.
 *
 * Nothing before the call of `ask` runs Python code, so values need not be owned until then. `ask`
 * gets the tuple of the asked values and whether some check was in doubt, and gives back a tuple of
 * the wanted values that it fetched, or else a number that says which check failed (origin * 65536
 * + check). */
int guards_walk(Guards *g, PyObject *const *slots, Py_ssize_t count, Py_ssize_t made,
                PyObject **values);
int guards_setup(PyObject *module);

/* ---- relations (related.c) ---- */

/* a member of a group gets another value */
void group_note(Guards *g, Node *n, PyObject *value, int made);
int relations_hold(Guards *g); /* of the values that the nodes have now */
int formulas_hold(Guards *g);  /* relations between the sizes and numbers of this call */
int storages_hold(Guards *g);  /* do the same tensors share memory? */

#endif

/* What the parts of the tensor mode share: tracked_tensors.c, tracer.c and operation.c. What it is
 * for: watch/tensors/tensor_mode.py. */
#ifndef STATOR_TRACER_H
#define STATOR_TRACER_H

#include "ledger.h"

/* Tensors that share a version counter: a tensor, its views, what was detached from it. */
typedef struct AliasSet {
    PyObject_HEAD
    PyObject *version; /* an int, or None */
    Py_ssize_t epoch;  /* number of recorded writes */
    char outside;      /* does its memory belong to an input? */
    char uncounted;    /* were there writes that its counter does not show? */
    /* the set with the same memory, and another counter, that `.data` was read of; or NULL */
    struct AliasSet *memory;
} AliasSet;

/* A tensor of this segment: its node, and its fingerprint after the last operation that touched
 * it. */
typedef struct {
    PyObject_HEAD
    PyObject *node;  /* of the operation */
    PyObject *index; /* which of its results, () if it has one */
    AliasSet *alias_set;
    PyObject *print;
    PyObject *reference; /* a weak one, or None */
    Py_ssize_t epoch;
} TrackedTensor;

typedef struct {
    PyObject_HEAD
    Watcher *watcher;
    Ledger *ledger;
    PyObject *known;  /* {address: TrackedTensor} */
    PyObject *forget; /* known.pop */
    /* who gives a torch.fx.Graph, that graph once there is a node, its operations */
    PyObject *make_graph, *graph, *nodes;
    PyObject *scalars; /* {address: (number, node)}, of numbers that are nodes */
    PyObject *writers; /* the places, among the operations, of those that wrote to a tensor */
    /* {node: sizes} of tensors made by a node whose sizes the program has asked for */
    PyObject *asked;
    /* called with every operation's node and result; or NULL: all sizes are constants */
    PyObject *shapes;
    PyObject *lines; /* {(address of a code object, instruction): text} */
    PtrSet own_codes, user_codes;
    /* torch's state, and what the readers answer as long as it is like that; or None */
    PyObject *expected, *answers;
    Py_ssize_t operations;
    /* number of the probe behind which something was written or a random number drawn */
    long long last_effect;
    Py_ssize_t mutates_from; /* the place of the first operation that wrote to an input */
    char active, mutates, fails, acted;
} Tracer;

/* What `tracer_learn` was told, in this order; all owned, for good. */
typedef struct {
    PyObject *break_graph;       /* the exception that ends a recording */
    PyObject *op_infos;          /* {function: op_targets.OpInfo} */
    PyObject *spell;             /* op_targets.spell */
    PyObject *node;              /* torch.fx.Node */
    PyObject *nothing;           /* no keyword arguments */
    PyObject *strided;           /* torch.strided */
    PyObject *tensors;           /* the classes whose instances may take part */
    PyObject *simple;            /* the classes of arguments that go into the graph as they are */
    PyObject *readers;           /* functions that tell torch's state */
    PyObject *namespace, *level; /* whose entry is the forward AD level */
    Py_ssize_t level_index;      /* of that in the state */
    PyObject *folders;           /* of code that is not the user's */
    PyObject *partial;           /* functools.partial */
} TracerSetup;

extern TracerSetup tracer_knows;
extern PyTypeObject AliasSetType, TrackedTensorType, TracerType;

/* a TrackedTensor; NULL: error. New references, as all of these */
PyObject *tracked_lookup(Tracer *t, PyObject *tensor);
/* did the operation write? -1: error */
int tracked_refresh(Tracer *t, PyObject *tensors, int in_place);
int tracked_enter(Tracer *t, PyObject *result, PyObject *node, PyObject *index, PyObject *tensors);
int tracked_asked(Tracer *t, PyObject *known); /* the program asks for its sizes */
int tracked_has(Tracer *t, PyObject *value);   /* is it a tensor in the table? */
int tracer_check_state(Tracer *t);             /* -1: it is not as expected */
PyObject *tracer_node(Tracer *t, PyObject *op, PyObject *target, PyObject *args, PyObject *kwargs,
                      PyObject *label);
PyObject *tracer_arguments(Tracer *t, PyObject *values, PyObject *tensors); /* of a tuple */
PyObject *tracer_keywords(Tracer *t, PyObject *values, PyObject *tensors);  /* of a dict */
int operation_setup(PyObject *module);
void tracer_drop(const char *reason, const char *detail); /* raise */

#endif

/* The ledger, as the shortcuts see it. What it is for: watch/objects/ledger.py. */
#ifndef STATOR_LEDGER_H
#define STATOR_LEDGER_H

#include "guard_codes.h"
#include "native.h"

typedef struct Origin {
    PyObject_HEAD
    Py_ssize_t index;
    PyObject *edge, *parent, *key, *place;
    PyObject *checks;     /* a list */
    PyObject *items;      /* dict of children by ITEM, or NULL */
    PyObject *others;     /* dict of the other children, by (edge, key), or NULL */
    struct Origin *space; /* of the instance dict, once it was read; one of `others` */
    PyObject *namespace;  /* the instance dict itself */
    int touched;
} Origin;

typedef struct {
    uintptr_t key;
    Origin *origin; /* owned by the list of origins */
} LedgerSlot;

typedef struct {
    LedgerSlot *places;
    size_t mask, used;
} LedgerMap;

typedef struct Ledger {
    PyObject_HEAD
    Watcher *watcher;
    PyObject *origins, *alive;
    PyObject *place; /* the probe that the next entries are due to, or None */
    /* with which the last entry was made, if that is more than a probe; or NULL */
    PyObject *last_place;
    PyObject *check; /* the class of checks, a kind of tuple */
    PyObject *edges[EDGE_COUNT], *facts[FACT_COUNT];
    /* {type: how a constant of it is checked, None for objects, NotImplemented: ask} */
    PyObject *kinds;
    PyObject *ask_kind;  /* the same as a function of the value */
    PyObject *ask_value; /* what is expected of an instance of a subclass of `int`, `str`, ... */
    /* asked about every number and tuple that is read: is it taken for more than what it is? Or
     * NULL */
    PyObject *generalise;
    PyObject *note_tensor;      /* told of every tensor that becomes known; or NULL */
    PyObject *plans;            /* {type: {name: plan}}, see shortcuts.c */
    PyObject *callable_modules; /* {type: whether calls come to `forward` unless there are hooks} */
    LedgerMap known, constants;
    PtrSet changed; /* what the program changed of outside objects; kept alive by `alive` */
    int busy;       /* depth of functions that hold borrowed origins: it must not be closed now */
} Ledger;

extern PyTypeObject LedgerType, OriginType;

void origin_prune(Origin *o); /* the ways down, without which origins form no cycles */
Origin *map_get(const LedgerMap *m, const void *p);       /* borrowed, or NULL */
int map_add(LedgerMap *m, const void *p, Origin *origin); /* the address must not be in the map */
void map_clear(LedgerMap *m);

Origin *ledger_find(const Ledger *l, const void *value); /* borrowed, or NULL */
/* borrowed, NULL: error */
Origin *ledger_read(Ledger *l, Origin *parent, int edge, PyObject *key, PyObject *value);
int ledger_touch(Ledger *l, Origin *origin, PyObject *value);
int ledger_check(Ledger *l, Origin *origin, PyObject *fact, PyObject *expected);

/* Can a table of classes be asked about the class of a value, and the value, if it is a class? Not
 * where a metaclass compares its classes by code of its own. */
static inline int
compares_identity(const PyTypeObject *meta)
{
    return meta->tp_hash == PyType_Type.tp_hash &&
           meta->tp_richcompare == PyType_Type.tp_richcompare;
}

static inline int
tells_by_identity(PyObject *value)
{
    return compares_identity(Py_TYPE(Py_TYPE(value))) &&
           (!PyType_Check(value) || compares_identity(Py_TYPE(value)));
}

int shortcut_attribute(Ledger *l, PyObject *owner, PyObject *name);
int shortcut_registered(Ledger *l, PyObject *owner, PyObject *name);
int shortcut_module_call(Ledger *l, PyObject *module);
int shortcuts_setup(void);

#endif

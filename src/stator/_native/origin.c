/* Origins as objects, and finding them by the address of what they lead to: what ledger.c is made
 * of. */
#include "ledger.h"
#include <structmember.h>

/* Checks, and lists of them, are thousands in a recording, and the collector is not told of them:
 * an origin shows it what is in those that nobody else holds. (What somebody else holds is not
 * shown, and thus not taken for garbage.) */
static int
visit_check(PyObject *check, visitproc visit, void *arg)
{
    if (PyObject_GC_IsTracked(check) || !PyTuple_Check(check)) {
        Py_VISIT(check);
        return 0;
    }
    for (Py_ssize_t i = 0; Py_REFCNT(check) == 1 && i < PyTuple_GET_SIZE(check); i++) {
        Py_VISIT(PyTuple_GET_ITEM(check, i));
    }
    return 0;
}

static int
visit_checks(PyObject *checks, visitproc visit, void *arg)
{
    int stop = 0;
    if (checks == NULL || PyObject_GC_IsTracked(checks)) {
        Py_VISIT(checks);
        return 0;
    }
    for (Py_ssize_t i = 0; stop == 0 && Py_REFCNT(checks) == 1 && i < PyList_GET_SIZE(checks);
         i++) {
        stop = visit_check(PyList_GET_ITEM(checks, i), visit, arg);
    }
    return stop;
}

static int
origin_traverse(PyObject *self, visitproc visit, void *arg)
{
    Origin *o = (Origin *)self;
    Py_VISIT(o->edge);
    Py_VISIT(o->parent);
    Py_VISIT(o->key);
    Py_VISIT(o->place);
    Py_VISIT(o->items);
    Py_VISIT(o->others);
    Py_VISIT(o->space);
    Py_VISIT(o->namespace);
    return visit_checks(o->checks, visit, arg);
}

/* The ways down; without them origins form no cycles. */
void
origin_prune(Origin *o)
{
    Py_CLEAR(o->items);
    Py_CLEAR(o->others);
    Py_CLEAR(o->space);
    Py_CLEAR(o->namespace);
}

static int
origin_clear(PyObject *self)
{
    Origin *o = (Origin *)self;
    origin_prune(o);
    Py_CLEAR(o->edge);
    Py_CLEAR(o->parent);
    Py_CLEAR(o->key);
    Py_CLEAR(o->place);
    Py_CLEAR(o->checks);
    return 0;
}

static void
origin_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    Py_TRASHCAN_BEGIN(self, origin_dealloc)(void) origin_clear(self);
    Py_TYPE(self)->tp_free(self);
    Py_TRASHCAN_END
}

static PyMemberDef origin_members[] = {
    {"index", T_PYSSIZET, offsetof(Origin, index), READONLY, NULL},
    {"edge", T_OBJECT, offsetof(Origin, edge), READONLY, NULL},
    {"parent", T_OBJECT, offsetof(Origin, parent), READONLY, NULL},
    {"key", T_OBJECT, offsetof(Origin, key), READONLY, NULL},
    {"place", T_OBJECT, offsetof(Origin, place), READONLY, NULL},
    {"checks", T_OBJECT, offsetof(Origin, checks), READONLY, NULL},
    {NULL},
};

PyTypeObject OriginType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator._native.Origin",
    .tp_basicsize = sizeof(Origin),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "How to reach one outside value again. A ledger makes them.",
    .tp_traverse = origin_traverse,
    .tp_clear = origin_clear,
    .tp_dealloc = origin_dealloc,
    .tp_members = origin_members,
};

/* ---- origins by address ---- */

Origin *
map_get(const LedgerMap *m, const void *p)
{
    if (m->used == 0) {
        return NULL;
    }
    for (size_t i = ptr_hash((uintptr_t)p) & m->mask;; i = (i + 1) & m->mask) {
        if (m->places[i].key == (uintptr_t)p) {
            return m->places[i].origin;
        }
        if (m->places[i].key == 0) {
            return NULL;
        }
    }
}

static void
map_put(LedgerSlot *places, size_t mask, LedgerSlot place)
{
    size_t i = ptr_hash(place.key) & mask;
    while (places[i].key != 0) {
        i = (i + 1) & mask;
    }
    places[i] = place;
}

/* The address must not be in the map. */
int
map_add(LedgerMap *m, const void *p, Origin *origin)
{
    if (m->places == NULL || (m->used + 1) * 2 > m->mask + 1) {
        size_t size = m->places == NULL ? 1024 : (m->mask + 1) * 2;
        LedgerSlot *places = PyMem_Calloc(size, sizeof(LedgerSlot));
        if (places == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        for (size_t i = 0; m->places != NULL && i <= m->mask; i++) {
            if (m->places[i].key != 0) {
                map_put(places, size - 1, m->places[i]);
            }
        }
        PyMem_Free(m->places);
        m->places = places;
        m->mask = size - 1;
    }
    map_put(m->places, m->mask, (LedgerSlot){(uintptr_t)p, origin});
    m->used++;
    return 0;
}

void
map_clear(LedgerMap *m)
{
    PyMem_Free(m->places);
    *m = (LedgerMap){0};
}

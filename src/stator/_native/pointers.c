/* Sets of addresses: the probes ask them some ten thousand times per recording, so they are plain
 * hash tables. */
#include "native.h"

static int
ptrset_resize(PtrSet *s)
{
    size_t size = 16;
    while (size < s->used * 4) {
        size *= 2;
    }
    uintptr_t *keys = PyMem_Calloc(size, sizeof(uintptr_t));
    if (keys == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; s->keys != NULL && i <= s->mask; i++) {
        if (s->keys[i] > PTR_REMOVED) {
            size_t j = ptr_hash(s->keys[i]) & (size - 1);
            while (keys[j] != 0) {
                j = (j + 1) & (size - 1);
            }
            keys[j] = s->keys[i];
        }
    }
    PyMem_Free(s->keys);
    s->keys = keys;
    s->mask = size - 1;
    s->filled = s->used;
    return 0;
}

int
ptrset_add(PtrSet *s, void *p)
{
    if (ptrset_has(s, p)) {
        return 0;
    }
    /* A third of the places stays empty: searches for absent members end there. */
    if (s->keys == NULL || (s->filled + 1) * 3 > (s->mask + 1) * 2) {
        if (ptrset_resize(s) < 0) {
            return -1;
        }
    }
    size_t i = ptr_hash((uintptr_t)p) & s->mask;
    while (s->keys[i] > PTR_REMOVED) {
        i = (i + 1) & s->mask;
    }
    s->filled += s->keys[i] == 0;
    s->keys[i] = (uintptr_t)p;
    s->used++;
    if (s->owning) {
        Py_INCREF((PyObject *)p);
    }
    return 1;
}

int
ptrset_remove(PtrSet *s, void *p)
{
    if (!ptrset_has(s, p)) {
        return 0;
    }
    size_t i = ptr_hash((uintptr_t)p) & s->mask;
    while (s->keys[i] != (uintptr_t)p) {
        i = (i + 1) & s->mask;
    }
    s->keys[i] = PTR_REMOVED;
    s->used--;
    if (s->owning) {
        Py_DECREF((PyObject *)p);
    }
    return 1;
}

int
ptrset_traverse(PtrSet *s, visitproc visit, void *arg)
{
    for (size_t i = 0; s->owning && s->keys != NULL && i <= s->mask; i++) {
        if (s->keys[i] > PTR_REMOVED) {
            Py_VISIT((PyObject *)s->keys[i]);
        }
    }
    return 0;
}

void
ptrset_clear(PtrSet *s)
{
    /* Emptied first: dropping a member may run code that asks the set. */
    PtrSet old = *s;
    *s = (PtrSet){.owning = old.owning};
    for (size_t i = 0; old.owning && old.keys != NULL && i <= old.mask; i++) {
        if (old.keys[i] > PTR_REMOVED) {
            Py_DECREF((PyObject *)old.keys[i]);
        }
    }
    PyMem_Free(old.keys);
}

static inline size_t
pair_hash(Pair p)
{
    return ptr_hash(p.object ^ (p.tag * UINT64_C(0xC2B2AE3D27D4EB4F)));
}

/* Tags below the first page are numbers. */
static inline PyObject *
tag_object(Pair p)
{
    return p.tag < 4096 ? NULL : (PyObject *)(p.tag & ~(uintptr_t)3);
}

static inline PyObject *
owned_object(Pair p)
{
    return p.version ? NULL : (PyObject *)p.object;
}

int
pairset_has(const PairSet *s, Pair pair)
{
    if (s->used == 0) {
        return 0;
    }
    for (size_t i = pair_hash(pair) & s->mask;; i = (i + 1) & s->mask) {
        const Pair *p = &s->pairs[i];
        if (p->object == pair.object && p->tag == pair.tag && p->version == pair.version) {
            return 1;
        }
        if (p->object == 0) {
            return 0;
        }
    }
}

static void
pairset_put(Pair *pairs, size_t mask, Pair pair)
{
    size_t i = pair_hash(pair) & mask;
    while (pairs[i].object != 0) {
        i = (i + 1) & mask;
    }
    pairs[i] = pair;
}

static int
pairset_grow(PairSet *s)
{
    size_t size = s->pairs == NULL ? 256 : (s->mask + 1) * 2;
    Pair *pairs = PyMem_Calloc(size, sizeof(Pair));
    if (pairs == NULL) {
        return -1;
    }
    for (size_t i = 0; s->pairs != NULL && i <= s->mask; i++) {
        if (s->pairs[i].object != 0) {
            pairset_put(pairs, size - 1, s->pairs[i]);
        }
    }
    PyMem_Free(s->pairs);
    s->pairs = pairs;
    s->mask = size - 1;
    return 0;
}

int
pairset_add(PairSet *s, Pair pair)
{
    if (pairset_has(s, pair)) {
        return 0;
    }
    if ((s->pairs == NULL || (s->used + 1) * 2 > s->mask + 1) && pairset_grow(s) < 0) {
        return -1;
    }
    pairset_put(s->pairs, s->mask, pair);
    s->used++;
    Py_XINCREF(owned_object(pair));
    Py_XINCREF(tag_object(pair));
    return 1;
}

int
pairset_traverse(PairSet *s, visitproc visit, void *arg)
{
    for (size_t i = 0; s->pairs != NULL && i <= s->mask; i++) {
        if (s->pairs[i].object != 0) {
            Py_VISIT(owned_object(s->pairs[i]));
            Py_VISIT(tag_object(s->pairs[i]));
        }
    }
    return 0;
}

void
pairset_clear(PairSet *s)
{
    PairSet old = *s;
    *s = (PairSet){0};
    for (size_t i = 0; old.pairs != NULL && i <= old.mask; i++) {
        if (old.pairs[i].object != 0) {
            Py_XDECREF(owned_object(old.pairs[i]));
            Py_XDECREF(tag_object(old.pairs[i]));
        }
    }
    PyMem_Free(old.pairs);
}

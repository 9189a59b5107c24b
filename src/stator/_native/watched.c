/* Versions of dicts where CPython has none that can be used: it tells us of changes instead (dict
 * watchers).
 *
 * A dict that is asked for its version is entered in a table and watched. Before its next change,
 * or its end, CPython calls us: the entry loses its version, leaves the table, and the dict is not
 * watched any more, until it is asked for its version again, and gets another. So a dict that
 * changes often costs its writers nothing but the first change after a walk.
 *
 * The table holds addresses of dicts that are alive, and no references. Entries are used again, but
 * their memory is never given back, and no version is given twice: a place in an entry may be read
 * at any time, and reads as it did only if that very dict has not changed.
 *
 * CPython 3.13.0 does not tell of attributes that are stored in the object itself (though it has an
 * instance dict by then). Whether it does is tried out at import; if not, such dicts have no
 * version.
 *
 * Relied on: between our being told of a change and the change itself no guards are checked.
 * CPython runs no Python code there, and other watchers, which are C code too, must not either.
 */
#include "native.h"

#if DICTS_ARE_WATCHED

typedef struct WatchedDict {
    uint64_t version; /* 0: not in the table */
    PyObject *dict;   /* not owned */
    struct WatchedDict *next;
} WatchedDict;

enum { CHUNK = 256 };

static int watcher = -1;        /* of CPython; -1: there is none for us */
static int tells_of_attributes; /* that are stored in their object */
static uint64_t last_version;
static WatchedDict **table; /* chains */
static size_t room, count;
static WatchedDict *unused;

static WatchedDict **
chain_of(PyObject *dict)
{
    uintptr_t address = (uintptr_t)dict >> 4;
    return &table[(address ^ address >> 12) & (room - 1)];
}

static WatchedDict *
find(PyObject *dict)
{
    WatchedDict *entry = room == 0 ? NULL : *chain_of(dict);
    while (entry != NULL && entry->dict != dict) {
        entry = entry->next;
    }
    return entry;
}

static int
grow(void)
{
    size_t former = room;
    WatchedDict **old = table,
                **larger = PyMem_RawCalloc(former == 0 ? CHUNK : 2 * former, sizeof(WatchedDict *));
    if (larger == NULL) {
        return -1;
    }
    table = larger;
    room = former == 0 ? CHUNK : 2 * former;
    for (size_t i = 0; i < former; i++) {
        for (WatchedDict *entry = old[i], *next; entry != NULL; entry = next) {
            next = entry->next;
            WatchedDict **chain = chain_of(entry->dict);
            entry->next = *chain;
            *chain = entry;
        }
    }
    PyMem_RawFree(old);
    return 0;
}

static WatchedDict *
enter(PyObject *dict)
{
    if (count >= room && grow() < 0) {
        return NULL;
    }
    if (unused == NULL) {
        WatchedDict *chunk = PyMem_RawCalloc(CHUNK, sizeof(WatchedDict));
        for (int i = 0; chunk != NULL && i < CHUNK; i++) {
            chunk[i].next = unused;
            unused = &chunk[i];
        }
    }
    if (unused == NULL || PyDict_Watch(watcher, dict) < 0) {
        PyErr_Clear();
        return NULL;
    }
    WatchedDict *entry = unused;
    unused = entry->next;
    WatchedDict **chain = chain_of(dict);
    *entry = (WatchedDict){.version = ++last_version, .dict = dict, .next = *chain};
    *chain = entry;
    count++;
    return entry;
}

/* CPython is going to change a dict, or to free it. No exception may be set here, and none that is
 * set may be lost. */
static int
before_change(PyDict_WatchEvent event, PyObject *dict, PyObject *Py_UNUSED(key),
              PyObject *Py_UNUSED(value))
{
    WatchedDict **place = room == 0 ? NULL : chain_of(dict);
    while (place != NULL && *place != NULL && (*place)->dict != dict) {
        place = &(*place)->next;
    }
    if (place != NULL && *place != NULL) {
        WatchedDict *entry = *place;
        *place = entry->next;
        *entry = (WatchedDict){.next = unused};
        unused = entry;
        count--;
    }
    if (event != PyDict_EVENT_DEALLOCATED) {
        (void)PyDict_Unwatch(watcher, dict); /* fails only for what is no dict, or no watcher */
    }
    return 0;
}

uint64_t
dict_version(PyObject *dict)
{
    if (watcher < 0 || (dict_is_embedded(dict) && !tells_of_attributes)) {
        return 0;
    }
    WatchedDict *entry = find(dict);
    if (entry == NULL) {
        entry = enter(dict);
    }
    return entry == NULL ? 0 : entry->version;
}

const void *
dict_version_place(PyObject *dict)
{
    WatchedDict *entry = find(dict);
    return entry == NULL ? NULL : &entry->version;
}

static PyObject *
watched_dicts(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return watcher < 0 ? Py_NewRef(Py_None) : PyLong_FromSize_t(count);
}

/* Are changes of attributes told that are stored in their object? */
static int
try_attributes(void)
{
    PyObject *type = PyObject_CallFunction((PyObject *)&PyType_Type, "s(){}", "Attributes"),
             *dict = NULL;
    PyObject *object = type == NULL ? NULL : PyObject_CallNoArgs(type);
    int told = 0;
    if (object != NULL && PyObject_SetAttrString(object, "a", Py_None) == 0 &&
        (dict = PyObject_GenericGetDict(object, NULL)) != NULL && enter(dict) != NULL &&
        PyObject_SetAttrString(object, "a", Py_True) == 0 && find(dict) == NULL &&
        enter(dict) != NULL && PyObject_DelAttrString(object, "a") == 0) {
        told = find(dict) == NULL;
    }
    PyErr_Clear();
    Py_XDECREF(dict);
    Py_XDECREF(object);
    Py_XDECREF(type);
    return told;
}

/* All watchers may be taken: then dicts have no versions, and all is checked in every call. */
static void
start(void)
{
    watcher = PyDict_AddWatcher(before_change);
    PyErr_Clear();
    tells_of_attributes = watcher >= 0 && try_attributes();
}

#else

static PyObject *
watched_dicts(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    Py_RETURN_NONE;
}

static void
start(void)
{
}

#endif

static PyMethodDef functions[] = {
    {"watched_dicts", watched_dicts, METH_NOARGS,
     "How many dicts are watched for changes; None: none ever is."},
    {NULL},
};

int
watched_setup(PyObject *module)
{
    start();
    return PyModule_AddFunctions(module, functions);
}

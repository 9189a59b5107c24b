/* Shortcuts through the ledger: the reads that make up most of a run of modules, noted without
 * calling a handler.
 *
 * Each notes exactly what the handler in watch/objects/attributes.py or
 * watch/observe/module_calls.py would, and answers 1. It answers 0 wherever anything is out of the
 * ordinary: then the handler is asked, and what was noted so far does no harm. What a class says of
 * a name (the plan) and of being called is found out there, too, by the first read.
 */
#include "ledger.h"

/* What a class with the generic lookup says of a name; as in watch/objects/attributes.py. */
enum { PLAN_ABSENT, PLAN_IN_CLASS, PLAN_REGISTERED };

enum { TABLES = 3, HOOKS = 4 };
static PyObject *dict_name, *forward_name, *call_impl_name, *compiled_name, *table_names[TABLES],
    *hook_names[HOOKS];

int
shortcuts_setup(void)
{
    static const char *const tables[TABLES] = {"_parameters", "_buffers", "_modules"};
    static const char *const hooks[HOOKS] = {"_backward_hooks", "_backward_pre_hooks",
                                             "_forward_hooks", "_forward_pre_hooks"};
    dict_name = PyUnicode_InternFromString("__dict__");
    forward_name = PyUnicode_InternFromString("forward");
    call_impl_name = PyUnicode_InternFromString("_call_impl");
    compiled_name = PyUnicode_InternFromString("_compiled_call_impl");
    int failed = dict_name == NULL || forward_name == NULL || call_impl_name == NULL ||
                 compiled_name == NULL;
    for (int i = 0; i < TABLES; i++) {
        failed |= (table_names[i] = PyUnicode_InternFromString(tables[i])) == NULL;
    }
    for (int i = 0; i < HOOKS; i++) {
        failed |= (hook_names[i] = PyUnicode_InternFromString(hooks[i])) == NULL;
    }
    return failed ? -1 : 0;
}

/* ---- what the shortcuts share ---- */

/* The instance dict of a known object, itself known: 1 if it is at origin->space now, 0 if there is
 * none like that. */
static int
open_space(Ledger *l, Origin *origin, PyObject *owner)
{
    if (origin->space != NULL) {
        return 1;
    }
    if (ledger_touch(l, origin, owner) < 0) {
        return -1;
    }
    PyObject *namespace = PyObject_GenericGetAttr(owner, dict_name);
    if (namespace == NULL || !PyDict_CheckExact(namespace)) {
        Py_XDECREF(namespace);
        error_settle();
        return 0;
    }
    Origin *space = ledger_read(l, origin, EDGE_ATTR, dict_name, namespace);
    if (space == NULL || ledger_touch(l, space, namespace) < 0) {
        Py_DECREF(namespace);
        return -1;
    }
    Py_XSETREF(origin->namespace, namespace);
    Py_XSETREF(origin->space, (Origin *)Py_NewRef((PyObject *)space));
    return 1;
}

/* A key of a dict of names that nobody has changed: 1 present, 0 absent. Either is noted. */
static int
read_name(Ledger *l, Origin *place, PyObject *entries, PyObject *name)
{
    PyObject *value = Py_XNewRef(PyDict_GetItemWithError(entries, name));
    if (value == NULL) {
        return PyErr_Occurred() || ledger_check(l, place, l->facts[FACT_LACKS], name) < 0 ? -1 : 0;
    }
    Origin *found = ledger_read(l, place, EDGE_ITEM, name, value);
    Py_DECREF(value);
    return found == NULL ? -1 : 1;
}

static int
plan_for(Ledger *l, PyTypeObject *type, PyObject *name)
{
    PyObject *names = PyDict_GetItemWithError(l->plans, (PyObject *)type);
    PyObject *plan =
        names != NULL && PyDict_Check(names) ? PyDict_GetItemWithError(names, name) : NULL;
    return plan != NULL && PyLong_Check(plan) ? (int)PyLong_AsLong(plan) : -1;
}

/* ---- parts of a module ---- */

/* The three dicts, where they are plain and unchanged: 1. The references are owned by the caller in
 * any case. */
static int
find_tables(Ledger *l, PyObject *namespace, PyObject **tables)
{
    for (int i = 0; i < TABLES; i++) {
        tables[i] = Py_XNewRef(PyDict_GetItemWithError(namespace, table_names[i]));
        if (tables[i] == NULL || !PyDict_CheckExact(tables[i]) ||
            ptrset_has(&l->changed, tables[i])) {
            return PyErr_Occurred() ? -1 : 0;
        }
    }
    return 1;
}

static int
read_tables(Ledger *l, Origin *space, PyObject **tables, PyObject *name)
{
    for (int i = 0; i < TABLES; i++) {
        if (ledger_read(l, space, EDGE_ITEM, table_names[i], tables[i]) == NULL) {
            return -1;
        }
        Origin *place = ledger_find(l, tables[i]); /* where it was met first */
        if (place == NULL) {
            return 0;
        }
        int found =
            ledger_touch(l, place, tables[i]) < 0 ? -1 : read_name(l, place, tables[i], name);
        if (found != 0) {
            return found;
        }
    }
    return 1; /* in none of them, which is noted: an AttributeError follows */
}

/* `nn.Module.__getattr__` looks for a parameter, buffer or submodule. */
int
shortcut_registered(Ledger *l, PyObject *owner, PyObject *name)
{
    Origin *origin = ledger_find(l, owner);
    if (origin == NULL) {
        return 0;
    }
    l->busy++;
    PyObject *tables[TABLES] = {NULL};
    int done = open_space(l, origin, owner);
    if (done > 0) {
        done = ptrset_has(&l->changed, origin->namespace)
                   ? 0
                   : find_tables(l, origin->namespace, tables);
    }
    if (done > 0) {
        done = read_tables(l, origin->space, tables, name);
    }
    for (int i = 0; i < TABLES; i++) {
        Py_XDECREF(tables[i]);
    }
    l->busy--;
    return done;
}

/* ---- attributes ---- */

static int
read_by_plan(Ledger *l, Origin *origin, PyObject *owner, PyObject *name, int plan)
{
    int done = open_space(l, origin, owner);
    if (done <= 0) {
        return done;
    }
    PyObject *namespace = origin->namespace;
    if (ptrset_has(&l->changed, namespace)) {
        return 0;
    }
    if (plan == PLAN_ABSENT) { /* where it is in neither place, the handler has more to say */
        int present = PyDict_Contains(namespace, name);
        return present <= 0 ? present : read_name(l, origin->space, namespace, name);
    }
    int present = read_name(l, origin->space, namespace, name);
    if (present != 0 || plan != PLAN_REGISTERED) {
        return present < 0 ? -1 : 1;
    }
    done = shortcut_registered(l, owner, name);
    if (done > 0) { /* the frame of `__getattr__` that follows needs no more */
        (void)pairset_add(&l->watcher->registered, (Pair){(uintptr_t)owner, (uintptr_t)name, 0});
    }
    return done;
}

/* `owner.name` is about to be read. */
int
shortcut_attribute(Ledger *l, PyObject *owner, PyObject *name)
{
    Origin *origin = ledger_find(l, owner);
    if (origin == NULL) {
        return 0;
    }
    l->busy++;
    int plan = plan_for(l, Py_TYPE(owner), name), done = -1;
    if (!PyErr_Occurred()) {
        done = plan < 0 ? 0 : read_by_plan(l, origin, owner, name, plan);
    }
    l->busy--;
    return done;
}

/* ---- calls of modules ---- */

/* As facts.is_unhooked: 1 if nothing stands between the call of a module and its `forward`. */
static int
is_unhooked(PyObject *namespace)
{
    for (int i = 0; i < HOOKS; i++) {
        PyObject *hooks = Py_XNewRef(PyDict_GetItemWithError(namespace, hook_names[i]));
        int hooked = hooks == NULL ? 1 : PyObject_IsTrue(hooks);
        Py_XDECREF(hooks);
        if (hooked != 0) {
            return 0;
        }
    }
    PyObject *compiled = PyDict_GetItemWithError(namespace, compiled_name);
    if ((compiled != NULL && compiled != Py_None) || PyErr_Occurred()) {
        return 0;
    }
    return PyDict_Contains(namespace, forward_name) == 0 &&
           PyDict_Contains(namespace, call_impl_name) == 0;
}

/* Has the program changed a module's instance dict or one of the containers in it? */
static int
is_changed(Ledger *l, PyObject *namespace)
{
    PyObject *key, *value;
    Py_ssize_t pos = 0;
    int changed = ptrset_has(&l->changed, namespace);
    while (l->changed.used > 0 && !changed && PyDict_Next(namespace, &pos, &key, &value)) {
        changed = ptrset_has(&l->changed, value);
    }
    return changed;
}

int
shortcut_module_call(Ledger *l, PyObject *module)
{
    Origin *origin = ledger_find(l, module);
    if (origin == NULL) {
        return 0;
    }
    l->busy++;
    int done = PyDict_GetItemWithError(l->callable_modules, (PyObject *)Py_TYPE(module)) == Py_True;
    if (done) {
        PyObject *namespace = PyObject_GenericGetAttr(module, dict_name);
        done = namespace != NULL && PyDict_CheckExact(namespace) && is_unhooked(namespace) &&
               !is_changed(l, namespace);
        Py_XDECREF(namespace);
    }
    if (done) {
        done = ledger_touch(l, origin, module) == 0 &&
               ledger_check(l, origin, l->facts[FACT_UNHOOKED], Py_None) == 0;
    }
    l->busy--;
    return PyErr_Occurred() ? -1 : done;
}

/* ---- from the hook and the probes ---- */

/* A shortcut that fails is none: the handler will see the same and report it. */
static int
settle(int done)
{
    if (done < 0) {
        error_settle();
        return 0;
    }
    return done;
}

int
watcher_read_attribute(Watcher *w, Probe *p, PyObject *owner)
{
    Ledger *l = (Ledger *)w->ledger;
    if (owner == NULL || !PyUnicode_Check(p->arg) || ledger_find(l, owner) == NULL) {
        return 0;
    }
    Shield s;
    shield_up(&s, &thread_here, w);
    Py_INCREF(l);
    Py_INCREF(owner); /* the probe is held by its copy, and the name by it */
    Py_XSETREF(l->place, Py_NewRef((PyObject *)p));
    int done = settle(shortcut_attribute(l, owner, p->arg));
    Py_DECREF(owner);
    Py_DECREF(l);
    shield_down(&s);
    return done;
}

/* Noted already, and the program has changed nothing since that the lookup goes through. */
static int
is_registered(Watcher *w, Ledger *l, Pair pair)
{
    if (!pairset_has(&w->registered, pair)) {
        return 0;
    }
    Origin *origin = ledger_find(l, (void *)pair.object);
    return origin != NULL && origin->namespace != NULL && !is_changed(l, origin->namespace);
}

int
watcher_read_registered(Watcher *w, PyObject *owner, PyObject *name)
{
    Ledger *l = (Ledger *)w->ledger;
    if (l == NULL || name == NULL || !PyUnicode_CheckExact(name) || ledger_find(l, owner) == NULL) {
        return 0;
    }
    Pair pair = {(uintptr_t)owner, (uintptr_t)name, 0};
    if (is_registered(w, l, pair)) {
        return 1;
    }
    Shield s;
    shield_up(&s, &thread_here, w);
    Py_INCREF(l); /* the frame holds the others */
    int done = settle(shortcut_registered(l, owner, name));
    Py_DECREF(l);
    if (done) {
        (void)pairset_add(&w->registered, pair);
    }
    shield_down(&s);
    return done;
}

int
watcher_call_module(Watcher *w, PyObject *module)
{
    Ledger *l = (Ledger *)w->ledger;
    if (l == NULL || ledger_find(l, module) == NULL) {
        return 0;
    }
    Shield s;
    shield_up(&s, &thread_here, w);
    Py_INCREF(l);
    int done = settle(shortcut_module_call(l, module));
    Py_DECREF(l);
    shield_down(&s);
    if (done) {
        (void)filter_call_noted(w, module, 1);
    }
    return done;
}

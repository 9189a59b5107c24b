/* One walk over the nodes of a recording: fetch each value, check it, and gather what the replay needs.
 *
 * What a version saves: a dict whose version has not moved since all guards held has the same objects under its keys.
 * Those of its children that are nothing but constants are then passed over, and the others are not fetched again;
 * what can change without that version (types, tensors, other containers) is still checked. See docs/design/guards.md.
 *
 * Values are not owned during the walk. That is sound because nothing here runs Python code: no key is compared by code
 * of its own, and no collection starts.
 */
#include "fetch.h"

static Py_ssize_t
length(PyObject *value)
{
    if (PyTuple_Check(value) || PyList_Check(value)) {
        return Py_SIZE(value);
    }
    if (PyDict_Check(value)) {
        return PyDict_GET_SIZE(value);
    }
    return PyAnySet_Check(value) ? PySet_GET_SIZE(value) : -1;
}

static inline int
no_hooks(PyObject *const *dicts)
{
    return (PyDict_GET_SIZE(dicts[0]) | PyDict_GET_SIZE(dicts[1]) | PyDict_GET_SIZE(dicts[2]) |
            PyDict_GET_SIZE(dicts[3])) == 0;
}

/* Of a module's instance dict: no hooks, and nothing in place of the methods that lead to `forward`. While the version of
 * the dict stands, the dicts of hooks are the same, and only their sizes can have changed. */
static int
unhooked(Walk *w, const Check *c, PyObject *dict, int stands)
{
    if (!stands) {
        if (!PyDict_CheckExact(dict) || !dict_is_text(dict)) {
            w->unsure = 1;
            return 0;
        }
        for (int i = 0; i < HOOKS; i++) {
            c->hooks[i] = PyDict_GetItemWithError(dict, hook_names[i]);
            if (c->hooks[i] == NULL || !PyDict_Check(c->hooks[i])) {
                w->unsure = c->hooks[i] != NULL;
                return 0;
            }
        }
        PyObject *compiled = PyDict_GetItemWithError(dict, method_names[2]);
        if (PyDict_GetItemWithError(dict, method_names[0]) != NULL ||
            PyDict_GetItemWithError(dict, method_names[1]) != NULL || (compiled != NULL && compiled != Py_None)) {
            return 0;
        }
    }
    return no_hooks(c->hooks);
}

/* Does a check hold? Whatever C code cannot tell is left to `ask`, and counts as held until then; where that is not to be
 * expected, the walk is unsure. */
static int
holds(Walk *w, const Check *c, PyObject *value, int stands)
{
    Py_ssize_t hint = 0;
    switch (c->fact) {
    case FACT_TYPE:
        return (PyObject *)Py_TYPE(value) == c->expected;
    case FACT_TENSOR:
        return tensor_holds(c->tensor, value);
    case FACT_IS:
        return value == c->expected;
    case FACT_EQUAL: {
        int same = same_constant(value, c->expected);
        w->ask |= same < 0;
        return same;
    }
    case FACT_LEN: {
        Py_ssize_t found = length(value);
        w->unsure |= found < 0;
        return found == c->number;
    }
    case FACT_KEYS:
        return same_keys(w, value, c->expected);
    case FACT_HAS:
        return PyDict_Check(value) && dict_find(w, value, c->expected, c->number, &hint) != NULL;
    case FACT_LACKS:
        return PyDict_Check(value) && dict_find(w, value, c->expected, c->number, &hint) == NULL;
    case FACT_CODE:
        if (!PyFunction_Check(value)) {
            w->unsure = 1;
            return 0;
        }
        return ((PyFunctionObject *)value)->func_code == PyTuple_GET_ITEM(c->expected, 0) &&
               ((PyFunctionObject *)value)->func_globals == PyTuple_GET_ITEM(c->expected, 1);
    case FACT_SPECIALS:
        w->ask |= !PyType_Check(value) || type_version_tag((PyTypeObject *)value) != (size_t)c->number;
        return 1;
    case FACT_NO_ENTRY:
        return PyType_Check(value) && _PyType_Lookup((PyTypeObject *)value, c->expected) == NULL;
    case FACT_UNSET:
        return PyCell_Check(value) && PyCell_GET(value) == NULL;
    case FACT_NO_SLOT:
        return PyObject_TypeCheck(value, ((PyMemberDescrObject *)c->expected)->d_common.d_type) &&
               member(value, c->expected) == NULL;
    case FACT_UNHOOKED:
        return unhooked(w, c, value, stands);
    default: /* ASK */
        w->ask = 1;
        return 1;
    }
}

/* ---- the walk ---- */

static inline uint64_t
version_of(const Node *n, PyObject *value, int same)
{
    if (n->version == VERSION_DICT) {
        return same || n->edge == EDGE_NAMESPACE || PyDict_Check(value) ? dict_version(value) : 0;
    }
    return PyType_Check(value) ? type_version_tag((PyTypeObject *)value) : 0;
}

/* The commonest checks, without a call. */
static inline int
quickly_holds(Walk *w, const Check *c, PyObject *value, int stands)
{
    if (c->fact == FACT_TYPE) {
        return (PyObject *)Py_TYPE(value) == c->expected;
    }
    if (c->fact == FACT_TENSOR) {
        return tensor_holds(c->tensor, value);
    }
    return c->fact == FACT_UNHOOKED && stands ? no_hooks(c->hooks) : holds(w, c, value, stands);
}

/* All checks of one node. `same`: its value is the object that was checked before. `stands`: so is its version. */
static inline int
node_holds(Guards *g, Walk *w, const Node *n, PyObject *value, int same, int stands)
{
    const Check *c = g->checks + n->check, *end = c + n->live;
    for (; c < end; c++) {
        if (!quickly_holds(w, c, value, stands)) {
            goto failed;
        }
    }
    if (!stands) {
        for (end += n->own; c < end; c++) {
            if (!holds(w, c, value, 0)) {
                goto failed;
            }
        }
    }
    if (!same) {
        c = g->checks + n->check + n->live + n->own;
        for (end = c + n->fixed; c < end; c++) {
            if (!holds(w, c, value, stands)) {
                goto failed;
            }
        }
    }
    return 1;
failed:
    g->failed_origin = c->origin;
    g->failed_check = c->index;
    return 0;
}

/* A group's value changes: is it still different from all others? If that is not clear, all are compared later. An object
 * that was made for this call (`made`) is. */
static void
group_note(Guards *g, Node *n, PyObject *value, int made)
{
    int index = (int)(n - g->nodes);
    for (int i = 0; i < g->group_count; i++) {
        Group *group = &g->groups[i];
        int at = 0, clash = 0;
        while (at < group->size && group->nodes[at] != index) {
            at++;
        }
        if (at == group->size || !group->holds) {
            continue;
        }
        for (int k = 0; k < group->size && !made; k++) {
            clash |= group->values[k] == value;
        }
        group->values[at] = value;
        group->holds = !clash;
    }
}

static int
by_address(const void *a, const void *b)
{
    uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return x < y ? -1 : x > y;
}

static int
group_holds(Guards *g, Group *group)
{
    if (group->holds) {
        return 1;
    }
    uintptr_t *sorted = PyMem_Malloc((size_t)group->size * sizeof(uintptr_t));
    if (sorted == NULL) {
        return 0;
    }
    for (int k = 0; k < group->size; k++) {
        group->values[k] = g->nodes[group->nodes[k]].value;
        sorted[k] = (uintptr_t)group->values[k];
    }
    qsort(sorted, (size_t)group->size, sizeof(uintptr_t), by_address);
    group->holds = 1;
    for (int k = 1; k < group->size; k++) {
        group->holds &= sorted[k] != sorted[k - 1];
    }
    PyMem_Free(sorted);
    return group->holds;
}

static int
relations_hold(Guards *g)
{
    if (!g->related_hold) {
        for (int i = 0; i < g->relation_count; i++) {
            const Relation *r = &g->relations[i];
            if ((g->nodes[r->a].value == g->nodes[r->b].value) != r->same) {
                g->failed_origin = r->origin;
                g->failed_check = r->index;
                return 0;
            }
        }
        g->related_hold = 1;
    }
    g->failed_origin = g->failed_check = -1;
    for (int i = 0; i < g->group_count; i++) {
        if (!group_holds(g, &g->groups[i])) {
            return 0;
        }
    }
    return 1;
}

/* Relations between the sizes and numbers of this call. */
static int
formulas_hold(Guards *g)
{
    for (int i = 0; i < g->term_count; i++) {
        g->term_values[i] = g->nodes[g->terms[i]].value;
    }
    for (int i = 0; i < g->formula_count; i++) {
        if (!formula_holds(&g->formulas[i], g->term_values)) {
            return 0;
        }
    }
    return 1;
}

/* What failed deep in the tree may fail again: fetch just that, and what it hangs on. 0 if it does. Changes no node. */
static int
tripwire_holds(Guards *g, Walk *w)
{
    int path[MAX_PATH], length = 0;
    for (int i = g->tripwire; i >= 0; i = g->nodes[i].parent) {
        if (length == MAX_PATH) {
            return 1;
        }
        path[length++] = i;
    }
    PyObject *value = NULL;
    while (length > 0) {
        Node *n = &g->nodes[path[--length]];
        value = n->edge == EDGE_CALL ? NULL : fetch(w, n, value);
        if (value == NULL) {
            return 1; /* the walk itself will tell */
        }
    }
    const Node *n = &g->nodes[g->tripwire];
    const Check *c = g->checks + n->check, *end = c + n->live + n->own + n->fixed;
    for (; c < end && !w->unsure; c++) {
        if (c->fact != FACT_UNHOOKED && !holds(w, c, value, 0)) {
            g->failed_origin = c->origin;
            g->failed_check = c->index;
            return 0;
        }
    }
    return 1;
}

/* Fetches the value of a node. 0 if there is none, or the walk is unsure. */
static inline int
node_fetch(Guards *g, Walk *w, Node *n, const Node *parent)
{
    PyObject *value = fetch(w, n, parent == NULL ? NULL : parent->value);
    if (value == NULL || w->unsure) {
        g->failed_origin = n->origin;
        g->failed_check = -1;
        return 0;
    }
    if (value != n->value && n->related) {
        g->related_hold &= !(n->related & IN_RELATION);
        group_note(g, n, value, n->edge == EDGE_LOCAL && n->number == w->made);
    }
    n->value = value;
    return 1;
}

/* Visits every node that must be. 1 if all hold so far. */
static int
visit(Guards *g, Walk *w)
{
    Node *nodes = g->nodes;
    for (int i = 0, end = g->node_count; i < end;) {
        Node *n = &nodes[i];
        const Node *parent = n->parent < 0 ? NULL : &nodes[n->parent];
        int stands = 0, same = n->is_entry && parent->stands; /* then it is what it was, and `value` is good */
        if (!same && !node_fetch(g, w, n, parent)) {
            return 0;
        }
        if (n->version != VERSION_NONE) {
            uint64_t version = version_of(n, n->value, same);
            stands = version != 0 && version == n->seen;
            if (!stands) {
                n->seen = version;
                g->fresh[g->fresh_count++] = i;
            }
            n->stands = (unsigned char)stands;
            same |= stands; /* no other dict or class has that version */
        }
        if (!node_holds(g, w, n, n->value, same, stands) || w->unsure) {
            g->tripwire = i < LONG_WALK ? g->tripwire : i;
            return 0;
        }
        i = stands ? n->past_fixed : i + 1;
    }
    return 1;
}

/* What was noted in this walk does not count: not all guards held. */
static void
forget(Guards *g)
{
    for (int i = 0; i < g->fresh_count; i++) {
        g->nodes[g->fresh[i]].seen = 0;
    }
    g->fresh_count = 0;
}

static PyObject *
gather(Guards *g, const int *indices, int count)
{
    PyObject *values = PyTuple_New(count);
    for (int i = 0; values != NULL && i < count; i++) {
        PyTuple_SET_ITEM(values, i, Py_NewRef(indices[i] < 0 ? Py_None : g->nodes[indices[i]].value));
    }
    return values;
}

/* Puts what `ask` fetched into the gaps of `values`. */
static int
fill(Guards *g, PyObject *values, PyObject *answer)
{
    Py_ssize_t next = 0;
    for (int i = 0; i < g->wanted_count; i++) {
        if (g->wanted[i] < 0) {
            if (next >= PyTuple_GET_SIZE(answer)) {
                return -1;
            }
            Py_DECREF(PyTuple_GET_ITEM(values, i)); /* None */
            PyTuple_SET_ITEM(values, i, Py_NewRef(PyTuple_GET_ITEM(answer, next++)));
        }
    }
    return next == PyTuple_GET_SIZE(answer) ? 0 : -1;
}

/* Python code runs: other threads, and this one, may walk here meanwhile. So nothing counts as noted until it is done,
 * and only if nobody did. */
static int
ask(Guards *g, PyObject *asked, int in_doubt, PyObject *values)
{
    unsigned long long walk = g->walks;
    int fresh = g->fresh_count;
    uint64_t *kept = PyMem_Malloc((size_t)(fresh + 1) * sizeof(uint64_t));
    for (int i = 0; kept != NULL && i < fresh; i++) {
        kept[i] = g->nodes[g->fresh[i]].seen;
    }
    forget(g);
    PyObject *arguments[] = {asked, in_doubt ? Py_True : Py_False};
    PyObject *answer = PyObject_Vectorcall(g->ask, arguments, 2, NULL);
    int outcome = UNSURE;
    if (answer != NULL && PyTuple_Check(answer)) {
        outcome = fill(g, values, answer) < 0 ? UNSURE : HOLDS;
    }
    else if (answer != NULL && PyLong_Check(answer)) {
        long failed = PyLong_AsLong(answer);
        g->failed_origin = (int)(failed >> 16);
        g->failed_check = (int)(failed & 0xFFFF);
        outcome = FAILS;
    }
    Py_XDECREF(answer);
    PyErr_Clear();
    if (outcome == HOLDS && g->walks == walk && kept != NULL) {
        for (int i = 0; i < fresh; i++) { /* `fresh` itself was not touched: nobody walked */
            g->nodes[g->fresh[i]].seen = kept[i];
        }
    }
    PyMem_Free(kept);
    return outcome;
}

int
guards_walk(Guards *g, PyObject *const *slots, Py_ssize_t count, Py_ssize_t made, PyObject **values)
{
    Walk w; /* `owned` is filled as far as `owned_count` says */
    w.slots = slots;
    w.slot_count = count;
    w.made = made;
    w.owned_count = w.ask = w.unsure = 0;
    PyObject *asked = NULL;
    int outcome = FAILS;
    *values = NULL;
    g->walks++;
    g->fresh_count = 0;
    int collects = PyGC_Disable(); /* on 3.11 any new object may start a collection, and that runs Python code */
    int tripped = !g->cleared && g->tripwire >= 0 && !tripwire_holds(g, &w);
    w.ask = w.unsure = 0;
    if (!g->cleared && !tripped && visit(g, &w) && relations_hold(g) && formulas_hold(g)) {
        *values = gather(g, g->wanted, g->wanted_count);
        int asks = w.ask || g->always_ask;
        asked = asks ? gather(g, g->asked, w.ask ? g->asked_count : g->always_count) : NULL;
        outcome = *values == NULL || (asks && (asked == NULL || g->ask == NULL)) ? UNSURE : HOLDS;
    }
    if (w.unsure) {
        outcome = UNSURE;
    }
    if (collects) {
        PyGC_Enable();
    }
    if (outcome != HOLDS) {
        PyErr_Clear();
        forget(g);
    }
    else if (asked != NULL) {
        outcome = ask(g, asked, w.ask, *values);
    }
    if (outcome != HOLDS) {
        Py_CLEAR(*values);
    }
    Py_XDECREF(asked);
    for (int i = 0; i < w.owned_count; i++) {
        Py_DECREF(w.owned[i]);
    }
    return outcome;
}

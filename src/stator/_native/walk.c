/* One walk over the nodes of a recording: fetch each value, check it, and gather what the replay
 * needs.
 *
 * What a version saves: a dict whose version has not moved since all guards held has the same
 * objects under its keys. Those of its children that are nothing but constants are then passed
 * over, and the others are not fetched again; what can change without that version (types, tensors,
 * other containers) is still checked. See docs/design/guards.md.
 *
 * Values are not owned during the walk. That is sound because nothing here runs Python code: no key
 * is compared by code of its own, and no collection starts.
 */
#include "digest.h"
#include "fetch.h"

/* A walk of so many nodes is a long one; a tripwire is taken away when the walk held so often
 * behind it; a digest is made anew when so many nodes could have been covered by it. */
enum { LONG_WALK = 8, UNTRIPPED = 64, SETTLED = 16 };

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

/* Of a module's instance dict: no hooks, and nothing in place of the methods that lead to
 * `forward`. While the version of the dict stands, the dicts of hooks are the same, and only their
 * sizes can have changed. */
static int
unhooked(Walk *w, const GuardCheck *c, PyObject *dict, int stands)
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
            PyDict_GetItemWithError(dict, method_names[1]) != NULL ||
            (compiled != NULL && compiled != Py_None)) {
            return 0;
        }
    }
    return no_hooks(c->hooks);
}

/* Does a check hold? Whatever C code cannot tell is left to `ask`, and counts as held until then;
 * where that is not to be expected, the walk is unsure. */
static int
holds(Walk *w, const GuardCheck *c, PyObject *value, int stands)
{
    switch (c->fact) {
    case CHECK_TYPE:
        return (PyObject *)Py_TYPE(value) == c->expected;
    case CHECK_TENSOR:
        return tensor_holds(c->tensor, value);
    case CHECK_IS:
        return value == c->expected;
    case CHECK_EQUAL: {
        int same = same_constant(value, c->expected);
        w->ask |= same < 0;
        return same;
    }
    case CHECK_LEN: {
        Py_ssize_t found = length(value);
        w->unsure |= found < 0;
        return found == c->number;
    }
    case CHECK_KEYS:
        return same_keys(w, value, c->expected);
    case CHECK_HAS:
        return PyDict_Check(value) && dict_find(w, value, c->expected, c->number) != NULL;
    case CHECK_LACKS:
        return PyDict_Check(value) && dict_find(w, value, c->expected, c->number) == NULL;
    case CHECK_CODE:
        if (!PyFunction_Check(value)) {
            w->unsure = 1;
            return 0;
        }
        return ((PyFunctionObject *)value)->func_code == PyTuple_GET_ITEM(c->expected, 0) &&
               ((PyFunctionObject *)value)->func_globals == PyTuple_GET_ITEM(c->expected, 1);
    case CHECK_SPECIALS:
        w->ask |=
            !PyType_Check(value) || type_version_tag((PyTypeObject *)value) != (size_t)c->number;
        return 1;
    case CHECK_NO_ENTRY:
        return PyType_Check(value) && class_find(w, (PyTypeObject *)value, c->expected) == NULL;
    case CHECK_UNSET:
        return PyCell_Check(value) && PyCell_GET(value) == NULL;
    case CHECK_NO_SLOT:
        return PyObject_TypeCheck(value, ((PyMemberDescrObject *)c->expected)->d_common.d_type) &&
               member(value, c->expected) == NULL;
    case CHECK_UNHOOKED:
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
        return same || n->edge == FETCH_NAMESPACE || PyDict_Check(value) ? dict_version(value) : 0;
    }
    return PyType_Check(value) ? type_version_tag((PyTypeObject *)value) : 0;
}

/* The commonest checks, without a call. */
static inline int
quickly_holds(Walk *w, const GuardCheck *c, PyObject *value, int stands)
{
    if (c->fact == CHECK_TYPE) {
        return (PyObject *)Py_TYPE(value) == c->expected;
    }
    if (c->fact == CHECK_TENSOR) {
        return tensor_holds(c->tensor, value);
    }
    return c->fact == CHECK_UNHOOKED && stands ? no_hooks(c->hooks) : holds(w, c, value, stands);
}

/* All checks of one node. `same`: its value is the object that was checked before. `stands`: so is
 * its version. */
static inline int
node_holds(Guards *g, Walk *w, const Node *n, PyObject *value, int same, int stands)
{
    const GuardCheck *c = g->checks + n->check, *end = c + n->live;
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

/* ---- tripwires ---- */

/* What failed deep in the tree may fail again, when another recording is the one that fits. Such
 * places are looked at first. So of recordings that differ in little, all but the right one are
 * told by that little, and what they have in common is checked once. */
static void
note_tripwire(Guards *g, int node)
{
    int last = 0;
    while (last < g->tripwire_count && g->tripwires[last] != node) {
        last++;
    }
    if (last == g->tripwire_count) {
        g->tripwire_count += last < TRIPWIRES;
        last -= last == TRIPWIRES;
    }
    memmove(g->tripwires + 1, g->tripwires, (size_t)last * sizeof(int));
    g->tripwires[0] = node;
    g->untripped = 0;
}

/* Fetches one node, and what it hangs on. 0 if a check of it does not hold. Changes no node. */
static int
tripwire_holds(Guards *g, Walk *w, int node)
{
    int path[MAX_PATH], length = 0;
    for (int i = node; i >= 0; i = g->nodes[i].parent) {
        if (length == MAX_PATH) {
            return 1;
        }
        path[length++] = i;
    }
    PyObject *value = NULL;
    for (int stands = 0; length > 0;) {
        Node *n = &g->nodes[path[--length]];
        g->visited++;
        value = n->is_entry && stands                            ? n->value
                : n->edge == FETCH_CALL || n->edge == FETCH_GRAD ? NULL
                                                                 : fetch(w, n, value);
        if (value == NULL) {
            return 1; /* the walk itself will tell */
        }
        stands = n->version != VERSION_NONE && n->seen != 0 && version_of(n, value, 0) == n->seen;
    }
    const Node *n = &g->nodes[node];
    const GuardCheck *c = g->checks + n->check, *end = c + n->live + n->own + n->fixed;
    for (; c < end && !w->unsure; c++) {
        if (c->fact != CHECK_UNHOOKED && !holds(w, c, value, 0)) {
            g->failed_origin = c->origin;
            g->failed_check = c->index;
            return w->unsure;
        }
    }
    return 1;
}

static int
tripwires_hold(Guards *g, Walk *w)
{
    for (int i = 0; i < g->tripwire_count; i++) {
        if (!tripwire_holds(g, w, g->tripwires[i])) {
            note_tripwire(g, g->tripwires[i]);
            return 0;
        }
    }
    if (g->tripwire_count > 0 && ++g->untripped > UNTRIPPED) {
        g->tripwire_count--;
        g->untripped = 0;
    }
    return 1;
}

/* ---- visiting ---- */

/* A node on which the digest relies has another value or version. */
static inline void
note_move(Guards *g, Node *n)
{
    g->moved |= n->covered;
    n->restless |= n->covered;
}

/* A node has another value than before. */
static void
note_change(Guards *g, Node *n, PyObject *value, Py_ssize_t made)
{
    note_move(g, n);
    if (n->related) {
        g->related_hold &= !(n->related & IN_RELATION);
        group_note(g, n, value, n->edge == FETCH_LOCAL && n->number == made);
    }
}

/* Fetches the value of a node. 0 if there is none, or the walk is unsure. */
static inline int
node_fetch(Guards *g, Walk *w, Node *n, const Node *parent)
{
    PyObject *owner = parent == NULL ? NULL : parent->value, *value;
    if (n->edge == FETCH_KEYED) {
        value = PyDict_Check(owner) ? dict_find_object(owner, g->nodes[n->number].value, &n->hint)
                                    : NULL;
    }
    else {
        value = fetch(w, n, owner);
    }
    if (value == NULL || w->unsure) {
        g->failed_origin = n->origin;
        g->failed_check = -1;
        return 0;
    }
    if (value != n->value && (n->related | n->covered)) {
        note_change(g, n, value, w->made);
    }
    n->value = value;
    return 1;
}

/* Does the version of a node's value stand? If not, it is noted. */
static inline int
node_stands(Guards *g, Walk *w, Node *n, int same)
{
    int made = n->edge == FETCH_LOCAL && n->number == w->made; /* seen once, then never again */
    uint64_t version = made ? 0 : version_of(n, n->value, same);
    n->stands = version != 0 && version == n->seen;
    if (!n->stands) {
        note_move(g, n);
        n->seen = version;
        if (version != 0) {
            g->fresh[g->fresh_count++] = (int)(n - g->nodes);
        }
    }
    return n->stands;
}

/* Fetches and checks one node. 1 if it holds. */
static inline int
visit_node(Guards *g, Walk *w, Node *n)
{
    const Node *parent = n->parent < 0 ? NULL : &g->nodes[n->parent];
    /* then it is what it was, and `value` is good */
    int stands = 0, same = n->is_entry && parent->stands;
    g->visited++;
    if (!same && !node_fetch(g, w, n, parent)) {
        return 0;
    }
    if (n->version != VERSION_NONE) {
        stands = node_stands(g, w, n, same);
        same |= stands; /* no other dict or class has that version */
    }
    return node_holds(g, w, n, n->value, same, stands) && !w->unsure;
}

/* Visits every node that must be. 1 if all hold so far. */
static int
visit(Guards *g, Walk *w)
{
    Node *nodes = g->nodes;
    for (int i = 0, end = g->node_count; i < end;
         i = nodes[i].stands ? nodes[i].past_fixed : i + 1) {
        if (!visit_node(g, w, &nodes[i])) {
            if (i >= LONG_WALK) {
                note_tripwire(g, i);
            }
            return 0;
        }
    }
    return 1;
}

/* Does everything read as it did when the digest was made? 0: it does not, which says nothing about
 * the guards. */
static int
digest_holds(Guards *g, Walk *w)
{
    Digest *d = g->digest;
    const Word *word = d->words;
    for (const Stop *stop = d->stops;; stop++) {
        for (const Word *end = d->words + stop->words; word < end; word++) {
            if (*word->place != word->expected) {
                return 0;
            }
        }
        if (stop->node < 0) {
            break;
        }
        Node *n = &g->nodes[stop->node];
        if (!visit_node(g, w, n) || g->moved) {
            return 0;
        }
        d->settled += n->stands && !n->covered;
    }
    for (const TensorStop *t = d->tensors, *end = t + d->tensor_count; t < end; t++) {
        if (!tensor_holds(t->facts, t->value)) {
            return 0;
        }
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
        PyTuple_SET_ITEM(values, i,
                         Py_NewRef(indices[i] < 0 ? Py_None : g->nodes[indices[i]].value));
    }
    return values;
}

/* The wanted values, when the digest held. */
static PyObject *
gather_wanted(Guards *g)
{
    Digest *d = g->digest;
    for (int i = 0; i < d->loose_count; i++) {
        d->wanted[d->loose[i]] = g->nodes[g->wanted[d->loose[i]]].value;
    }
    PyObject *values = PyTuple_New(g->wanted_count);
    for (int i = 0; values != NULL && i < g->wanted_count; i++) {
        PyTuple_SET_ITEM(values, i, Py_NewRef(d->wanted[i]));
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

/* Python code runs: other threads, and this one, may walk here meanwhile. So nothing counts as
 * noted until it is done, and only if nobody did. */
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
    PyObject *error = error_take();
    if (error != NULL) {
        error_send_on(error);
        Py_DECREF(error);
    }
    if (outcome == HOLDS && g->walks == walk && kept != NULL) {
        for (int i = 0; i < fresh; i++) { /* `fresh` itself was not touched: nobody walked */
            g->nodes[g->fresh[i]].seen = kept[i];
        }
    }
    PyMem_Free(kept);
    return outcome;
}

/* All guards but torch's state, and but what is left to `ask`. */
static int
all_hold(Guards *g, Walk *w, PyObject **values)
{
    if (g->cleared || !tripwires_hold(g, w)) {
        return 0;
    }
    w->ask = w->unsure = 0;
    if (g->digest != NULL && digest_holds(g, w) && relations_hold(g) && formulas_hold(g) &&
        storages_hold(g)) {
        *values = gather_wanted(g);
        g->digest->uses++;
        g->digested++;
        if (g->digest->settled > SETTLED) {
            digest_settle(g);
        }
        return 1;
    }
    forget(g);
    w->ask = w->unsure = 0;
    if (!visit(g, w) || !relations_hold(g) || !formulas_hold(g) || !storages_hold(g)) {
        return 0;
    }
    *values = gather(g, g->wanted, g->wanted_count);
    if (g->digest != NULL) {
        digest_drop(g); /* its words are not those of now */
    }
    if (g->patience-- <= 0) {
        digest_make(g);
    }
    return 1;
}

/* In builds for tests, whoever runs Python code inside of a walk ends the process: what the walk
 * has borrowed could be gone. Nothing else evaluates a frame meanwhile, for the walk never lets go
 * of the GIL. */
#ifdef STATOR_CHECK_WALK
static PyObject *
stray_frame(PyThreadState *Py_UNUSED(thread), struct _PyInterpreterFrame *Py_UNUSED(frame),
            int Py_UNUSED(throwing))
{
    Py_FatalError("a walk over guards has run Python code");
}

#define WALK_BEGINS                                                                                \
    PyInterpreterState *here = PyInterpreterState_Get();                                           \
    _PyFrameEvalFunction former = _PyInterpreterState_GetEvalFrameFunc(here);                      \
    _PyInterpreterState_SetEvalFrameFunc(here, stray_frame)
#define WALK_ENDS _PyInterpreterState_SetEvalFrameFunc(here, former)
#else
#define WALK_BEGINS ((void)0)
#define WALK_ENDS ((void)0)
#endif

int
guards_walk(Guards *g, PyObject *const *slots, Py_ssize_t count, Py_ssize_t made, PyObject **values)
{
    Walk w; /* `owned` is filled as far as `owned_count` says */
    w.slots = slots;
    w.slot_count = count;
    w.made = made;
    w.owned = w.in_place;
    w.owned_room = OWNED_IN_PLACE;
    w.owned_count = w.ask = 0;
    PyObject *asked = NULL;
    int outcome = FAILS;
    *values = NULL;
    g->walks++;
    g->fresh_count = g->moved = 0;
    /* the getters would ask them */
    w.unsure = tensor_places.way != TENSOR_LAYOUT && state_has_function_modes();
    int collects = ALLOCATIONS_COLLECT && PyGC_Disable();
    WALK_BEGINS;
    if (!w.unsure && all_hold(g, &w, values)) {
        int asks = w.ask || g->always_ask;
        asked = asks ? gather(g, g->asked, w.ask ? g->asked_count : g->always_count) : NULL;
        outcome = *values == NULL || (asks && (asked == NULL || g->ask == NULL)) ? UNSURE : HOLDS;
    }
    WALK_ENDS;
    if (g->moved && g->digest != NULL) {
        digest_drop(g);
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
    let_go(&w);
    return outcome;
}

/* The digest of guards that held: the words of memory that the walk read, and what stood there.
 *
 * A model's guards hold for the same reasons in every call: the same types, the same dicts with the
 * same versions, no hooks. When a walk has found all that, it is written down as a list of places,
 * to be compared one after the other without deciding anything again. If all of them read as they
 * did, the walk would come to the same end. If one does not, the walk is made.
 *
 * A place is believed to exist only behind the places that prove it: an object is read after the
 * word that holds it, and that one after the version of its dict, from the arguments and constants
 * on. So nothing is owned, and nothing dangles.
 *
 * An address is not yet an object: another one may have come to lie there. Where a dict's version
 * stands, its entries are the very objects that were checked (`sure`). Elsewhere only what is a
 * word itself may be believed, and checks that depend on more are made in each call: their nodes
 * are visited, between the words, as in a walk. So are those whose value is expected to be another
 * one in the next call (`loose`): it was not what it had been in this walk, or it once made a
 * digest useless (`restless`).
 */
#include "digest.h"

_Static_assert(sizeof(uintptr_t) == sizeof(uint64_t) && sizeof(Py_ssize_t) == sizeof(uintptr_t),
               "words of 64 bits");
/* A class's version is half a word; nobody writes to the other half, and if somebody did, the walk
 * would be made. */
_Static_assert(offsetof(PyTypeObject, tp_version_tag) % sizeof(Any) == 0 &&
                   sizeof(unsigned long) == sizeof(Any) &&
                   offsetof(PyTypeObject, tp_version_tag) + sizeof(Any) <= sizeof(PyTypeObject),
               "words of classes");

enum { LONG_USE = 16, MAX_PATIENCE = 255 };

typedef struct {
    unsigned char deep;  /* it, or something below it, has a version that stands */
    unsigned char loose; /* its value need not be the one of now */
    unsigned char sure;  /* its value is the object of now, not just one at that address */
    unsigned char typed; /* the word of its type is among those of the digest */
} Mark;

typedef struct {
    Guards *g;
    Digest *d;
    Mark *marks;
    int failed; /* no memory */
} Maker;

static void
add_word(Maker *m, const void *place)
{
    Digest *d = m->d;
    if (d->word_count == d->word_room) {
        int room = 2 * d->word_room + 64;
        Word *words = PyMem_Realloc(d->words, (size_t)room * sizeof(Word));
        if (words == NULL) {
            m->failed = 1;
            return;
        }
        d->words = words;
        d->word_room = room;
    }
    d->words[d->word_count++] = (Word){place, *(const Any *)place};
}

static void
add_type(Maker *m, int node)
{
    if (!m->marks[node].typed) {
        m->marks[node].typed = 1;
        add_word(m, &m->g->nodes[node].value->ob_type);
    }
}

/* ---- edges ---- */

static int
add_index(Maker *m, const Node *n, int parent)
{
    PyObject *owner = m->g->nodes[parent].value;
    if (m->marks[parent].sure && PyTuple_Check(owner)) {
        m->marks[n - m->g->nodes].sure = 1; /* tuples do not change */
        return 1;
    }
    add_type(m, parent);
    add_word(m, &((PyVarObject *)owner)->ob_size);
    if (PyList_Check(owner)) {
        add_word(m, &((PyListObject *)owner)->ob_item);
        add_word(m, &((PyListObject *)owner)->ob_item[n->number]);
    }
    else {
        add_word(m, &((PyTupleObject *)owner)->ob_item[n->number]);
    }
    return 1;
}

static const void *
function_place(PyObject *function, Py_ssize_t part)
{
    PyFunctionObject *f = (PyFunctionObject *)function;
    const void *places[PART_COUNT] = {&f->func_code,     &f->func_defaults,   &f->func_kwdefaults,
                                      &f->func_closure,  &f->func_globals,    &f->func_name,
                                      &f->func_qualname, &f->func_annotations};
    return places[part];
}

/* The words that lead from the parent's value to this one. 0: it has to be fetched. */
static int
add_edge(Maker *m, const Node *n)
{
    int self = (int)(n - m->g->nodes), parent = n->parent;
    if (n->edge == FETCH_CONST || (n->is_entry && m->g->nodes[parent].stands)) {
        m->marks[self].sure = 1;
        return 1;
    }
    if (n->edge == FETCH_LOCAL || n->edge == FETCH_CALL || n->edge == FETCH_GRAD || n->is_entry) {
        return 0;
    }
    PyObject *owner = m->g->nodes[parent].value;
    const void *place = NULL;
    switch (n->edge) {
    case FETCH_INDEX:
        return add_index(m, n, parent);
    case FETCH_NAMESPACE:
        place = instance_dict_place(owner);
        break;
    case FETCH_MEMBER:
        place = (char *)owner + ((PyMemberDescrObject *)n->key)->d_member->offset;
        break;
    case FETCH_FUNCTION:
        place = function_place(owner, n->number);
        break;
    case FETCH_SELF:
        place = &((PyCFunctionObject *)owner)->m_self;
        break;
    case FETCH_CELL:
        place = &((PyCellObject *)owner)->ob_ref;
        break;
    }
    if (place == NULL || (n->edge == FETCH_NAMESPACE && *(PyObject *const *)place != n->value)) {
        return 0;
    }
    add_type(m, parent);
    if (n->edge == FETCH_SELF) {
        add_word(m, &((PyCFunctionObject *)owner)->m_ml);
    }
    add_word(m, place);
    return 1;
}

/* ---- checks ---- */

static void
add_hooks(Maker *m, const GuardCheck *c)
{
    for (int i = 0; i < HOOKS; i++) {
        add_word(m, &((PyDictObject *)c->hooks[i])->ma_used);
    }
}

static int
add_length(Maker *m, int node)
{
    PyObject *value = m->g->nodes[node].value;
    if (!PyTuple_Check(value) && !PyList_Check(value) && !PyAnySet_Check(value)) {
        return 0;
    }
    add_type(m, node);
    add_word(m, PyAnySet_Check(value) ? (void *)&((PySetObject *)value)->used
                                      : (void *)&((PyVarObject *)value)->ob_size);
    return 1;
}

/* The words that a check depends on, beside those that lead to the value. 0: it has to be made in
 * each call. */
static int
add_check(Maker *m, int node, const GuardCheck *c)
{
    const Node *n = &m->g->nodes[node];
    PyObject *value = n->value;
    switch (c->fact) {
    case CHECK_TYPE:
        add_type(m, node);
        return 1;
    case CHECK_TENSOR:
        m->d->tensors[m->d->tensor_count++] = (TensorStop){value, c->tensor};
        return 1;
    case CHECK_IS:
    case CHECK_EQUAL:
        /* which lives as long as the guards: nothing else can have its address */
        return value == c->expected;
    case CHECK_LEN:
        return add_length(m, node);
    case CHECK_CODE:
        add_type(m, node);
        add_word(m, &((PyFunctionObject *)value)->func_code);
        add_word(m, &((PyFunctionObject *)value)->func_globals);
        return 1;
    case CHECK_UNSET:
        add_type(m, node);
        add_word(m, &((PyCellObject *)value)->ob_ref);
        return 1;
    case CHECK_NO_SLOT:
        add_type(m, node);
        add_word(m, (char *)value + ((PyMemberDescrObject *)c->expected)->d_member->offset);
        return 1;
    case CHECK_UNHOOKED:
        if (n->stands) {
            add_hooks(m, c);
        }
        return n->stands;
    default:
        return 0;
    }
}

/* The words of a version that stands. 0: it has none. */
static int
add_version(Maker *m, const Node *n)
{
    if (n->version == VERSION_TYPE) {
        add_word(m, &((PyTypeObject *)n->value)->tp_flags); /* is the version valid? */
        add_word(m, &((PyTypeObject *)n->value)->tp_version_tag);
        return 1;
    }
    const void *place = dict_version_place(n->value);
    if (place != NULL) {
        add_word(m, place);
    }
    return place != NULL;
}

/* All words of a node. 0: it has to be visited. */
static int
add_node(Maker *m, int node)
{
    const Node *n = &m->g->nodes[node];
    Mark *mark = &m->marks[node];
    if ((n->parent >= 0 && m->marks[n->parent].loose) ||
        (n->version != VERSION_NONE && !n->stands) || n->restless || !add_edge(m, n)) {
        return 0;
    }
    if (n->version != VERSION_NONE) {
        if (!add_version(m, n)) {
            return 0;
        }
        mark->sure = 1;
    }
    const GuardCheck *c = m->g->checks + n->check;
    for (int i = 0, all = n->live + n->own + n->fixed; i < all; i++) {
        int lasts = i < n->live ? 0 : i < n->live + n->own ? n->stands : mark->sure;
        if (!lasts && !add_check(m, node, c + i)) {
            return 0;
        }
    }
    return 1;
}

/* Puts one node into the digest: as words, or else as a stop. */
static void
put_node(Maker *m, int node)
{
    Digest *d = m->d;
    Node *n = &m->g->nodes[node];
    Mark *mark = &m->marks[node], *parent = n->parent < 0 ? NULL : &m->marks[n->parent];
    int words = d->word_count, tensors = d->tensor_count, typed = parent != NULL && parent->typed;
    if (add_node(m, node)) {
        n->covered = 1;
        return;
    }
    d->word_count = words;
    d->tensor_count = tensors;
    mark->typed = 0;
    if (parent != NULL) {
        parent->typed = (unsigned char)typed;
    }
    d->stops[d->stop_count++] = (Stop){words, node};
    /* Whether its value must be the one of now: if much depends on it, and it will hardly
     * change. */
    n->covered = mark->deep && !n->restless && (n->version == VERSION_NONE || n->stands);
    mark->loose = !n->covered;
    mark->sure = n->covered && (n->stands || n->edge == FETCH_CONST);
}

static void
gather_wanted(Maker *m)
{
    for (int i = 0; i < m->g->wanted_count; i++) {
        int node = m->g->wanted[i];
        m->d->wanted[i] = node < 0 ? Py_None : m->g->nodes[node].value;
        if (node >= 0 && m->marks[node].loose) {
            m->d->loose[m->d->loose_count++] = i;
        }
    }
}

static void
digest_free(Digest *d)
{
    if (d != NULL) {
        PyMem_Free(d->words);
        PyMem_Free(d->stops);
        PyMem_Free(d->tensors);
        PyMem_Free(d->wanted);
        PyMem_Free(d->loose);
        PyMem_Free(d);
    }
}

static int
allocate(Maker *m, Guards *g)
{
    size_t wanted = (size_t)g->wanted_count + 1;
    m->marks = PyMem_Calloc((size_t)g->node_count + 1, sizeof(Mark));
    Digest *d = m->d = PyMem_Calloc(1, sizeof(Digest));
    if (m->marks == NULL || d == NULL) {
        return 0;
    }
    d->stops = PyMem_Malloc(((size_t)g->node_count + 1) * sizeof(Stop));
    d->tensors = PyMem_Malloc(((size_t)g->check_count + 1) * sizeof(TensorStop));
    d->wanted = PyMem_Malloc(wanted * sizeof(PyObject *));
    d->loose = PyMem_Malloc(wanted * sizeof(int));
    return d->stops != NULL && d->tensors != NULL && d->wanted != NULL && d->loose != NULL;
}

void
digest_make(Guards *g)
{
    Maker m = {.g = g};
    if (allocate(&m, g)) {
        for (int i = g->node_count - 1; i >= 0; i--) {
            const Node *n = &g->nodes[i];
            m.marks[i].deep |= n->stands;
            if (n->parent >= 0) {
                m.marks[n->parent].deep |= m.marks[i].deep;
            }
        }
        for (int i = 0; i < g->node_count && !m.failed;) {
            put_node(&m, i);
            i = g->nodes[i].stands && g->nodes[i].covered ? g->nodes[i].past_fixed : i + 1;
        }
        m.d->stops[m.d->stop_count++] = (Stop){m.d->word_count, -1};
        gather_wanted(&m);
    }
    else {
        m.failed = 1;
    }
    PyMem_Free(m.marks);
    g->digest = m.d;
    if (m.failed) {
        digest_drop(g);
    }
}

/* The next one is made the later, the less this one was of use. */
void
digest_drop(Guards *g)
{
    Digest *d = g->digest;
    g->backoff = d != NULL && d->uses >= LONG_USE ? 1 : Py_MIN(2 * g->backoff + 1, MAX_PATIENCE);
    g->patience = g->backoff;
    g->digest = NULL;
    for (int i = 0; i < g->node_count; i++) {
        g->nodes[i].covered = 0;
    }
    digest_free(d);
}

void
digest_settle(Guards *g)
{
    digest_drop(g);
    for (int i = 0; i < g->node_count; i++) {
        g->nodes[i].restless = 0;
    }
}

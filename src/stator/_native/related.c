/* Guards between values: the same object as, another object than, groups of different objects; and
 * relations between numbers.
 *
 * Those of identity are about addresses of objects that are alive now, so they hold again if no
 * related value has another address than when they last did.
 */
#include "guard.h"

/* If it is not clear that the value is still different from all others, all are compared later. An
 * object that was made for this call (`made`) is. */
void
group_note(Guards *g, Node *n, PyObject *value, int made)
{
    int index = (int)(n - g->nodes);
    for (int i = 0; i < g->group_count; i++) {
        NodeGroup *group = &g->groups[i];
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
group_holds(Guards *g, NodeGroup *group)
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

int
relations_hold(Guards *g)
{
    if (!g->related_hold) {
        for (int i = 0; i < g->relation_count; i++) {
            const GuardRelation *r = &g->relations[i];
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

/* Does the memory of this storage belong to that of another tensor, too? */
static int
overlaps_another(Guards *g, const void *storage)
{
    for (int i = 0; i < g->storage_count; i++) {
        const void *other =
            g->firsts[i] < 0 ? NULL : tensor_storage(g->nodes[g->storages[i]].value);
        if (other != NULL && other != storage && storages_overlap(storage, other)) {
            return 1;
        }
    }
    return 0;
}

/* Which storage a tensor lies in is asked of all of them in every call: nothing tells that it has
 * not changed. */
int
storages_hold(Guards *g)
{
    if (g->storage_count == 0) {
        return 1;
    }
    memset(g->memory, 0, (size_t)g->memory_size * sizeof(void *));
    for (int i = 0; i < g->storage_count; i++) {
        if (g->firsts[i] < 0) {
            continue;
        }
        const void *storage = tensor_storage(g->nodes[g->storages[i]].value);
        size_t at = ((uintptr_t)storage >> 4) * 0x9E3779B97F4A7C15u >> 32;
        for (at &= (size_t)g->memory_size - 1; g->memory[at] != NULL && g->memory[at] != storage;) {
            at = (at + 1) & ((size_t)g->memory_size - 1);
        }
        if (g->memory[at] == NULL) {
            g->memory[at] = storage;
            g->memory_first[at] = i;
        }
        if (storage == NULL || g->memory_first[at] != g->firsts[i] ||
            (storage_is_foreign(storage) && overlaps_another(g, storage))) {
            g->failed_origin = g->failed_check = -1;
            return 0;
        }
    }
    return 1;
}

int
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

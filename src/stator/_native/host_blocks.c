/* Kernels and GEMMs that run together, block by block: what one leaves for the next stays in a
 * cache.
 *
 * A block is a range of units, and a unit is so many rows (or matrices of a batch, or units of a
 * kernel) of each step. Buffers that only these steps use are strips: as long as a block, one for
 * each thread. A strip is given to a step as if all of the buffer were there, of which the step
 * touches just the part that the strip is. Blocks are shared among threads; a step within one runs
 * on one thread.
 */
#include "host.h"
#include <stdlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { SLOT_UNITS, SLOT_EACH, SLOT_THREAD_BYTES, SLOT_THREADS, SLOT_STRIPS };
enum { MOST_STEPS = 8, MOST_STRIPS = 16, FEW = 16384 };
enum { ROW_MAJOR = 101, NOT_TRANSPOSED = 111, TRANSPOSED = 112, PACKED = 151, SECOND = 162 };

typedef struct {
    char *buffers[64];
    int64_t sizes[64];       /* of a kernel */
    int64_t v[GEMM_NUMBERS]; /* of a GEMM */
} BlockPart;

typedef struct {
    const HostStep *step; /* its parts come behind it */
    BlockPart *parts;
    int64_t strip_bytes[MOST_STRIPS];
    int64_t units, each, thread_bytes, scratch;
    char *memory; /* scratch of each thread, or NULL: little is needed */
    int64_t *status;
    unsigned control;
} Blocks;

/* Do the steps behind this one make up its block? */
int
blocks_fit(const Host *h, int at)
{
    const HostStep *s = &h->steps[at];
    int count = s->numbers[0];
    if (count < 1 || count > MOST_STEPS || count >= h->step_count - at || s->count > MOST_STRIPS ||
        s->more_count != SLOT_STRIPS + s->count) {
        return 0;
    }
    for (int i = 1; i <= count; i++) {
        if ((s[i].kind != STEP_KERNEL && s[i].kind != STEP_GEMM) || s[i].numbers[4] < 1) {
            return 0;
        }
    }
    return 1;
}

PyObject *
host_pack_bytes(PyObject *Py_UNUSED(module), PyObject *args)
{
    int m, n, k;
    if (!PyArg_ParseTuple(args, "iii", &m, &n, &k)) {
        return NULL;
    }
    int can = torch_c.pack_bytes != NULL && torch_c.pack != NULL && torch_c.packed != NULL &&
              m > 0 && n > 0 && k > 0;
    return PyLong_FromSize_t(can ? torch_c.pack_bytes(SECOND, m, n, k) : 0);
}

/* Where a buffer begins for a block: a strip's first unit is the block's. */
static char *
seen_from(const Blocks *g, int buffer, char *data, int64_t lo, int64_t thread)
{
    for (int i = 0; i < g->step->count; i++) {
        if (g->step->items[i] == buffer) {
            return (char *)((uintptr_t)data + (uintptr_t)(thread * g->thread_bytes) -
                            (uintptr_t)(lo * g->strip_bytes[i]));
        }
    }
    return data;
}

static void
multiply(const Blocks *g, const HostStep *s, const BlockPart *part, int64_t lo, int64_t hi,
         int64_t thread)
{
    int64_t v[GEMM_NUMBERS], share = s->numbers[4];
    memcpy(v, part->v, sizeof v);
    if (s->count == 3 && v[GEMM_BATCH] > 1) {
        v[GEMM_BATCH] = (hi - lo) * share;
        v[GEMM_C] += lo * share * v[GEMM_STEP_C];
        v[GEMM_A] += lo * share * v[GEMM_STEP_A];
        v[GEMM_B] += lo * share * v[GEMM_STEP_B];
    }
    else {
        v[GEMM_M] = (hi - lo) * share;
        v[GEMM_C] += lo * share * v[GEMM_LDC];
        v[GEMM_A] += lo * share * (s->numbers[1] ? 1 : v[GEMM_LDA]);
    }
    char *c = seen_from(g, s->items[0], part->buffers[0], lo, thread),
         *a = seen_from(g, s->items[1], part->buffers[1], lo, thread);
    if (s->count == 3) {
        gemm_run(s, v, c, a, seen_from(g, s->items[2], part->buffers[2], lo, thread));
        return;
    }
    torch_c.packed(ROW_MAJOR, s->numbers[1] ? TRANSPOSED : NOT_TRANSPOSED, PACKED, (int)v[GEMM_M],
                   (int)v[GEMM_N], (int)v[GEMM_K], (float *)a + v[GEMM_A], (int)v[GEMM_LDA],
                   (float *)part->buffers[3], (int)v[GEMM_LDB], 0, (float *)c + v[GEMM_C],
                   (int)v[GEMM_LDC]);
}

static void
run_block(const Blocks *g, int64_t lo, int64_t hi, int64_t thread, char *scratch)
{
    for (int i = 0; i < g->step->numbers[0]; i++) {
        const HostStep *s = g->step + 1 + i;
        const BlockPart *part = &g->parts[i];
        if (s->kind == STEP_GEMM) {
            multiply(g, s, part, lo, hi, thread);
            continue;
        }
        char *buffers[64];
        for (int b = 0; b < s->count; b++) {
            buffers[b] = seen_from(g, s->items[b], part->buffers[b], lo, thread);
        }
        s->function(buffers, part->sizes, lo * s->numbers[4], hi * s->numbers[4], scratch,
                    g->status);
    }
}

/* The blocks of one thread: neighbours. */
static void
run_blocks(const Blocks *g, int64_t thread, int64_t threads)
{
    char few[FEW] __attribute__((aligned(64)));
    int64_t blocks = g->units / g->each;
    int64_t first = blocks * thread / threads, last = blocks * (thread + 1) / threads;
    char *scratch = g->memory == NULL ? few : g->memory + thread * g->scratch;
    for (int64_t i = first; i < last; i++) {
        run_block(g, i * g->each, (i + 1) * g->each, thread, scratch);
    }
}

static void
region(void *p)
{
    const Blocks *g = p;
#if defined(__x86_64__)
    unsigned before = _mm_getcsr();
    _mm_setcsr(g->control); /* flushing of denormals is as in the caller's thread */
#endif
    run_blocks(g, torch_c.thread(), torch_c.threads());
#if defined(__x86_64__)
    _mm_setcsr(before);
#endif
}

/* What the parts need in this call. */
static int
fill(HostRun *r, const HostStep *s, Blocks *g)
{
    for (int i = 0; i < s->numbers[0]; i++) {
        const HostStep *part = s + 1 + i;
        BlockPart *to = &g->parts[i];
        if (host_buffers(r, part, to->buffers, to->sizes) < 0) {
            return -1;
        }
        if (part->kind == STEP_KERNEL) {
            int64_t scratch = r->slots[part->numbers[2]];
            g->scratch = scratch > g->scratch ? scratch : g->scratch;
            if (r->slots[part->numbers[0]] != g->units * part->numbers[4] || scratch < 0 ||
                scratch > (int64_t)1 << 46) {
                PyErr_SetString(PyExc_SystemError, "a kernel has other units than its block");
                return -1;
            }
            continue;
        }
        int some = gemm_numbers(r, part, to->v);
        int64_t whole = some > 0 && part->count == 3 && to->v[GEMM_BATCH] > 1 ? to->v[GEMM_BATCH]
                                                                              : to->v[GEMM_M];
        if (some <= 0 || whole != g->units * part->numbers[4]) {
            if (some >= 0) {
                PyErr_SetString(PyExc_SystemError, "a product has other rows than its block");
            }
            return -1;
        }
    }
    return 0;
}

static void
pack_all(const Blocks *g)
{
    for (int i = 0; i < g->step->numbers[0]; i++) {
        const HostStep *s = g->step + 1 + i;
        const int64_t *v = g->parts[i].v;
        if (s->kind == STEP_GEMM && s->count == 4) {
            torch_c.pack(ROW_MAJOR, SECOND, s->numbers[2] ? TRANSPOSED : NOT_TRANSPOSED,
                         (int)(g->each * s->numbers[4]), (int)v[GEMM_N], (int)v[GEMM_K], 1,
                         (float *)g->parts[i].buffers[2] + v[GEMM_B], (int)v[GEMM_LDB],
                         (float *)g->parts[i].buffers[3]);
        }
    }
}

/* items: the strips. more: slots of units, units of a block, bytes of a thread's strips, how many
 * threads have some, and of each strip the bytes of a unit. numbers: how many of the next steps are
 * its own */
int
host_blocks(HostRun *r, const HostStep *s)
{
    BlockPart parts[MOST_STEPS];
    Blocks g = {s,
                parts,
                {0},
                r->slots[s->more[SLOT_UNITS]],
                r->slots[s->more[SLOT_EACH]],
                r->slots[s->more[SLOT_THREAD_BYTES]],
                0,
                NULL,
                &r->status,
                0};
    int64_t room = r->slots[s->more[SLOT_THREADS]];
    if (g.units < 1 || g.each < 1 || g.units % g.each != 0 || room < 1) {
        PyErr_SetString(PyExc_SystemError, "blocks that do not come out even");
        return -1;
    }
    for (int i = 0; i < s->count; i++) {
        g.strip_bytes[i] = r->slots[s->more[SLOT_STRIPS + i]];
    }
    if (fill(r, s, &g) < 0) {
        return -1;
    }
    int64_t threads = 1;
    if (torch_c.parallel != NULL && !torch_c.in_parallel()) {
        threads = torch_c.max_threads() < room ? torch_c.max_threads() : room;
    }
    g.scratch = (g.scratch + 63) & ~(int64_t)63;
    void *memory = NULL;
    if (g.scratch > FEW && posix_memalign(&memory, 64, (size_t)(g.scratch * threads)) != 0) {
        PyErr_NoMemory();
        return -1;
    }
    g.memory = memory;
    PyThreadState *saved = PyEval_SaveThread();
    pack_all(&g);
    if (threads <= 1) {
        run_blocks(&g, 0, 1);
    }
    else {
#if defined(__x86_64__)
        g.control = _mm_getcsr();
#endif
        torch_c.parallel(region, &g, (unsigned)threads, 0);
    }
    PyEval_RestoreThread(saved);
    free(memory);
    return 0;
}

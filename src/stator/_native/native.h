/* What the C files of stator._native share. Read compat.h for what differs between CPython
 * versions. */
#ifndef STATOR_NATIVE_H
#define STATOR_NATIVE_H

#include "compat.h"
#include <stdint.h>

/* ---- constants; module.c exports every name below to Python ---- */

/* clang-format off */
#define STATES(X) X(OFF) X(WATCHING) X(SENTINEL) X(PENDING)
#define CODE_KINDS(X)                                                                              \
    X(COPY) X(SKIP) X(OURS) X(LEAF) X(TRANSPARENT) X(CONSTANT) X(BLIND) X(INSTRUMENTED)
#define PROBE_KINDS(X)                                                                             \
    X(ATTR) X(SUPER_ATTR) X(GLOBAL) X(DEREF) X(SUBSCR) X(SLICE) X(CALL) X(CALL_EX) X(BINARY)       \
    X(COMPARE) X(CONTAINS) X(IS) X(UNARY) X(TRUTH) X(ITER) X(NEXT) X(UNPACK) X(EXTEND) X(HASH)     \
    X(WITH) X(WITH_EXIT) X(FORMAT) X(AWAIT) X(STORE_ATTR) X(DELETE_ATTR) X(STORE_SUBSCR)           \
    X(STORE_SLICE) X(DELETE_SUBSCR) X(STORE_GLOBAL) X(DELETE_GLOBAL) X(STORE_DEREF)                \
    X(DELETE_DEREF) X(IMPORT_NAME) X(IMPORT_FROM) X(BUILD_CLASS) X(MATCH) X(MATCH_CLASS)           \
    X(MATCH_KEYS) X(RAISE) X(EXC_MATCH) X(INTRINSIC) X(ESCAPE) X(FUNCTION) X(RETURN) X(PACK)       \
    X(INSERT)
/* clang-format on */

#define AS_STATE(name) STATE_##name,
enum { STATES(AS_STATE) };
#define AS_CODE(name) CODE_##name,
enum { CODE_UNKNOWN = -1, CODE_KINDS(AS_CODE) CODE_KIND_COUNT };
#define AS_KIND(name) KIND_##name,
enum { PROBE_KINDS(AS_KIND) KIND_COUNT };

/* ---- sets of addresses (pointers.c) ---- */

/* Open addressing. The set owns a reference to each member if `owning`, else whoever adds keeps it
 * alive. */
typedef struct {
    uintptr_t *keys;
    size_t mask, used, filled; /* filled counts removed places too */
    int owning;
} PtrSet;

#define PTR_REMOVED ((uintptr_t)1)

static inline size_t
ptr_hash(uintptr_t p)
{
    return (size_t)((p >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 20);
}

static inline int
ptrset_has(const PtrSet *s, const void *p)
{
    if (s->used == 0) {
        return 0;
    }
    for (size_t i = ptr_hash((uintptr_t)p) & s->mask;; i = (i + 1) & s->mask) {
        if (s->keys[i] == (uintptr_t)p) {
            return 1;
        }
        if (s->keys[i] == 0) {
            return 0;
        }
    }
}

int ptrset_add(PtrSet *s, void *p);    /* 1 added, 0 was in, -1 no memory (exception set) */
int ptrset_remove(PtrSet *s, void *p); /* 1 removed, 0 was not in */
int ptrset_traverse(PtrSet *s, visitproc visit, void *arg);
void ptrset_clear(PtrSet *s);

/* Pairs (object, tag). The tag is a small number, or an object's address with the two lowest bits
 * free for a mark. An address must not be reused while it is in the set. So the set owns the tag
 * where it is an object, and it owns the object, unless that is a type: types come with their
 * version, which is never given to another type, and may die (a recording that kept every class
 * alive would be noticed). */
typedef struct {
    uintptr_t object, tag;
    unsigned int version; /* of a type; 0 for other objects */
} Pair;

typedef struct {
    Pair *pairs;
    size_t mask, used;
} PairSet;

int pairset_has(const PairSet *s, Pair pair);
int pairset_add(PairSet *s, Pair pair); /* as ptrset_add, without an exception */
int pairset_traverse(PairSet *s, visitproc visit, void *arg);
void pairset_clear(PairSet *s);

/* ---- probes (probe.c, filter.c) ---- */

typedef struct {
    PyObject_HEAD
    PyCodeObject *home; /* the copy this probe sits in, not owned: only compared */
    /* code unit of the copy's instruction that fires it. Anywhere else the probe is inert */
    Py_ssize_t site;
    int kind;
    int depth;  /* value stack depth before the instruction */
    int span;   /* how many slots under the top the operands begin */
    int step;   /* distance of one operand to the next */
    int count;  /* how many operands */
    int slot;   /* localsplus index of a cell, or -1 */
    int offset; /* of the instruction in the original code */
    PyObject *arg;
    /* weak reference to the original code: the copy must not keep it alive (see codeinfo.c) */
    PyObject *code;
    PyObject *stores;
    PyObject *mark; /* what to tell `on_mark` before firing, or NULL */
} Probe;

typedef struct {
    PyObject *prefix[2]; /* operands that are not on the stack */
    int nprefix;
    PyObject **slots; /* lowest operand on the stack */
    int count, step;
    CallSlots call;     /* CALL, CALL_EX */
    PyObject *kwnames;  /* CALL: names or NULL; CALL_EX: the dict or NULL */
    PyObject *starargs; /* CALL_EX */
} Operands;

struct Watcher;
/* a return, and the caller is a watched frame */
int probe_returns_to_python(struct Watcher *w, Probe *p);
typedef int (*Filter)(struct Watcher *w, Probe *p, Operands *ops);
extern const Filter filters[KIND_COUNT];
extern const char *const kind_names[KIND_COUNT];
extern PyTypeObject ProbeType;

/* ---- the watcher and the thread it runs in (watcher.c, shield.c) ---- */

typedef struct Watcher {
    PyObject_HEAD
    PyObject *handlers[KIND_COUNT];
    PyObject *enter, *classify, *leaf, *blind, *foreign, *failed, *transparent;
    PyObject *on_resume, *on_lost, *on_return, *on_mark; /* or None */
    PyObject *on_symbol;          /* what is done with symbolic numbers; or NULL */
    PtrSet known, fresh, entered; /* addresses only */
    PtrSet whole;                 /* likewise: functions that are leaves */
    PtrSet unguarded;             /* likewise: known numbers that nothing has depended on yet */
    PtrSet approved, intercepted; /* owning */
    /* registered: (module, name) whose lookup by `__getattr__` is noted */
    PairSet seen, registered;
    PyObject *ledger; /* a Ledger, or NULL: then there are no shortcuts */
    PyObject *last_probe;
    PyObject *error; /* what ended the recording without anybody being able to note it; or NULL */
    unsigned long long events, calls;
    struct Thread *thread; /* where it runs now, or NULL */
    int stopped;
    char interior; /* frames of the program inside of a leaf are watched */
    int holds_hook;
    char misled; /* stopped, because our own code could not run */
    char interrupted; /* stopped by what the program gets between two of its instructions */
    /* stopped, because frames may have run unseen: another evaluator had put itself in our place */
    char displaced;
    char returns;              /* tell on_return */
    char unfiltered;           /* call the handlers at every probe: for tests */
    struct Watcher *successor; /* owned: who has taken over this run */
} Watcher;

int filter_surely_binds(PyObject *function, Py_ssize_t given, PyObject *names);
PyObject *filter_enter(PyObject *module, PyObject *types);
int filter_call_noted(Watcher *w, PyObject *owner, int note);
int watcher_read_attribute(Watcher *w, Probe *p, PyObject *owner);
int watcher_read_registered(Watcher *w, PyObject *owner, PyObject *name);
int watcher_call_module(Watcher *w, PyObject *module);

/* A copy's frame that runs, watched from its beginning (or since it was resumed). It lives on the C
 * stack of the hook. */
typedef struct Level {
    struct Level *below;
    Frame *frame;
    int intact;   /* the operands of the instruction in progress lie on the stack unchanged */
    Probe *probe; /* the last one that fired in it, or NULL; its code holds it */
    /* an operand whose slot the instruction uses for something else while it runs, owned. Or
     * NULL */
    PyObject *held;
    int held_at; /* which of the operands that is, or -1 */
    /* the innermost one from here on that is no code of torch or Python: itself, one below, or
     * NULL */
    struct Level *user;
} Level;

/* What the function of a run is called with. It is let go of as soon as the function's own frame
 * has it. */
typedef struct {
    PyObject **values; /* owned */
    Py_ssize_t count;
    PyObject *lists[2]; /* of whoever called run(), to be emptied with it; or NULL */
} RunArguments;

typedef struct Thread {
    int state;
    Watcher *watcher;    /* held by the run() that set it */
    Frame *pending;      /* original frame whose references the copy's frame takes over */
    RunArguments *given; /* of the run, until its function's frame starts */
    Level *level;        /* the innermost watched frame */
    Frame *firing;       /* whose probe fires: no instruction of it is at work. Or NULL */
    Level *waiting;      /* PENDING: the frame whose next probe ends it, or NULL */
    /* what the program was handling when our own code was called, owned, or NULL */
    PyObject *handled;
    int interrupted;        /* the state in which our own code was called */
    int hidden;             /* depth of our own Python code: tracers and profilers do not see it */
    int saw_copy;           /* the hook saw a copy start: it is reached */
    unsigned long absences; /* of the hook, when the recording began or went on (chain.c) */
    Frame *passing;         /* the frame that was handed down last and still runs, or NULL */
    PyObject *leaf_error, *leaf_traceback;
    int leaf_ran; /* call_leaf has called the program's function */
    /* class of what is to be raised in the program when our own code has ended, owned; or NULL */
    PyObject *interrupt;
    char *stack_low; /* do not recurse below this address; NULL: not asked yet */
    /* callees.c: asked what becomes of each function that starts, owned; or NULL */
    PyObject *callees;
    PyObject *calls_them; /* the function of the step that is made meanwhile */
} Thread;

extern __thread Thread thread_here __attribute__((visibility("hidden")));
extern PyTypeObject WatcherType;

/* Between shield_up and shield_down runs our own Python code: state OFF, tracers blind, the
 * program's exception put aside. */
typedef struct {
    Thread *thread;
    Watcher *watcher;
    PyThreadState *ts;
    int state;
    SavedError error;
    int outer; /* the program called our code here */
    int interrupted;
    PyObject *handled;
} Shield;

void shield_up(Shield *s, Thread *t, Watcher *w);
void shield_down(Shield *s);
void thread_interrupt(Thread *t); /* raise `interrupt` in the program, if there is one */
void error_mark_unwritten(int yes); /* the raised exception: `errors.mark_unwritten`, or not */
void watcher_failed(Watcher *w);  /* hand the raised exception to `failed`; only inside a shield */
/* end the recording because of the raised exception, and keep that */
void watcher_give_up(Watcher *w);
void watcher_lost(Watcher *w); /* the same from anywhere: an event could not be delivered */
/* A probe that has fired, or (probe, the one in the user's code that led there), if it is not in
 * the user's. A new reference; `last`: an earlier result, given again if it is the same, or
 * NULL. */
PyObject *watcher_place(PyObject *probe, PyObject *last);
PyObject *watcher_call(Watcher *w, PyObject *callable, PyObject *const *args, size_t nargs);
void watcher_restore(Thread *t, int state);
void watcher_stop(Watcher *w);
/* frames may have run unseen: what was recorded is not to be trusted */
void watcher_displaced(Thread *t);
void watcher_let_die(Watcher *w);
/* 0: it was stopped, for our own code would not run as it is written */
int watcher_can_go_on(Watcher *w);

/* ---- pending (pending.c): between a break and the next probe of the same frame ---- */

int pending_over(Thread *t, Probe *p);    /* does this probe end it? */
void pending_left(Thread *t, int raised); /* the frame was left */
PyObject *pending_pend(PyObject *watcher, PyObject *const *args, Py_ssize_t nargs);
PyObject *pending_hand_over(PyObject *watcher, PyObject *other);

/* ---- builtins (builtins.c) ---- */

int builtins_intact(void);
int builtins_setup(PyObject *module);

/* ---- symbolic numbers (symbol.c) ---- */

int is_symbol(PyObject *x);
/* The plain number that a symbolic one is: a new reference. */
PyObject *symbol_value(PyObject *x);
/* itself, or down to so many containers in it; 1 where it is deeper */
int holds_symbol(PyObject *x, int depth);
int symbol_setup(PyObject *module);

/* ---- code objects (codeinfo.c) ---- */

typedef struct {
    int kind; /* CODE_UNKNOWN until classified */
    int trusted;
    int finalizer;      /* named __del__ */
    PyObject *payload;  /* owned, may be NULL */
    PyObject *copy;     /* the instrumented copy, owned, or NULL */
    PyObject *reason;   /* why there is no copy and never will be, owned, or NULL */
    PyObject *original; /* of a copy: weak reference to the original code */
} CodeInfo;

typedef struct {
    int kind, trusted;
    PyObject *payload; /* owned by the holder */
} Verdict;

/* NULL if there is none; borrowed, gone after any call into Python */
CodeInfo *codeinfo_find(PyCodeObject *code);
CodeInfo *codeinfo_get(PyCodeObject *code); /* makes one; NULL with an exception */
Verdict codeinfo_classify(Watcher *w, PyCodeObject *code);
/* The copy (new reference). NULL: *reason is a new reference, no exception is set. */
PyObject *codeinfo_copy(Watcher *w, PyCodeObject *code, PyObject **reason);
int codeinfo_setup(PyObject *module);

extern PyObject *Unwatchable;

/* ---- tensors (tensor.c) ---- */

int fingerprint_setup(void);
PyObject *tensor_version(PyObject *module, PyObject *tensor);
PyObject *tensor_fingerprint(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *call_each(PyObject *module, PyObject *functions);
PyObject *tensors_are(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
int is_tensor(PyObject *value);
PyObject *fingerprint_of(PyObject *tensor, PyObject *strided);
PyObject *tensor_view_base(PyObject *tensor); /* of a view, or None */
int tensor_requires_grad(PyObject *tensor);
/* call in state SENTINEL */
PyObject *watcher_leaf(Watcher *w, PyObject *func, PyObject *args, PyObject *kwargs);
int tracer_setup(PyObject *module);

/* ---- the hook (hook.c) ---- */

PyObject *hook_evaluate(PyThreadState *ts, Frame *f, int throwflag);
PyObject *hook_function(PyFunctionObject *original, PyObject *copy, PyObject *globals,
                        PyObject *builtins);
int hook_enter(Watcher *w, PyFunctionObject *func);
void hook_let_go(RunArguments *given);

/* ---- steps that ask about functions (callees.c) ---- */

/* A call of `step`, with `choose(function)` asked about each function that starts meanwhile: None
 * (it runs as it is), False (with all that it calls), or what is called in its place, with the
 * function and a list of its slots. */
PyObject *callees_call(PyObject *choose, PyObject *step, PyObject *const *args, size_t nargs);
PyObject *callees_start(Thread *t, PyThreadState *ts, Frame *f);

/* ---- the chain of evaluators (chain.c) ---- */

int hook_installed(void);
void hook_acquire(Thread *t); /* a recording begins in this thread */
void hook_release(void);      /* one has ended */
void hook_remove(void);
int hook_wanted(void);
int hook_reached(Thread *t); /* 0: frames may have run unseen */
void hook_go_on(Thread *t);
int chain_is_empty(void);      /* nobody but CPython evaluates frames */
int chain_holds(void);         /* do frames reach the hook now? */
int chain_take_ping(Frame *f); /* is it the frame of our own call that asks that? */
PyObject *chain_pass_on(Thread *t, PyThreadState *ts, Frame *f, int throwflag);
/* the other compiler in this thread: gives what it did, a new reference; NULL: failed */
PyObject *chain_switch_off(void);
/* as it was. Steals both, gives back the result */
PyObject *chain_switch_on(PyObject *callback, PyObject *result);
/* has the other compiler been told to do nothing out of the ordinary? */
int chain_stance_is_default(void);
int chain_setup(PyObject *module);

/* ---- reading frames (frame.c) ---- */

PyObject *frames_read(PyObject *watcher, PyObject *none);
Level *frames_level(Thread *t, Py_ssize_t calls); /* NULL if that frame is not a watched one */
PyObject *frames_put(PyObject *watcher, PyObject *const *args, Py_ssize_t nargs);
PyObject *frames_stack(PyObject *watcher, PyObject *const *args, Py_ssize_t nargs);
PyObject *frame_takes(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
extern PyObject *missing; /* module.c */

/* ---- guards and dispatch (tensor.c, watched.c, state.c, guard.c, entry_table.c, relay.c,
 * break_step.c, dispatch.c) ---- */

int tensor_setup(PyObject *module);
int watched_setup(PyObject *module);
int state_setup(PyObject *module);
int guards_setup(PyObject *module);
int formula_setup(PyObject *module);
int entry_table_setup(PyObject *module);
int relay_setup(PyObject *module);
int break_step_setup(PyObject *module);
int dispatch_setup(PyObject *module);

/* ---- graphs that run as they are (tape.c) ---- */

int tape_setup(PyObject *module);
/* of a tape that gives a tuple; -1 for others, and for what is no tape */
int tape_output_count(PyObject *graph);
/* Runs such a tape. `outputs` has room for all, which are new references. How many, or -1 with an
 * exception. */
int tape_outputs(PyObject *graph, PyObject *const *inputs, Py_ssize_t given, PyObject **outputs);

/* ---- the host function of compiled graphs (host.c) ---- */

int host_setup(PyObject *module);

#endif

/* What the parts of the host function share: its data, what is taken from torch, one call's state.
 * See host.c. */
#ifndef STATOR_HOST_H
#define STATOR_HOST_H

#include "native.h"
#include "tensor.h"

enum {
    STEP_ALLOCATE,
    STEP_KERNEL,
    STEP_GEMM,
    STEP_CALL,
    STEP_ALIAS,
    STEP_EXPECT,
    STEP_LAUNCH,
    STEP_UPLOAD,
    STEP_FREE,
    STEP_BLOCKS
};

typedef void (*KernelFunction)(char **buffers, const int64_t *sizes, int64_t lo, int64_t hi,
                               char *scratch, int64_t *status);

typedef struct {
    int kind;
    int count;  /* of `items` */
    int *items; /* registers, buffers or slots, by kind; owned */
    int *more;  /* a second list; owned, or NULL */
    int more_count;
    int numbers[16];
    PyObject *object; /* a tape, a kernel for the GPU, or what keeps machine code alive. Owned */
    KernelFunction function;
} HostStep;

typedef struct {
    int reg;    /* register of the tensor; -1: in the arena */
    int offset; /* slot: offset in the arena, in bytes */
    double limit; /* of a number: how far from 0 it may be; negative: it may be any */
} HostBuffer;

typedef struct {
    int reg, dtype, rank;
    int reach;      /* slot: elements that may be touched, from the first on; -1: none are */
    int by_kernels; /* touched by our kernels, and not by operators alone? */
    int itemsize;
    int *sizes;  /* slots: sizes, then strides; owned */
    int written; /* do kernels write to it? */
    int device;  /* the kind that it is on */
} HostInput;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    HostStep *steps;
    HostInput *checks;
    HostBuffer *buffers;
    int64_t *slots; /* known ones have their values */
    int *outputs;
    int *buffer_of;      /* by register: the buffer that is its memory, or -1 */
    int *check_of;       /* by register: its place in `checks`, or -1 */
    PyObject *constants; /* a tuple: registers behind the inputs */
    PyObject *compute;   /* a callable (inputs) -> tuple of the unknown slots, or NULL */
    PyObject *fallback;  /* a callable (inputs) -> results: the same graph by other means */
    PyObject *restore;   /* a callable (state): undoes what was drawn since */
    int state;           /* the register of that state, or -1 */
    int step_count, check_count, buffer_count, slot_count, known, output_count, inputs, registers,
        arena, keeps_inputs;
    int writes; /* to inputs */
    int ready;  /* 0: being made, or taken apart by the garbage collector */
    /* where kernels run and memory is: 0 for the CPU, or the number of torch's kind */
    int device, device_index;
    int on_gpu; /* is there a driver that launches them? */
    /* dispatch keys that a tensor on that device which is plain memory may have, and must have */
    uint64_t keys, needed_keys;
    void *context; /* the device's */
    /* a callable (sizes, strides, dtype's number) -> tensor, which says why there is no memory; or
     * NULL */
    PyObject *allocate;
} Host;

typedef void (*GemmFunction)(const char *, const char *, const int *, const int *, const int *,
                             const void *, const void *, const int *, const void *, const int *,
                             const void *, void *, const int *);

typedef void (*GemmPack)(int, int, int, int, int, int, float, const float *, int, float *);
typedef void (*GemmPacked)(int, int, int, int, int, int, const float *, int, const float *, int,
                           float, float *, int);

/* What is taken from torch's libraries. */
typedef struct {
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
    int (*max_threads)(void), (*thread)(void), (*threads)(void), (*in_parallel)(void);
    GemmFunction sgemm, dgemm;
    size_t (*pack_bytes)(int, int, int, int);
    GemmPack pack;
    GemmPacked packed;
    int32_t (*empty)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, void **);
    int32_t (*alias)(void *, int64_t, const int64_t *, const int64_t *, int64_t, void **);
    int32_t (*destroy)(void *);
    int32_t (*data)(void *, void **), (*storage_size)(void *, int64_t *),
        (*storage_offset)(void *, int64_t *), (*device)(void *, int32_t *),
        (*device_index)(void *, int32_t *);
    PyObject *(*wrap)(const void *);
    /* dispatch keys that a tensor which is plain memory may have, and must have */
    uint64_t keys, needed_keys;
} TorchFunctions;

extern TorchFunctions torch_c;

typedef struct {
    char *memory;
    size_t size;
    int taken;
} Block;

/* One call. */
typedef struct {
    Host *h;
    const int64_t *slots;
    PyObject **registers; /* owned */
    char **data;          /* by buffer */
    char *arena;
    int64_t status;
    char *scratch;    /* on a GPU: memory that all launches share, behind the arena */
    void *stream;     /* on a GPU: the one that is current in this call */
    void *guard;      /* on a GPU: what changed to its device; NULL: it was current */
    PyObject *memory; /* on a GPU: the tensor that the arena is. Owned */
} HostRun;

static inline void *
handle_of(PyObject *tensor)
{
    return tensor_impl(tensor) == NULL ? NULL : (char *)tensor + tensor_places.impl;
}

/* host_torch.c */
PyObject *host_learn(PyObject *module, PyObject *args);
int arena_setup(void);
char *arena_take(size_t size, Block **from); /* NULL: there is no memory. No exception is set */
void arena_give(char *memory, Block *from);

/* host_check.c */
int input_holds(const Host *h, const HostInput *in, PyObject *value, const int64_t *slots);
int inputs_hold(const Host *h, PyObject *list, const int64_t *slots);
int written_alone(const Host *h, PyObject *list, const int64_t *slots);
int memory_stands(HostRun *r, int buffer); /* 1, or 0 with an exception */
int input_stands(const HostRun *r, int reg);

/* host_steps.c */
int set_register(HostRun *r, int reg, PyObject *value); /* takes the reference */
int host_step(HostRun *r, const HostStep *s);
/* shape: sizes, then strides */
PyObject *host_allocate(HostRun *r, int rank, const int64_t *shape, int dtype);

/* host_gpu.c */
int gpu_setup(PyObject *module);
int gpu_kernel_fits(PyObject *object, int buffers, int sizes, int slots);
/* the device and its context become current; what is current now is the stream of the call */
int gpu_enter(HostRun *r);
void gpu_leave(HostRun *r);
int gpu_stream(HostRun *r);
int64_t gpu_scratch(const Host *h, const int64_t *slots);
int gpu_launch(HostRun *r, const HostStep *s);
int gpu_upload(HostRun *r, const HostStep *s);
int host_buffers(HostRun *r, const HostStep *s, char **buffers, int64_t *sizes);

/* A product's numbers: those of a GEMM's slots. */
enum {
    GEMM_M,
    GEMM_N,
    GEMM_K,
    GEMM_LDC,
    GEMM_LDA,
    GEMM_LDB,
    GEMM_C,
    GEMM_A,
    GEMM_B,
    GEMM_BATCH,
    GEMM_STEP_C,
    GEMM_STEP_A,
    GEMM_STEP_B,
    GEMM_NUMBERS
};
/* 1: there is something to multiply; -1: an exception is set */
int gemm_numbers(const HostRun *r, const HostStep *s, int64_t *v);
void gemm_run(const HostStep *s, const int64_t *v, char *c, char *a, char *b);

/* host_blocks.c */
int blocks_fit(const Host *h, int at);
int host_blocks(HostRun *r, const HostStep *s);
PyObject *host_pack_bytes(PyObject *module, PyObject *args);

/* host_packed.c */
/* 1: done; 0: by other means; -1: an exception is set */
int multiply_packed(HostRun *r, const HostStep *s, const int64_t *v);

/* host_make.c */
PyObject *host_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);

/* host.c */
PyObject *host_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames);

#endif

/* What the host function takes from torch's libraries, and the memory of a call: a block per
 * thread, kept for the next one. */
#include "host.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

TorchFunctions torch_c;

PyObject *
host_learn(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *cpu, *python, *omp;
    unsigned long long keys, needed_keys;
    if (!PyArg_ParseTuple(args, "sssKK", &cpu, &python, &omp, &keys, &needed_keys)) {
        return NULL;
    }
    torch_c.keys = keys;
    torch_c.needed_keys = needed_keys;
    void *c = dlopen(cpu, RTLD_LAZY | RTLD_NOLOAD), *p = dlopen(python, RTLD_LAZY | RTLD_NOLOAD);
    void *o = *omp ? dlopen(omp, RTLD_LAZY | RTLD_NOLOAD) : NULL;
#define TAKE(field, library, name)                                                                 \
    (*(void **)&torch_c.field = (library) == NULL ? NULL : dlsym((library), (name)))
    TAKE(parallel, o, "GOMP_parallel");
    TAKE(max_threads, o, "omp_get_max_threads");
    TAKE(thread, o, "omp_get_thread_num");
    TAKE(threads, o, "omp_get_num_threads");
    TAKE(in_parallel, o, "omp_in_parallel");
    TAKE(sgemm, c, "sgemm_");
    TAKE(dgemm, c, "dgemm_");
    TAKE(pack_bytes, c, "cblas_sgemm_pack_get_size");
    TAKE(pack, c, "cblas_sgemm_pack");
    TAKE(packed, c, "cblas_sgemm_compute");
    TAKE(empty, c, "aoti_torch_empty_strided");
    TAKE(alias, c, "aoti_torch__reinterpret_tensor");
    TAKE(destroy, c, "aoti_torch_delete_tensor_object");
    TAKE(data, c, "aoti_torch_get_data_ptr");
    TAKE(storage_size, c, "aoti_torch_get_storage_size");
    TAKE(storage_offset, c, "aoti_torch_get_storage_offset");
    TAKE(device, c, "aoti_torch_get_device_type");
    TAKE(device_index, c, "aoti_torch_get_device_index");
    TAKE(wrap, p, "_Z16THPVariable_WrapRKN2at10TensorBaseE");
#undef TAKE
    if (torch_c.max_threads == NULL || torch_c.thread == NULL || torch_c.threads == NULL ||
        torch_c.in_parallel == NULL) {
        torch_c.parallel = NULL;
    }
    int usable = torch_c.empty && torch_c.alias && torch_c.destroy && torch_c.data &&
                 torch_c.storage_size && torch_c.storage_offset && torch_c.device && torch_c.wrap &&
                 tensor_places.way != TENSOR_UNKNOWN && needed_keys != 0;
    return Py_BuildValue("OO", usable ? Py_True : Py_False,
                         torch_c.sgemm && torch_c.dgemm ? Py_True : Py_False);
}

/* ---- the arena ---- */

enum { MOST_KEPT = 1 << 28 };
static pthread_key_t block_key;

static void
block_free(void *p)
{
    Block *b = p;
    if (b != NULL) {
        free(b->memory);
        free(b);
    }
}

char *
arena_take(size_t size, Block **from)
{
    Block *b = pthread_getspecific(block_key);
    *from = NULL;
    if (b == NULL && (b = calloc(1, sizeof(Block))) != NULL &&
        pthread_setspecific(block_key, b) != 0) {
        free(b);
        b = NULL;
    }
    if (b != NULL && !b->taken && size <= MOST_KEPT) {
        if (b->size < size) {
            free(b->memory);
            b->memory = NULL;
            b->size = 0;
            void *made;
            if (posix_memalign(&made, 64, size) != 0) {
                return NULL;
            }
            b->memory = made;
            b->size = size;
        }
        b->taken = 1;
        *from = b;
        return b->memory;
    }
    void *made;
    return posix_memalign(&made, 64, size) == 0 ? made : NULL;
}

void
arena_give(char *memory, Block *from)
{
    if (from != NULL) {
        from->taken = 0;
    }
    else {
        free(memory);
    }
}

int
arena_setup(void)
{
    return pthread_key_create(&block_key, block_free);
}

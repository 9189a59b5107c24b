/* What digest.c and walk.c share: guards as places in memory that must read as they did. See
 * digest.c. */
#ifndef STATOR_DIGEST_H
#define STATOR_DIGEST_H

#include "guard.h"

/* a pointer, a size, a version: any word of an object */
typedef uintptr_t __attribute__((may_alias)) Any;

typedef struct {
    const Any *place; /* in an object that the places before this one prove alive */
    uintptr_t expected;
} Word;

typedef struct {
    PyObject *value;
    const TensorFields *facts;
} TensorStop;

/* After so many words, a node is visited as in a walk. */
typedef struct {
    int words;
    int node; /* -1: the end */
} Stop;

typedef struct Digest {
    Word *words;
    Stop *stops;
    TensorStop *tensors; /* checked when all words and stops held */
    PyObject **wanted;   /* the values that the replay gets, as long as all holds, */
    int *loose;          /* but these are taken from their nodes */
    int word_count, word_room, stop_count, tensor_count, loose_count;
    int uses;    /* how often all held */
    int settled; /* how often a node that was not covered could have been */
} Digest;

/* After a walk that held and gave the values that the nodes have now; no Python code may have run
 * since. Without memory there is none. */
void digest_make(Guards *g);
void digest_drop(Guards *g);
void digest_settle(Guards *g); /* the same, because what used to change does so no longer */

#endif

/* Relations between sizes and numbers, evaluated without Python. See formula.c. */
#ifndef STATOR_FORMULA_H
#define STATOR_FORMULA_H

#include "tensor.h"

/* clang-format off */
#define FORMULA_STEPS(X)                                                                           \
    X(CONSTANT) /* the number `a` */                                                               \
    X(SIZE)     /* of tensor `a` of the values, in dimension `b` */                                \
    X(STRIDE)                                                                                      \
    X(NUMBER)   /* the int that is value `a` */                                                    \
    X(ADD) X(MUL) X(FLOORDIV) X(MOD) X(POW) X(MIN) X(MAX) X(EQ) X(NE) X(LT) X(LE) X(AND) X(OR)     \
    X(NOT)
/* clang-format on */

#define AS_STEP(name) STEP_##name,
enum { FORMULA_STEPS(AS_STEP) STEP_COUNT };

enum { FORMULA_DEPTH = 32 };

typedef struct {
    int kind;
    int64_t a;
    int b;
} FormulaStep;

/* A program for a small stack; what is left on it must not be 0. */
typedef struct {
    FormulaStep *steps; /* owned */
    int count;
} Formula;

/* From a list of (kind, a, b): checked once, so that evaluating needs no check. -1 with an
 * exception. */
int formula_from(Formula *formula, PyObject *steps, int nodes);
void formula_clear(Formula *formula);
/* Is it true of these values? 0 where one is none, or does not fit 64 bits. */
int formula_holds(const Formula *formula, PyObject *const *values);
int formula_setup(PyObject *module);

#endif

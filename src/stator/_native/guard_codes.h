/* Written from `src/stator/guard_codes.py`, which says how: change it there. */
/* clang-format off */
#ifndef STATOR_GUARD_CODES_H
#define STATOR_GUARD_CODES_H

/* Origins: how a value is reached from its parent's, `Edge` in Python. */
enum {
    EDGE_LOCAL = 0,
    EDGE_CONST = 1,
    EDGE_ATTR = 2,
    EDGE_ITEM = 3,
    EDGE_MRO = 4,
    EDGE_SUPER = 5,
    EDGE_SLOT = 6,
    EDGE_CALL = 7,
    EDGE_KEYED = 8,
    EDGE_COMPUTED = 9,
    EDGE_COUNT = 10,
};

/* Their checks: `Fact` in Python. */
enum {
    FACT_TYPE = 0,
    FACT_EQUAL = 1,
    FACT_IS = 2,
    FACT_TENSOR = 3,
    FACT_LEN = 4,
    FACT_KEYS = 5,
    FACT_HAS = 6,
    FACT_LACKS = 7,
    FACT_CODE = 8,
    FACT_SAME = 9,
    FACT_OTHER = 10,
    FACT_SPECIALS = 11,
    FACT_NO_ENTRY = 12,
    FACT_UNSET = 13,
    FACT_NO_SLOT = 14,
    FACT_UNHOOKED = 15,
    FACT_VALUE = 16,
    FACT_HAS_KEYED = 17,
    FACT_LACKS_KEYED = 18,
    FACT_OWN_ENTRY = 19,
    FACT_COUNT = 20,
};

/* Guards: how a value is reached. */
enum {
    FETCH_LOCAL, /* argument slot `number` */
    FETCH_CONST, /* the object `key` */
    FETCH_NAMESPACE, /* the instance dict */
    FETCH_KEY, /* item `key`, a str or int, of a dict */
    FETCH_INDEX, /* item `number` of a list or tuple */
    FETCH_MEMBER, /* what the member descriptor `key` finds */
    FETCH_FUNCTION, /* part `number` of a Python function */
    FETCH_SELF, /* what a builtin function is bound to */
    FETCH_CELL, /* contents of a cell */
    FETCH_MRO, /* entry `key` of a class */
    FETCH_SUPER, /* entry key[1] of a class, behind class key[0] */
    FETCH_CALL, /* key(), of a C function that runs no Python code */
    FETCH_GRAD, /* the gradient of a leaf tensor */
    FETCH_KEYED, /* item of a dict: its key is the very object that node `number` gave */
    FETCH_COUNT,
};
#define EACH_FETCH(X)                   \
    X(LOCAL)                            \
    X(CONST)                            \
    X(NAMESPACE)                        \
    X(KEY)                              \
    X(INDEX)                            \
    X(MEMBER)                           \
    X(FUNCTION)                         \
    X(SELF)                             \
    X(CELL)                             \
    X(MRO)                              \
    X(SUPER)                            \
    X(CALL)                             \
    X(GRAD)                             \
    X(KEYED)

/* What is asked of it. */
enum {
    CHECK_TYPE, /* its type is `expected` */
    CHECK_EQUAL, /* a constant of the same type and value */
    CHECK_IS, /* it is `expected` */
    CHECK_TENSOR, /* the facts of a tensor */
    CHECK_LEN, /* a container's length */
    CHECK_KEYS, /* keys or items, in order */
    CHECK_HAS, /* a dict has this key */
    CHECK_LACKS, /* a dict lacks this key */
    CHECK_CODE, /* a function's code and globals */
    CHECK_SPECIALS, /* a class's version, for special methods; Python decides if it has moved */
    CHECK_NO_ENTRY, /* no class in the MRO has this entry */
    CHECK_UNSET, /* a cell is empty */
    CHECK_NO_SLOT, /* a member is unset */
    CHECK_UNHOOKED, /* of the instance dict of a module: a call comes to `forward` at once */
    CHECK_ASK, /* only Python can tell */
    CHECK_COUNT,
};
#define EACH_CHECK(X)                   \
    X(TYPE)                             \
    X(EQUAL)                            \
    X(IS)                               \
    X(TENSOR)                           \
    X(LEN)                              \
    X(KEYS)                             \
    X(HAS)                              \
    X(LACKS)                            \
    X(CODE)                             \
    X(SPECIALS)                         \
    X(NO_ENTRY)                         \
    X(UNSET)                            \
    X(NO_SLOT)                          \
    X(UNHOOKED)                         \
    X(ASK)

/* When a check need not be made again. */
enum {
    LASTING_LIVE, /* never */
    LASTING_OWN, /* if the version of the value itself has not moved */
    LASTING_FIXED, /* if the value is the very object that was checked before */
    LASTING_COUNT,
};
#define EACH_LASTING(X)                 \
    X(LIVE)                             \
    X(OWN)                              \
    X(FIXED)

/* Which kind of version a value has. */
enum {
    VERSION_NONE, /* none */
    VERSION_DICT, /* that of a dict */
    VERSION_TYPE, /* that of a class */
    VERSION_COUNT,
};
#define EACH_VERSION(X)                 \
    X(NONE)                             \
    X(DICT)                             \
    X(TYPE)

/* Parts of a Python function. */
enum {
    PART_CODE, /* `__code__` */
    PART_DEFAULTS, /* `__defaults__` */
    PART_KWDEFAULTS, /* `__kwdefaults__` */
    PART_CLOSURE, /* `__closure__` */
    PART_GLOBALS, /* `__globals__` */
    PART_NAME, /* `__name__` */
    PART_QUALNAME, /* `__qualname__` */
    PART_ANNOTATIONS, /* `__annotations__` */
    PART_COUNT,
};
#define EACH_PART(X)                    \
    X(CODE)                             \
    X(DEFAULTS)                         \
    X(KWDEFAULTS)                       \
    X(CLOSURE)                          \
    X(GLOBALS)                          \
    X(NAME)                             \
    X(QUALNAME)                         \
    X(ANNOTATIONS)

#endif

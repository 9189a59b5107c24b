"""Kernels for GPUs on a machine without one: their IR, compiled for this processor, with a fiber for each thread.

Threads of a block run one after the other, each until it waits: at a barrier for all of the block, in an exchange for
the others of its warp. A barrier or exchange that some of them do not reach is an error. The order of threads can be
turned around: a result that depends on it is a race.
"""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launching import Bound

from stator.codegen import jit, ptx

SOURCE = r"""
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
enum { READY, BARRIER, EXCHANGE, DONE };
typedef struct { ucontext_t context; jmp_buf back; int state, value, step, number, started; } Thread;
static jmp_buf home; /* contexts are for the first entry alone: switching them takes system calls */
static Thread *threads, *now;
static char *stacks;
static int block[2], trapped;
static void (*body)(void *);
static void *argument;
enum { STACK = 1 << 16 };
int sim_tid(void) { return now->number; }
int sim_ctaid_x(void) { return block[0]; }
int sim_ctaid_y(void) { return block[1]; }
static void wait(int why) { now->state = why; if (!_setjmp(now->back)) _longjmp(home, 1); }
void sim_barrier(void) { wait(BARRIER); }
int sim_exchange(int mask, int value, int step, int clamp) {
    now->value = value; now->step = step;
    wait(EXCHANGE);
    return now->value;
}
void sim_trap(void) { trapped = 1; wait(DONE); }
static void start(void) { for (;;) { body(argument); wait(DONE); } }
static void resume(void) {
    if (_setjmp(home)) return;
    if (now->started) _longjmp(now->back, 1);
    now->started = 1;
    setcontext(&now->context);
}
static int released(int count) {
    int some = 0, barrier = 1;
    for (int w = 0; w < count; w += 32) {
        int values[32], all = 1;
        for (int i = w; i < w + 32; i++) {
            all &= i < count && threads[i].state == EXCHANGE && threads[i].step == threads[w].step;
            values[i - w] = i < count ? threads[i].value : 0;
        }
        for (int i = w; all && i < w + 32; i++) {
            threads[i].value = values[(i - w) ^ threads[i].step];
            threads[i].state = READY;
            some = 1;
        }
    }
    for (int i = 0; i < count; i++) barrier &= threads[i].state == BARRIER;
    for (int i = 0; barrier && i < count; i++) threads[i].state = READY;
    return some | barrier;
}
static int one_block(int count, int backward) {
    for (int i = 0; i < count; i++) threads[i].state = READY;
    for (;;) {
        int done = 0;
        for (int k = 0; k < count; k++) {
            now = &threads[backward ? count - 1 - k : k];
            if (now->state == READY) resume();
            done += now->state == DONE;
        }
        if (trapped) return 2;
        if (done == count) return 0;
        if (!released(count)) return 1;
    }
}
int sim_run(void (*function)(void *), void *args, int x, int y, int count, int backward, int alone) {
    int failed = 0;
    threads = malloc(sizeof(Thread) * count); stacks = malloc((size_t)STACK * count);
    body = function; argument = args; trapped = 0;
    for (int i = 0; i < count && !alone; i++) {
        Thread *t = &threads[i];
        getcontext(&t->context);
        t->context.uc_stack.ss_sp = stacks + (size_t)i * STACK;
        t->context.uc_stack.ss_size = STACK;
        t->number = i; t->started = 0;
        makecontext(&t->context, start, 0);
    }
    for (int j = 0; j < y && !failed; j++)
        for (int i = 0; i < x && !failed; i++) {
            block[0] = i; block[1] = j;
            if (!alone) { failed = one_block(count, backward); continue; }
            for (int k = 0; k < count; k++) {
                now = &threads[0]; now->number = backward ? count - 1 - k : k;
                function(args);
            }
        }
    free(threads); free(stacks);
    return failed;
}
float sim_div(float a, float b) { return a / b; }
float sim_ex2(float a) { return (float)exp2((double)a); }
float sim_rcp(float a) { return 1.0f / a; }
float sim_rsqrt(float a) { return (float)(1.0 / sqrt((double)a)); }
uint16_t sim_bf16(float a) {
    uint32_t bits; memcpy(&bits, &a, 4);
    if (a != a) return 0x7FFF;
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
"""
_NAMES = {
    "llvm.nvvm.read.ptx.sreg.tid.x": "sim_tid",
    "llvm.nvvm.read.ptx.sreg.ctaid.x": "sim_ctaid_x",
    "llvm.nvvm.read.ptx.sreg.ctaid.y": "sim_ctaid_y",
    "llvm.nvvm.barrier0": "sim_barrier",
    "llvm.nvvm.shfl.sync.bfly.i32": "sim_exchange",
    "llvm.nvvm.div.full": "sim_div",
    "llvm.nvvm.ex2.approx.ftz.f": "sim_ex2",
    "llvm.nvvm.rcp.approx.ftz.f": "sim_rcp",
    "llvm.nvvm.rsqrt.approx.f": "sim_rsqrt",
    "llvm.trap": "sim_trap",
}
BACKWARD = False  # the order of threads


@functools.cache
def _library() -> Any:
    folder = Path(tempfile.mkdtemp())
    (folder / "simulated.c").write_text(SOURCE)
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    path = str(folder / "simulated.so")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", path, str(folder / "simulated.c"), "-lm"], check=True)
    library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    library.sim_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int] * 5]
    return library


def _for_this_machine(text: str) -> str:
    for name, other in _NAMES.items():
        text = text.replace(f"@{name}(", f"@{other}(")
    assert "nvvm." not in text.replace('"nvvm.reqntid"', ""), "an instruction that has no stand-in"
    text = text.replace("define ptx_kernel void", "define void")
    # rounding to bfloat16 is a library call on machines without the instruction
    rounded = re.compile(r"(%\w+) = fptrunc float (\S+) to bfloat\n\s+(%\w+) = bitcast bfloat \1 to i16")
    text, some = rounded.subn(r"\3 = call i16 @sim_bf16(float \2)", text)
    return ("declare i16 @sim_bf16(float)\n" if some else "") + text


class Stopped(Exception):
    """A kernel that stopped itself: a check did not hold, and there was no status word."""


class Simulated:
    """Stands for `gpu_driver.Loaded`."""

    def __init__(self, written: Sequence[ptx.PtxKernel]) -> None:
        self._written = list(written)
        self._code: dict[int, jit.Code] = {}

    def bind(self, number: int, evaluate: Callable[[Any], int]) -> Bound:
        return Bound(self, self._written[number], self._written[number].buffers, evaluate)

    def enter(self) -> None: ...

    def launch(
        self, variant: ptx.Variant, name: str, blocks: int, splits: int, threads: int, stream: int, args: Any
    ) -> None:
        library = _library()
        if id(variant) not in self._code:
            self._code[id(variant)] = jit.compile_ir(*_module(variant))
        entry = self._code[id(variant)].address(f"{name}_entry")
        together = any(word in text for text in variant.functions for word in ("barrier", "shfl", "llvm.trap"))
        failed = library.sim_run(entry, args, blocks, splits, threads, int(BACKWARD), int(not together))
        if failed == 2:
            raise Stopped(name)
        assert not failed, f"{name}: threads wait for each other"


def _module(variant: ptx.Variant) -> tuple[str, list[str]]:
    """With an entry for each kernel that takes the array of pointers to its arguments."""
    parts = [_for_this_machine(ptx.module_text([variant]))]
    for text in variant.functions:
        name, parameters = re.match(r"define ptx_kernel void @(\w+)\((.*)\) nounwind", text).groups()  # type: ignore[union-attr]
        lines, given = [], []
        for n, parameter in enumerate(parameters.split(", ")):
            kind = "i64" if parameter.startswith("i64") else "ptr addrspace(1)"
            lines.append(f"  %p{n} = getelementptr ptr, ptr %args, i64 {n}\n  %q{n} = load ptr, ptr %p{n}")
            lines.append(f"  %v{n} = load {kind}, ptr %q{n}")
            given.append(f"{kind} %v{n}")
        call = f"  call void @{name}({', '.join(given)})"
        parts.append("\n".join([f"define void @{name}_entry(ptr %args) {{", *lines, call, "  ret void", "}"]))
    return "\n".join(parts), [f"{launch.name}_entry" for launch in variant.launches]

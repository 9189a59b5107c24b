"""Machine code made in process: it runs, is found again from its object, is freed, survives threads and forks."""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from stator.codegen import jit

SINE = """
declare float @sinf(float)
define float @sine(float %x) {
  %y = call float @sinf(float %x)
  ret float %y
}
define i64 @twice(i64 %x) {
  %y = add i64 %x, %x
  ret i64 %y
}
"""


def twice(code: jit.Code, value: int) -> int:
    result: int = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address("twice"))(value)
    return result


def sine(code: jit.Code, value: float) -> float:
    result: float = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float)(code.address("sine"))(value)
    return result


def test_functions_run_and_call_into_libraries() -> None:
    code = jit.compile_ir(SINE, ["sine", "twice"])
    assert twice(code, 21) == 42
    assert abs(sine(code, 1.0) - 0.84147098) < 1e-6
    with pytest.raises(KeyError):
        code.address("other")


def test_an_object_file_is_all_that_is_needed() -> None:
    kept = jit.compile_ir(SINE, ["twice"]).object_bytes  # the first code is freed here
    code = jit.load_object(kept, ["sine", "twice"])
    assert twice(code, -4) == -8 and sine(code, 0.0) == 0.0
    assert code.object_bytes == kept


FAILING = """
import gc
from stator.codegen import jit
for n in range(3):
    try:
        jit.compile_ir("define i32 @f() { %a = add i32 %a, 1 ret i32 %a }", ["f"])
        raise SystemExit("compiled")
    except RuntimeError as error:
        error.me = error
    gc.collect()
    assert jit.compile_ir("define i32 @f() { ret i32 3 }", ["f"]).address("f")
print("alive")
"""


def test_the_collector_ends_what_an_exception_has_left_of_a_module() -> None:
    done = subprocess.run([sys.executable, "-c", FAILING], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr[-2000:]


def test_two_modules_may_define_the_same_name() -> None:
    other = jit.compile_ir("define i64 @twice(i64 %x) { ret i64 7 }", ["twice"])
    assert (twice(jit.compile_ir(SINE, ["twice"]), 5), twice(other, 5)) == (10, 7)


def test_a_wrong_module_or_name_raises() -> None:
    with pytest.raises(RuntimeError):
        jit.compile_ir("define i64 @f() { ret float 0.0 }", ["f"])
    with pytest.raises(jit.Unavailable):
        jit.compile_ir(SINE, ["not there"])
    with pytest.raises(jit.Unavailable):
        jit.load_object(b"no object file", ["twice"])


def test_code_is_freed_with_its_last_reference() -> None:
    constants = ", ".join(f"i64 {n * 7919}" for n in range(65536))
    text = f"""
@table = internal constant [65536 x i64] [{constants}]
define i64 @at(i64 %n) {{
  %where = getelementptr [65536 x i64], ptr @table, i64 0, i64 %n
  %value = load i64, ptr %where
  ret i64 %value
}}"""
    code = jit.compile_ir(text, ["at"])
    kept = code.object_bytes

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for _ in range(5):
        jit.load_object(kept, ["at"])
    before = resident()
    for _ in range(100):
        jit.load_object(kept, ["at"])
    assert resident() - before < 20 * len(kept)
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address("at"))(3) == 3 * 7919


def test_threads_compile_at_once() -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(5):
            code = jit.compile_ir(f"define i64 @twice(i64 %x) {{ ret i64 {number * 100 + turn} }}", ["twice"])
            if twice(code, 0) != number * 100 + turn:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_child_compiles_though_a_thread_of_its_parent_was_compiling() -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            jit.compile_ir(SINE, ["twice"])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(5):
            time.sleep(0.005)
            child = os.fork()
            if child == 0:
                os._exit(0 if twice(jit.compile_ir(SINE, ["twice"]), 3) == 6 else 1)
            for _ in range(1000):
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    break
                time.sleep(0.02)
            else:
                os.kill(child, 9)
                os.waitpid(child, 0)
                pytest.fail("the child hangs")
            assert status == 0
    finally:
        stop.set()
        thread.join()


def test_an_import_loads_no_llvm() -> None:
    program = "import sys, stator.codegen.jit; sys.exit('llvmlite' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_other_machines_are_known() -> None:
    assert "\tret" in jit.assembly(SINE, jit.Target("aarch64-unknown-linux-gnu", "generic", ""))


# ------------------------------------------------------------------------------------------- where LLVM cannot be used


@pytest.fixture
def not_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not asked for LLVM yet."""
    monkeypatch.setattr(jit, "_llvm", None)
    monkeypatch.setattr(jit, "_unavailable", None)


def why_not() -> str:
    """The one line that says why no code can be made."""
    with pytest.raises(jit.Unavailable) as caught:
        jit.compile_ir(SINE, ["twice"])
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.usefixtures("not_set_up")
def test_without_llvmlite(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as inside:
        inside.setitem(sys.modules, "llvmlite.binding", None)
        first = why_not()
    assert first.startswith("llvmlite cannot be imported: ")
    assert why_not() == first  # it is not tried again with every kernel


@pytest.mark.usefixtures("not_set_up")
@pytest.mark.parametrize("missing", ["create_lljit_compiler", "ModulePassManager.add_simplify_cfg_pass"])
def test_a_version_of_llvmlite_that_is_too_old(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    binding: Any = importlib.import_module("llvmlite.binding")
    name = missing.rpartition(".")[2]
    owner = binding.ModulePassManager if "." in missing else binding
    for holder in getattr(owner, "__mro__", [owner]):
        if name in vars(holder):
            monkeypatch.delattr(holder, name)
    text = why_not()
    assert f"has no {name}" in text and "0.45 is the oldest" in text and jit.OLDEST == "0.45"


@pytest.mark.usefixtures("not_set_up")
def test_a_setup_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("no features\nof this processor are known")

    monkeypatch.setattr("llvmlite.binding.get_host_cpu_features", fail)
    assert why_not() == "LLVM cannot be set up here: no features of this processor are known"


REFUSE_EXECUTABLE_MEMORY = 65  # PR_SET_MDWE: since Linux 6.3


@pytest.mark.parametrize("when", ["before the first code", "later"])
def test_a_system_that_refuses_executable_memory(when: str) -> None:
    code = jit.compile_ir(SINE, ["twice"])
    child = os.fork()
    if child == 0:
        try:
            if when != "later":
                jit._llvm = None
            if ctypes.CDLL(None).prctl(REFUSE_EXECUTABLE_MEMORY, 1, 0, 0, 0) != 0:  # an older kernel: as if
                jit.executable_memory_refused = lambda: "this system refuses executable memory: Permission denied"
            assert why_not() == "this system refuses executable memory: Permission denied"
            assert twice(code, 4) == 8 or when != "later"  # what is there stays
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


OF_ANOTHER_USER = """
import llvmlite.binding as llvm

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
lines = ["define void @f(ptr %p, i64 %n) {", "entry:", "br label %l", "l:", "%i = phi i64 [0, %entry], [%j, %l]"]
for n in range(9):
    lines += [f"%a{n} = getelementptr [99 x float], ptr %p, i64 %i, i64 {n * 7}", f"%x{n} = load float, ptr %a{n}"]
    lines += [f"%y{n} = fadd float %x{n}, 1.0", f"store float %y{n}, ptr %a{n}"]
lines += ["%j = add i64 %i, 1", "%m = icmp slt i64 %j, %n", "br i1 %m, label %l, label %e", "e:", "ret void", "}"]
machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
module = llvm.parse_assembly("\\n".join(lines))
passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
passes.getModulePassManager().run(module, passes)
made = machine.emit_assembly(module)
"""


def test_other_users_of_llvmlite_get_the_same_code() -> None:
    """No option of the whole process is set, such as numba's code would change with."""
    command = [sys.executable, "-c", OF_ANOTHER_USER + "print(made)"]
    alone = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    jit.compile_ir(SINE, ["twice"])
    names: dict[str, str] = {}
    exec(OF_ANOTHER_USER, names)
    assert "ret" in alone and alone.strip() == names["made"].strip()

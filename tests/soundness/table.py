"""`docs/design/soundness.md`, written from the rows below and the names of the tests that are there:

    PYTHONPATH=tests/soundness python -m table > docs/design/soundness.md

A row is a rule or a pitfall, what goes wrong, and tests elsewhere that attack it. Tests in this folder say by their
names what they attack: `test_rule_3_…`, `test_pitfall_14_…`.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
DOCUMENT = TESTS.parent / "docs" / "design" / "soundness.md"
NAME = re.compile(r"test_(rule|pitfall)_(\d+)_\w+")

RULES: dict[int, tuple[str, str]] = {
    1: (
        "a value enters unseen: a module, class, function or lookup is exchanged and the replay goes on as before",
        "e2e/test_lookups.py::test_bases_are_exchanged e2e/test_lookups.py::test_a_property_is_replaced "
        "e2e/test_closures_and_globals.py::test_a_missing_global_is_noticed_when_it_appears "
        "e2e/test_mutations.py::test_a_change_of_what_was_read_is_noticed "
        "e2e/test_modules.py::test_a_module_is_replaced",
    ),
    2: (
        "a constant is taken for an equal one of another type, sign or identity",
        "e2e/test_arguments.py::test_numbers_are_guarded_by_value_and_type "
        "e2e/test_arguments.py::test_zeros_of_both_signs_and_nan e2e/test_rebuilt_results.py::test_the_sign_of_a_zero",
    ),
    3: (
        "a container keeps its length and changes its content, its order or its ways",
        "e2e/test_containers.py::test_dicts_with_other_keys "
        "e2e/test_reads_inside_c_code.py::test_a_list_with_an_iteration_of_its_own "
        "e2e/test_hidden_state.py::test_the_order_of_an_ordered_dict_is_guarded_even_if_its_keys_are_the_same",
    ),
    4: (
        "two names become one object, or one object two, and writes land elsewhere",
        "e2e/test_guards.py::test_two_arguments_become_one_object "
        "e2e/test_guards.py::test_one_object_becomes_two_arguments "
        "e2e/test_values_of_tensors.py::test_two_tensors_on_one_storage",
    ),
    5: (
        "C code reads or changes more than its arguments show",
        "e2e/test_c_code_reads.py::test_reading_an_object "
        "e2e/test_c_code_writes.py::test_a_change_is_made_on_every_call "
        "e2e/test_environment.py::test_environment_variables watch/test_world.py::test_every_row_is_complete",
    ),
    6: (
        "an effect is lost, made twice, or read back as it was before",
        "e2e/test_unusual_effects.py::test_a_class_attribute_read_after_it_was_written "
        "e2e/test_closures_and_globals.py::test_a_global_tensor_accumulates "
        "e2e/test_tensors.py::test_an_input_is_changed_through_a_view",
    ),
    7: (
        "a graph runs on a tensor that nobody checked in this call",
        "e2e/test_guards.py::test_changed_dtype e2e/test_guards.py::test_changed_stride_behind_equal_sizes "
        "e2e/test_tensors.py::test_the_data_of_an_input_is_exchanged "
        "replay/test_layout.py::test_every_tensor_matches_its_own_facts_and_no_others "
        "watch/test_digest.py::test_an_address_is_not_an_object watch/test_engine.py::test_nothing_dangles",
    ),
    8: (
        "something fails inside stator and the program notices",
        "e2e/test_internal_failures.py::test_a_fault_in "
        "e2e/test_bad_input.py::test_a_backend_that_raises_gives_the_plain_result_and_a_warning "
        "e2e/test_hidden_state.py::test_a_failing_replay_has_not_changed_an_input_twice",
    ),
}

PITFALLS: dict[int, tuple[str, str]] = {
    1: (
        "depths in exception tables are wrong behind nested `try/finally: raise`",
        "watch/test_instrument.py::test_copies_of_much_code_are_exact watch/test_continuation.py::test_much_code "
        "watch/test_hook_unnoticed.py::test_programs_do_the_same_when_watched",
    ),
    2: (
        "the depth behind RETURN_GENERATOR is counted wrong",
        "watch/test_instrument.py::test_copies_of_much_code_are_exact "
        "watch/test_hook_unnoticed.py::test_a_generator_may_outlive_its_function_and_its_recording",
    ),
    3: (
        "class bodies and `exec` have locals of their own",
        "watch/test_hook_classification.py::test_class_bodies_and_finalizers_are_blind "
        "e2e/test_bad_input.py::test_exec_and_eval_inside",
    ),
    4: (
        "watched recursion uses up the C stack",
        "watch/test_hook_limits.py::test_deep_recursion_ends_the_recording_not_the_process "
        "e2e/test_exceptions.py::test_a_recursion_without_end",
    ),
    5: (
        "a probe stands between instructions that must stay neighbours",
        "watch/test_instrument.py::test_a_copy_runs_by_itself watch/test_probes.py::test_with "
        "e2e/test_with.py::test_a_context_manager_swallows_an_exception",
    ),
    6: (
        "gradients are lost: custom functions, hooks, checkpoints",
        "e2e/test_autograd.py::test_a_custom_gradient e2e/test_autograd.py::test_full_backward_hook_on_a_module "
        "e2e/test_autograd.py::test_saved_tensors_hooks",
    ),
    7: (
        "torch's global state changes where the tensor mode does not see it",
        "e2e/test_guards_of_state.py::test_changed_state_of_torch "
        "e2e/breaks/test_breaks_torch_state.py::test_a_step_changes_it "
        "replay/test_state.py::test_modes_in_every_thread e2e/test_environment.py::test_switches_of_torch",
    ),
    8: (
        "tensors appear from nowhere, or are written past the tensor mode",
        "e2e/test_autograd.py::test_parameters_and_subclasses_made_inside "
        "e2e/test_autograd.py::test_in_place_change_behind_our_back "
        "e2e/test_autograd.py::test_tensors_from_numpy_and_back",
    ),
    9: (
        "memory, numbers and nodes of autograd escape to Python",
        "e2e/test_bad_input.py::test_tensors_that_leave_as_numpy_arrays "
        "e2e/test_autograd.py::test_storage_and_pointers "
        "e2e/test_fresh_containers.py::test_deep_copies",
    ),
    10: (
        "an instruction that raises leaves absence unguarded",
        "e2e/test_exceptions.py::test_a_missing_attribute_is_guarded "
        "e2e/test_exceptions.py::test_a_missing_key_is_guarded",
    ),
    11: (
        "an instruction without a probe reads unseen",
        "watch/test_probes.py::test_matching watch/test_probes.py::test_unpacking "
        "e2e/test_control_flow.py::test_match_on_values_and_types",
    ),
    12: (
        "code that is not watched reads state unseen",
        "watch/test_hook_classification.py::test_blind_code_is_reported_and_runs_unwatched "
        "watch/test_hook_classification.py::test_a_failing_instrumenter_is_blindness_for_now",
    ),
    13: (
        "a leaf runs the program's code unseen",
        "watch/test_hook_every_frame.py::test_every_foreign_frame_in_a_leaf_is_reported_however_warm_the_code_is "
        "e2e/test_autograd.py::test_a_tensor_subclass_with_its_own_torch_function",
    ),
    14: (
        "C callables with state: getters, partials, caches, weak references, context variables, iterators",
        "e2e/test_hidden_state.py::test_context_variables e2e/test_hidden_state.py::test_thread_local_state "
        "e2e/test_unusual_effects.py::test_an_iterator_from_outside_is_moved_by_c_code",
    ),
    15: (
        "finalizers and signal handlers run inside a recording",
        "e2e/test_hidden_state.py::test_finalizers_run_inside "
        "e2e/test_hidden_state.py::test_earlier_garbage_is_collected_during_a_recording",
    ),
    16: (
        "one thread takes the hook away from another",
        "e2e/test_threads.py::test_two_threads_record_different_functions "
        "watch/test_hook_limits.py::test_threads_record_apart "
        "watch/test_neighbour.py::test_who_throws_us_out_is_noticed",
    ),
    17: (
        "a callee of torch.compile is given code with probes, or torch.compile is given ours",
        "watch/test_neighbour.py::test_who_comes_during_a_recording_and_stays",
    ),
    18: (
        "tracers and profilers see our callbacks; instrumenting takes quadratic time",
        "watch/test_hook_unnoticed.py::test_tracers_see_the_same_lines "
        "watch/test_hook_unnoticed.py::test_profilers_do_not_see_handlers "
        "watch/test_instrument.py::test_the_work_is_linear",
    ),
    19: (
        "a program sees the mode that watches it and takes another path",
        "e2e/test_modules.py::test_transformer_encoder_takes_the_same_path_as_plain "
        "e2e/test_hidden_state.py::test_a_torch_function_mode_of_the_program",
    ),
    20: (
        "what the program lets go of lives on",
        "watch/test_hook_unnoticed.py::test_the_original_frame_lets_go_of_its_arguments "
        "e2e/test_hidden_state.py::test_what_the_function_lets_go_is_free_after_the_call "
        "watch/test_break_step.py::test_what_was_let_go_of_dies",
    ),
    21: (
        "names, lines and tracebacks of copies differ",
        "watch/test_instrument.py::test_lines_of_a_traceback "
        "watch/test_hook_unnoticed.py::test_super_without_a_first_argument_stays_an_error "
        "e2e/test_environment.py::test_frames_locals_and_globals_are_inspected",
    ),
    22: ("properties of tensors arrive as wrappers of slots", "e2e/test_text_and_types.py::test_questions_to_a_tensor"),
    23: (
        "`x ** 2` arrives under a name that does not exist",
        "e2e/test_tensors.py::test_operators_with_python_numbers_on_either_side",
    ),
    24: (
        "values that a graph cannot hold as arguments",
        "e2e/test_environment.py::test_numpy_arrays_and_scalars_from_outside",
    ),
    25: (
        "nodes for their effect alone are removed as dead",
        "e2e/test_tensors.py::test_an_intermediate_is_changed_in_place "
        "e2e/test_modules.py::test_batch_norm_updates_its_buffers_in_training",
    ),
    26: (
        "a replay that fails leaves torch's modes changed",
        "e2e/test_with.py::test_grad_mode_is_restored_when_an_exception_leaves_the_block",
    ),
    27: (
        "temporary objects share an address",
        "e2e/test_hidden_state.py::test_temporary_objects_that_share_an_address "
        "watch/test_probe_filters.py::test_functions_at_the_same_address_are_all_entered",
    ),
    28: ("an operation returns its input", "e2e/test_tensors.py::test_operations_that_return_their_input"),
    29: (
        "identity of interned values; functions with the same name and another code",
        "e2e/test_lookups.py::test_the_code_of_a_helper e2e/test_lookups.py::test_defaults_of_a_helper "
        "e2e/test_lookups.py::test_the_closure_of_a_helper",
    ),
}

_HEAD = """# Soundness: what is attacked, and where

<!-- Written by `tests/soundness/table.py`: change it there, or name a test after what it attacks. -->

Rules and pitfalls by number, as they are listed in the architecture. Each attack replays a program, changes its
surroundings, and compares results, effects, aliasing and exceptions with the plain program's after every call.
"""
_ACCEPTED = """
## What a program can notice

- Reference counts (`sys.getrefcount`) and `cache_info()` of a cached function: guards ask the cache, too.
- An argument that the caller holds nowhere else dies when the call returns, not at `del` inside.
- What Python code in a checkpointed region changes, it changes once: the region is not run again as Python.
- A NaN that stands among numbers known to change (a symbol) is compared by value: no container has it.
- Builtins that stator itself uses, exchanged while a recording is on: a warning, and the program runs plain.
- `sys.set_int_max_str_digits`: a text once made of a number of more than 640 digits is a constant.
- Objects that only a container or object is holding which is let go of: if they have finalizers of their own, these may
  run at the end of the segment.
"""


@functools.cache
def attacks() -> dict[tuple[str, int], list[str]]:
    """The tests in this folder, by what they attack."""
    found: dict[tuple[str, int], list[str]] = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for name in functions_of(path):
            match = NAME.fullmatch(name)
            if match is not None:
                found.setdefault((match[1], int(match[2])), []).append(f"soundness/{path.name}::{name}")
    return found


@functools.cache
def functions_of(path: Path) -> frozenset[str]:
    return frozenset(node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef))


def _shown(tests: list[str]) -> str:
    """By file, the names without what they have in common."""
    files: dict[str, list[str]] = {}
    for test in tests:
        path, _, name = test.partition("::")
        files.setdefault(path, []).append(re.sub(r"^test_((rule|pitfall)_\d+_)?", "", name))
    return "; ".join(f"`{path}`: {', '.join(sorted(names))}" for path, names in files.items())


def _rows(kind: str, rows: dict[int, tuple[str, str]]) -> list[str]:
    lines = [f"| {kind} | what goes wrong | tests |", "| --- | --- | --- |"]
    for number, (what, elsewhere) in rows.items():
        tests = [*attacks().get((kind, number), []), *elsewhere.split()]
        lines.append(f"| {number} | {what} | {_shown(tests)} |")
    return lines


def render() -> str:
    parts = [_HEAD, "## Rules\n", *_rows("rule", RULES), "\n## Pitfalls\n", *_rows("pitfall", PITFALLS)]
    return "\n".join(parts) + "\n" + _ACCEPTED


if __name__ == "__main__":
    print(render(), end="")

"""Options: checked when set, named when misspelt, read from the environment, overridden per callable."""

from __future__ import annotations

import copy
import gc
import logging
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from stator.options import FIELDS, Options, default, describe, from_environment, options

DOCUMENTED = [
    "verbose",
    "log_level",
    "suppress_errors",
    "cache_size_limit",
    "output_code",
    "print_guards",
    "dynamic_shapes",
    "assume_static_by_default",
    "capture_scalar_outputs",
    "reorder_print",
    "native_random",
    "frozen_weights",
    "cuda_graphs",
    "debug_dir",
    "verify",
    "check_guards",
    "background_compile",
    "cache_dir",
    "code_cache_mib",
]


def test_every_documented_option_exists_and_no_other() -> None:
    assert list(FIELDS) == DOCUMENTED


def test_every_option_says_what_it_does() -> None:
    for name in FIELDS:
        assert describe(name).endswith("."), name


def test_the_defaults_are_those_of_the_contract() -> None:
    fresh = Options()
    assert fresh.suppress_errors is True
    assert fresh.cache_size_limit == 8
    assert fresh.log_level == logging.WARNING
    assert fresh.debug_dir is None
    off = ["verbose", "output_code", "print_guards", "capture_scalar_outputs", "verify", "background_compile"]
    assert [getattr(fresh, name) for name in off] == [False] * len(off)
    assert fresh.to_dict() == {name: default(name) for name in FIELDS}


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("verbos", "verbose"), ("cache_limit", "cache_size_limit"), ("supress_errors", "suppress_errors")],
)
def test_an_unknown_option_names_the_nearest_known_one(wrong: str, meant: str) -> None:
    fresh = Options()
    with pytest.raises(AttributeError, match=f"no option '{wrong}'; the nearest is '{meant}'"):
        setattr(fresh, wrong, True)
    with pytest.raises(AttributeError, match=f"nearest is '{meant}'"):
        getattr(fresh, wrong)
    with pytest.raises(AttributeError, match=f"nearest is '{meant}'"), fresh.patch(**{wrong: True}):
        pass
    with pytest.raises(AttributeError, match=f"nearest is '{meant}'"):
        fresh.merged({wrong: True})


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("verbose", 1, TypeError),
        ("verbose", "yes", TypeError),
        ("cache_size_limit", 0, ValueError),
        ("cache_size_limit", -1, ValueError),
        ("cache_size_limit", True, TypeError),
        ("cache_size_limit", 8.0, TypeError),
        ("log_level", "LOUD", ValueError),
        ("log_level", None, TypeError),
        ("code_cache_mib", -1, ValueError),
        ("code_cache_mib", True, TypeError),
        ("cache_dir", 3, TypeError),
        ("cuda_graphs", 1, TypeError),
        ("debug_dir", 3, TypeError),
        ("debug_dir", b"/tmp", TypeError),
    ],
)
def test_a_wrong_value_is_refused_and_the_old_one_stays(name: str, value: object, error: type) -> None:
    fresh = Options()
    with pytest.raises(error, match=f"option {name} must be"):
        setattr(fresh, name, value)
    assert getattr(fresh, name) == default(name)


def test_values_are_stored_in_one_form() -> None:
    fresh = Options(log_level="debug", debug_dir=Path("some") / "where")
    assert fresh.log_level == logging.DEBUG
    assert fresh.debug_dir == os.path.join("some", "where")


def test_patch_restores_also_after_an_exception_and_when_nested() -> None:
    fresh = Options()
    with pytest.raises(KeyError), fresh.patch(verbose=True, cache_size_limit=2):
        with fresh.patch(cache_size_limit=3):
            assert (fresh.verbose, fresh.cache_size_limit) == (True, 3)
        assert fresh.cache_size_limit == 2
        raise KeyError
    assert (fresh.verbose, fresh.cache_size_limit) == (False, 8)


def test_patch_with_one_wrong_value_changes_nothing() -> None:
    fresh = Options()
    with pytest.raises(ValueError), fresh.patch(verbose=True, cache_size_limit=0):
        pass
    assert fresh.verbose is False


def test_an_option_cannot_be_deleted() -> None:
    with pytest.raises(AttributeError, match="cannot be deleted; its default is 8"):
        del Options().cache_size_limit


def test_a_view_shows_its_overrides_and_follows_the_rest() -> None:
    fresh = Options()
    view = fresh.merged({"cache_size_limit": 2})
    fresh.verbose = True
    fresh.cache_size_limit = 5
    assert (view.verbose, view.cache_size_limit) == (True, 2)
    with fresh.patch(suppress_errors=False):
        assert view.suppress_errors is False
    assert view.suppress_errors is True


def test_a_view_cannot_be_changed() -> None:
    view = Options().merged()
    with pytest.raises(AttributeError, match=r"fixed; set stator\.options\.verbose"):
        view.verbose = True
    with pytest.raises(AttributeError, match="nearest is 'verbose'"):
        view.verbos = True
    assert view.verbose is False


def test_overrides_are_checked_when_given() -> None:
    with pytest.raises(ValueError, match="cache_size_limit must be at least 1"):
        Options().merged({"cache_size_limit": 0})


def test_a_view_survives_copy_and_pickle() -> None:
    view = options.merged({"verify": True})
    for twin in (copy.deepcopy(view), pickle.loads(pickle.dumps(view))):
        assert twin.to_dict() == view.to_dict()
        with options.patch(cache_size_limit=3):
            assert twin.cache_size_limit == 3


def test_views_are_not_kept_alive() -> None:
    fresh = Options()
    for _ in range(10):
        fresh.merged({"verbose": True})
    gc.collect()
    assert len(fresh._views) == 0


def test_listeners_hear_of_every_change_until_they_leave() -> None:
    fresh = Options()
    seen: list[bool] = []
    leave = fresh.on_change(lambda: seen.append(fresh.verbose))
    fresh.verbose = True
    with fresh.patch(verbose=False):
        pass
    leave()
    fresh.verbose = False
    assert seen == [True, False, True]


def test_printing_the_options_documents_them() -> None:
    text = str(Options())
    assert "cache_size_limit = 8\n    Recordings kept per function." in text


# ------------------------------------------------------------------------------------------------ environment


def test_the_environment_sets_options() -> None:
    made = from_environment(
        {
            "STATOR_VERBOSE": "1",
            "STATOR_SUPPRESS_ERRORS": "false",
            "STATOR_CACHE_SIZE_LIMIT": "3",
            "STATOR_LOG_LEVEL": "info",
            "STATOR_DEBUG_DIR": "some/where",
            "STATOR_LOGS": "guards",
            "HOME": "/",
        }
    )
    assert made.verbose is True
    assert made.suppress_errors is False
    assert made.cache_size_limit == 3
    assert made.log_level == logging.INFO
    assert made.debug_dir == "some/where"


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("STATOR_VERBOS", "1", "nearest is 'verbose'"),
        ("STATOR_VERBOSE", "perhaps", "must be 1 or 0, not 'perhaps'"),
        ("STATOR_CACHE_SIZE_LIMIT", "0", "must be at least 1"),
        ("STATOR_CACHE_SIZE_LIMIT", "many", "many"),
        ("STATOR_LOG_LEVEL", "loud", "must be a level"),
    ],
)
def test_a_mistake_in_the_environment_warns_and_is_ignored(variable: str, text: str, said: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = from_environment({variable: text})
    assert len(caught) == 1
    assert variable in str(caught[0].message)
    assert said in str(caught[0].message)
    assert made.to_dict() == Options().to_dict()


def test_a_process_started_with_variables_sees_them() -> None:
    program = "from stator.options import options; print(options.verify, options.log_level)"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "STATOR_VERIFY": "1", "STATOR_LOG_LEVEL": "10"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == ["True", "10"]

"""Runs test modules of this folder without pytest: `python run_plain.py test_hook test_probes ...`.

For interpreters that have nothing installed; the tests here are plain functions."""

from __future__ import annotations

import importlib
import sys
import traceback


def main(names: list[str]) -> int:
    passed = failed = 0
    for name in names:
        module = importlib.import_module(name)
        for key, test in list(vars(module).items()):
            if not key.startswith("test_"):
                continue
            try:
                test()
                passed += 1
            except Exception:
                failed += 1
                print(f"FAILED {name}.{key}")
                traceback.print_exc()
    print(f"Python {sys.version.split()[0]}: {passed} passed, {failed} failed", flush=True)
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

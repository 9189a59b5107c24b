"""The tests of the page that need a browser: `python tests/report/in_browser.py [option of pytest ...]`.

A part of `make conformance`. `make test` reads the page as a parser of HTML does; here a browser opens it. Without one
this fails.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import browser

TESTS = "-p", "no:cacheprovider", "-m", "browser", str(Path(__file__).parent)


def main() -> int:
    if browser.EXECUTABLE is None:
        print(browser.WHY_NOT)
        return 1
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *TESTS, *sys.argv[1:]], capture_output=True, text=True, check=False
    )
    print(done.stdout)
    passed, failed = ([*map(int, re.findall(rf"(\d+) {word}", done.stdout)), 0][0] for word in ("passed", "failed"))
    print(f"tests in a browser passed / failed: {passed} / {failed}")
    return done.returncode or int(passed == 0)


if __name__ == "__main__":
    sys.exit(main())

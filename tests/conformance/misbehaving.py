"""Tests that do otherwise when they are watched, in every way there is: what the comparison itself is tested with."""

from __future__ import annotations

import os
import sys
import time
import unittest

WATCHED = sys.argv[1] != "plain"


class Misbehaving(unittest.TestCase):
    def test_a_same(self) -> None:
        self.assertEqual(1, 1)

    def test_b_crashes(self) -> None:
        if WATCHED:
            os.abort()

    def test_c_same_failure(self) -> None:
        raise KeyError(id(self))

    def test_d_hangs(self) -> None:
        if WATCHED:
            time.sleep(1000)

    def test_e_raises_something_else(self) -> None:
        raise (TypeError if WATCHED else ValueError)

    def test_f_skips(self) -> None:
        if WATCHED:
            self.skipTest("watched")

    def test_g_a_part_fails(self) -> None:
        for number in range(3):
            with self.subTest(number=number):
                self.assertFalse(WATCHED and number == 1)

    def test_h_same_skip(self) -> None:
        self.skipTest("always")

"""The C extension; everything else is in pyproject.toml."""

from glob import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "stator._native",
            sources=sorted(glob("src/stator/_native/*.c")),
            depends=sorted(glob("src/stator/_native/*.h")),
            extra_compile_args=["-O2", "-flto", "-std=c11", "-fvisibility=hidden", "-Wall", "-Wextra"],
            extra_link_args=["-O2", "-flto"],  # the way of a call leads through many files
        )
    ]
)

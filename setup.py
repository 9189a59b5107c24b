"""The C extension; everything else is in pyproject.toml."""

from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

WHOLE = "-flto"  # the way of a call leads through many files


class Build(build_ext):
    """Optimised as a whole, where the compiler can do that."""

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except (CompileError, LinkError) as error:
            print(f"without {WHOLE}, because of: {error}")
            ext.extra_compile_args.remove(WHOLE)
            ext.extra_link_args.remove(WHOLE)
            self.force = True
            super().build_extension(ext)


setup(
    cmdclass={"build_ext": Build},
    ext_modules=[
        Extension(
            "stator._native",
            sources=sorted(glob("src/stator/_native/*.c")),
            depends=sorted(glob("src/stator/_native/*.h")),
            extra_compile_args=["-O2", WHOLE, "-std=c11", "-fvisibility=hidden", "-Wall", "-Wextra"],
            extra_link_args=["-O2", WHOLE],
        )
    ],
)

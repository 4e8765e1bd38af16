"""Builds the optional statistics kernel; everything else about the package is in pyproject.toml."""

import sys

from setuptools import Extension, setup

# MSVC optimises by default and has neither of these flags.
FLAGS = [] if sys.platform == "win32" else ["-O3", "-pthread"]

setup(
    ext_modules=[
        Extension(
            "ampcheck.observe._exphist",
            sources=["ampcheck/observe/_exphist.c"],
            depends=["ampcheck/observe/_exphist_blocks.h", "ampcheck/observe/_exphist_x86.h"],
            define_macros=[("Py_LIMITED_API", "0x030b0000")],
            extra_compile_args=FLAGS,
            extra_link_args=FLAGS[1:],
            py_limited_api=True,
            optional=True,  # without a compiler the torch path of measure.py does the same, slower
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)

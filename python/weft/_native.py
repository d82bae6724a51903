"""Loads the module of TVM FFI exports (python/ffi) and gives its functions by name. Knows where the
wheel keeps its libraries, and nothing of arrays."""

import ctypes
import json
import os
import pathlib

import tvm_ffi

# Statuses arrive as exceptions by these names; TVM FFI knows the others already.
tvm_ffi.register_error("NotImplementedError", NotImplementedError)

# Values of weft.h.
F32, BF16, F16, I32, I64, E4M3 = 1, 2, 3, 4, 5, 6
ENTROPY, DX, DW, STEP = 1, 2, 4, 8
AUTO, CPU, CUDA = 0, 1, 2
DX_MODES = {"all_reduce": 0, "reduce_scatter": 1, "none": 2}


def _use_bundled_blas(folder):
    """The wheel may bring an OpenBLAS, which needs two of gcc's libraries: loaded first, they are
    found."""
    library = folder / "libopenblas.so.0"
    if "WEFT_BLAS" in os.environ or not library.exists():
        return
    for name in ("libquadmath.so.0", "libgfortran.so.5"):
        if (folder / name).exists():
            ctypes.CDLL(str(folder / name))
    os.environ["WEFT_BLAS"] = str(library)


class _Functions:
    """The exports, each looked up once: functions.ce_forward(...) is `__tvm_ffi_ce_forward`."""

    def __init__(self):
        here = pathlib.Path(__file__).resolve().parent
        _use_bundled_blas(here / "blas")
        self._module = tvm_ffi.load_module(
            os.environ.get("WEFT_FFI_LIBRARY") or str(here / "weft_ffi.so")
        )

    def __getattr__(self, name):
        function = self._module.get_function(name)
        setattr(self, name, function)
        return function


functions = _Functions()


def told(name, *arguments):
    """Calls a function that answers in JSON."""
    return json.loads(getattr(functions, name)(*arguments))

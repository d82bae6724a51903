"""weft: linear cross entropy without logits, and expert parallelism's exchange, over a team of
ranks. PyTorch tensors and NumPy arrays; torch is imported when it is first needed."""

import importlib

from . import _native
from ._api import Step, linear_cross_entropy, step
from ._plan import check_errors
from ._plan import clear as clear_plans
from .team import Team

_number = _native.functions.version()
__version__ = f"{_number // 10000}.{_number // 100 % 100}.{_number % 100}"
__all__ = [
    "LinearCrossEntropyLoss",
    "Step",
    "Team",
    "check_errors",
    "clear_plans",
    "compat",
    "ep",
    "info",
    "linear_cross_entropy",
    "step",
]


def info():
    """What the library found on this machine: a dict."""
    return _native.told("system_info")


def __getattr__(name):
    if name in ("ep", "compat"):
        return importlib.import_module(f"{__name__}.{name}")
    if name == "LinearCrossEntropyLoss":
        from ._torch import LinearCrossEntropyLoss

        return LinearCrossEntropyLoss
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Other libraries' loss heads by their names and arguments, on weft: verl, cce (Apple's
cut_cross_entropy), liger and megatron. An argument that weft has no answer to raises
NotImplementedError; none is ignored."""

from . import cce, liger, megatron, verl

__all__ = ["cce", "liger", "megatron", "verl"]

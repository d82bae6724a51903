"""Apple's cut_cross_entropy: linear_cross_entropy, its module, and VocabParallelOptions."""

import dataclasses
from typing import Any

import torch

from .._api import linear_cross_entropy as _linear_cross_entropy
from ._common import refuse

IGNORE_INDEX = -100


@dataclasses.dataclass
class VocabParallelOptions:
    """The rows of c that this rank of the group holds."""

    start: int
    stop: int
    group: Any = None
    reduce_e_grad: bool = True


def linear_cross_entropy(
    e,
    c,
    targets,
    ignore_index=IGNORE_INDEX,
    softcap=None,
    reduction="mean",
    shift=False,
    filter_eps="auto",
    impl="cce",
    *,
    bias=None,
    return_lse=False,
    accum_e_fp32=False,
    accum_c_fp32=False,
    filter_e_grad=True,
    filter_c_grad=True,
    vocab_parallel_options=None,
):
    """Cross entropy of softcap(e·cᵀ). shift: predict the targets that many places later. filter_eps
    lets gradients leave out what is small, under its names; weft leaves nothing out. Sums are f32,
    as accum_e_fp32 and accum_c_fp32 ask. impl is how; "cce" and "cce_exact" mean weft."""
    refuse(bias=(bias, None), filter_eps=(filter_eps, "auto", "high", None))
    if str(getattr(impl, "name", impl)).lower() not in (
        "cce",
        "cce_exact",
        "cce_kahan_full_c",
        "cce_kahan_full",
    ):
        raise NotImplementedError(f"impl is {impl!r}, expected a form of cce")
    for name, value in dict(
        filter_e_grad=filter_e_grad,
        filter_c_grad=filter_c_grad,
        accum_e_fp32=accum_e_fp32,
        accum_c_fp32=accum_c_fp32,
    ).items():
        if not isinstance(value, bool):  # both of each are what weft does: exact sums in f32
            raise TypeError(f"{name} is {value!r}, expected a bool")
    shift = int(shift)
    if shift < 0:
        raise ValueError(f"shift is {shift}, expected at least 0")
    if shift:
        e, targets = e[..., :-shift, :], targets[..., shift:]
    options = {}
    if vocab_parallel_options is not None:
        v = vocab_parallel_options
        if v.stop - v.start != c.shape[0]:
            raise ValueError(
                f"vocab_parallel_options holds rows {v.start} to {v.stop}, c has {c.shape[0]}"
            )
        group = torch.distributed.group.WORLD if v.group is None else v.group
        options = dict(group=group, dx="all_reduce" if v.reduce_e_grad else "none")
    given = _linear_cross_entropy(
        e,
        c,
        targets,
        ignore_index=ignore_index,
        softcap=softcap,
        reduction=reduction,
        return_lse=return_lse,
        **options,
    )
    return given


class LinearCrossEntropy(torch.nn.Module):
    def __init__(
        self,
        ignore_index=IGNORE_INDEX,
        softcap=None,
        reduction="mean",
        filter_eps="auto",
        shift=False,
        impl="cce",
        **more,
    ):
        super().__init__()
        self.options = dict(
            ignore_index=ignore_index,
            softcap=softcap,
            reduction=reduction,
            filter_eps=filter_eps,
            shift=shift,
            impl=impl,
            **more,
        )

    def forward(self, e, c, targets):
        return linear_cross_entropy(e, c, targets, **self.options)

"""The functions that users call. They look at what kind of array they are given and hand over;
torch is imported where a tensor comes."""

from typing import Any, NamedTuple

import numpy

from . import _arrays


def linear_cross_entropy(
    x,
    weight,
    target,
    *,
    temperature=1.0,
    ignore_index=-100,
    softcap=None,
    return_entropy=False,
    return_lse=False,
    reduction="none",
    group=None,
    dx="all_reduce",
    vocab_start=None,
    vocab_size=None,
    workspace_bytes=0,
    deterministic=True,
):
    """Cross entropy of the logits c(x·weightᵀ) / temperature, without ever storing them.

    x [..., hidden], weight [vocab, hidden], target [...] (int64 or int32). f32, bf16 or f16 on
    CPUs, bf16 or f16 on GPUs; under torch's autocast x and weight are cast, and their gradients
    come in their own dtype. NumPy arrays give NumPy arrays (16-bit words stand for bf16), without
    gradients.

    reduction: "none": a loss for each token, in f32; "mean": over tokens whose target is not
    ignore_index (0 where there is none); "sum".
    return_entropy, return_lse: also the entropy and the log-sum-exp of each token: (loss[,
    entropy][, lse]). All are differentiable in torch.
    softcap: c(a) = softcap·tanh(a / softcap). temperature: a number, or a tensor of one f32 on x's
    device.
    group: a torch.distributed process group, or a weft.Team, over which the rows of weight are
    split in rank order; x and target are the same on all its ranks, target holds ids of the whole
    vocabulary. Each forward asks the ranks for their number of rows unless vocab_start and
    vocab_size are given; vocab_size below the sum of rows leaves the last ones out, as padding.
    dx: the gradient of x over the group: "all_reduce", the sum on every rank; "none", this rank's
    part; "reduce_scatter", the sum in rows rank·⌈tokens/ranks⌉ and on, 0 in all others.
    workspace_bytes: what a plan may take; 0: the library's choice. Plans are kept
    (weft.clear_plans())."""
    run = _arrays.linear_cross_entropy
    if not isinstance(x, numpy.ndarray):
        from . import _torch

        run = _torch.linear_cross_entropy
    return run(
        x,
        weight,
        target,
        temperature=temperature,
        ignore_index=ignore_index,
        softcap=softcap,
        return_entropy=return_entropy,
        return_lse=return_lse,
        reduction=reduction,
        group=group,
        dx=dx,
        vocab_start=vocab_start,
        vocab_size=vocab_size,
        workspace_bytes=workspace_bytes,
        deterministic=deterministic,
    )


class Step(NamedTuple):
    loss: Any
    dx: Any
    dw: Any
    entropy: Any
    lse: Any


def step(
    x,
    weight,
    target,
    *,
    temperature=1.0,
    ignore_index=-100,
    softcap=None,
    return_entropy=False,
    return_lse=False,
    reduction="mean",
    group=None,
    dx="all_reduce",
    vocab_start=None,
    vocab_size=None,
    workspace_bytes=0,
    deterministic=True,
    g_nll=None,
    g_entropy=None,
    g_lse=None,
    want_dx=True,
    want_dw=True,
    dw=None,
):
    """Loss and gradients in one call, for upstream gradients known beforehand: those of the
    reduction, or with "none" g_nll, g_entropy and g_lse, a number or one for each token. Gives
    Step(loss, dx, dw, entropy, lse), None for what is not wanted. A dw that is given is added to;
    it may be f32 where weight is not. With dx="reduce_scatter", dx has this rank's rows alone.
    Everything else is as in linear_cross_entropy(); nothing is recorded for autograd."""
    if reduction == "none":
        if g_nll is None and g_entropy is None and g_lse is None:
            raise ValueError(
                'reduction is "none" without an upstream gradient, expected g_nll, g_entropy '
                "or g_lse"
            )
    elif g_nll is not None:
        raise ValueError(f'g_nll is given and reduction is {reduction!r}, expected "none"')
    run = _arrays.step
    if not isinstance(x, numpy.ndarray):
        from . import _torch

        run = _torch.step
    return Step(
        *run(
            x,
            weight,
            target,
            temperature=temperature,
            ignore_index=ignore_index,
            softcap=softcap,
            return_entropy=return_entropy,
            return_lse=return_lse,
            reduction=reduction,
            group=group,
            dx=dx,
            vocab_start=vocab_start,
            vocab_size=vocab_size,
            workspace_bytes=workspace_bytes,
            deterministic=deterministic,
            g_nll=g_nll,
            g_entropy=g_entropy,
            g_lse=g_lse,
            want_dx=want_dx,
            want_dw=want_dw,
            dw=dw,
        )
    )

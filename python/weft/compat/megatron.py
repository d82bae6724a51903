"""Megatron-LM's parallel cross entropy over a vocabulary-sharded head: what its
ColumnParallelLinear followed by vocab_parallel_cross_entropy computes, from the head's input and
weight shard, without logits."""

import torch
import torch.distributed as dist

from .._api import linear_cross_entropy as _linear_cross_entropy
from ._common import refuse


class _GatherTokens(torch.autograd.Function):
    """All tokens from each rank's share, as sequence parallelism wants; the gradient that comes
    back has this rank's rows summed already."""

    @staticmethod
    def forward(ctx, hidden, group):
        ctx.rows, ctx.rank = hidden.shape[0], dist.get_rank(group)
        parts = [torch.empty_like(hidden) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, hidden.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, g):
        return g[ctx.rank * ctx.rows : (ctx.rank + 1) * ctx.rows], None


def linear_cross_entropy(
    hidden,
    weight,
    labels,
    tp_group=None,
    reduction="mean",
    ignore_index=-100,
    sequence_parallel=False,
):
    """hidden [sequence, batch, hidden] or [tokens, hidden]; weight, this rank's [vocab / ranks,
    hidden]; labels in hidden's order without its last dimension. With sequence_parallel, hidden is
    this rank's share of the sequence, equal on all ranks, and so is its gradient; labels are those
    of the whole. Losses, f32, in labels' shape where reduction is "none"."""
    shape = labels.shape
    if sequence_parallel:
        if tp_group is None:
            raise ValueError("tp_group is None and sequence_parallel True, expected a group")
        hidden = _GatherTokens.apply(hidden.reshape(-1, hidden.shape[-1]), tp_group)
    return _linear_cross_entropy(
        hidden.reshape(*shape, hidden.shape[-1]),
        weight,
        labels,
        group=tp_group,
        reduction=reduction,
        ignore_index=ignore_index,
        dx="reduce_scatter" if sequence_parallel else "all_reduce",
    )


class LinearCrossEntropy:
    """The autograd class's name: LinearCrossEntropy.apply is the function."""

    apply = staticmethod(linear_cross_entropy)


def vocab_parallel_linear_cross_entropy(hidden, weight, target, label_smoothing=0.0, tp_group=None):
    """vocab_parallel_cross_entropy(hidden·weightᵀ, target, label_smoothing) of a loss for each
    token."""
    refuse(label_smoothing=(label_smoothing, 0.0, 0))
    return linear_cross_entropy(hidden, weight, target, tp_group, reduction="none")

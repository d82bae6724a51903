"""Liger-Kernel's fused linear cross entropies by their function, module and autograd-class names.
The classes have `apply` alone: what is recorded for autograd is weft's operator."""

from typing import Any, NamedTuple

import torch

from .._api import linear_cross_entropy as _linear_cross_entropy
from ._common import refuse


class CrossEntropyOutput(NamedTuple):
    loss: Any
    z_loss: Any = None
    token_accuracy: Any = None
    predicted_tokens: Any = None


def _fused(
    _input,
    weight,
    target,
    bias=None,
    ce_weight=None,
    ignore_index=-100,
    lse_square_scale=0.0,
    label_smoothing=0.0,
    reduction="mean",
    softcap=None,
    return_z_loss=False,
    accum_dtype=None,
    use_token_scaling=False,
    return_token_accuracy=False,
    return_predicted_tokens=False,
    ce_impl=None,
    ce_mode=None,
    chunk_mem_const=1,
):
    """(loss, z_loss, token_accuracy, predicted_tokens). The z-loss is lse_square_scale·lse² of the
    tokens that count; it is part of the loss. Sums are f32 whatever accum_dtype, and there are no
    chunks."""
    refuse(
        bias=(bias, None),
        ce_weight=(ce_weight, None),
        label_smoothing=(label_smoothing, 0.0, 0),
        use_token_scaling=(use_token_scaling, False),
        return_token_accuracy=(return_token_accuracy, False),
        return_predicted_tokens=(return_predicted_tokens, False),
        accum_dtype=(accum_dtype, None, torch.float32),
        ce_impl=(ce_impl, None),
        ce_mode=(ce_mode, None),
        chunk_mem_const=(chunk_mem_const, 1),
    )
    scaled = lse_square_scale != 0 or return_z_loss
    given = _linear_cross_entropy(
        _input,
        weight,
        target,
        ignore_index=ignore_index,
        softcap=softcap,
        return_lse=scaled,
        reduction=reduction,
    )
    if not scaled:
        return given, None, None, None
    loss, lse = given
    valid = target != ignore_index
    z = lse_square_scale * torch.where(valid, lse, 0.0) ** 2
    if reduction != "none":
        z = z.sum()
    if reduction == "mean":
        z = z / valid.sum().clamp(min=1)
    return loss + z, z if return_z_loss else None, None, None


class LigerFusedLinearCrossEntropyFunction:
    apply = staticmethod(_fused)


def liger_fused_linear_cross_entropy(
    input,
    weight,
    target,
    bias=None,
    ce_weight=None,
    ignore_index=-100,
    lse_square_scale=0.0,
    label_smoothing=0.0,
    reduction="mean",
    softcap=None,
    return_z_loss=False,
    accum_dtype=None,
    use_token_scaling=False,
    return_token_accuracy=False,
    return_predicted_tokens=False,
    chunk_mem_const=1,
):
    """The loss, or with return_z_loss a CrossEntropyOutput."""
    given = CrossEntropyOutput(
        *_fused(
            input,
            weight,
            target,
            bias,
            ce_weight,
            ignore_index,
            lse_square_scale,
            label_smoothing,
            reduction,
            softcap,
            return_z_loss,
            accum_dtype,
            use_token_scaling,
            return_token_accuracy,
            return_predicted_tokens,
            chunk_mem_const=chunk_mem_const,
        )
    )
    return given if return_z_loss else given.loss


class LigerFusedLinearCrossEntropyLoss(torch.nn.Module):
    def __init__(
        self,
        ce_weight=None,
        ignore_index=-100,
        lse_square_scale=0.0,
        label_smoothing=0.0,
        reduction="mean",
        softcap=None,
        return_z_loss=False,
        accum_dtype=None,
        use_token_scaling=False,
        return_token_accuracy=False,
        return_predicted_tokens=False,
    ):
        super().__init__()
        self.options = (
            ce_weight,
            ignore_index,
            lse_square_scale,
            label_smoothing,
            reduction,
            softcap,
            return_z_loss,
            accum_dtype,
            use_token_scaling,
            return_token_accuracy,
            return_predicted_tokens,
        )

    def forward(self, lin_weight, _input, target, bias=None):
        return liger_fused_linear_cross_entropy(_input, lin_weight, target, bias, *self.options)


def _count(name, value, least=1):
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}, expected an int")
    if value < least:
        raise ValueError(f"{name} is {value}, expected at least {least}")


def _scaled(_input, weight, target, group, temperature, ignore_index, return_entropy):
    if not isinstance(return_entropy, bool):
        raise TypeError(f"return_entropy is {return_entropy!r}, expected a bool")
    return _linear_cross_entropy(
        _input,
        weight,
        target,
        temperature=temperature,
        ignore_index=ignore_index,
        return_entropy=return_entropy,
        group=group,
    )


class LigerFusedLinearScaledCrossEntropyFunction:
    """A loss for each token, or (losses, entropies)."""

    @staticmethod
    def apply(
        _input,
        weight,
        target,
        temperature=1.0,
        ignore_index=-100,
        m_tiles_per_cluster=1,
        return_entropy=False,
        selected_token_ids=None,
    ):
        _count("m_tiles_per_cluster", m_tiles_per_cluster)
        refuse(
            m_tiles_per_cluster=(m_tiles_per_cluster, 1),
            selected_token_ids=(selected_token_ids, None),
        )
        return _scaled(_input, weight, target, None, temperature, ignore_index, return_entropy)


class LigerFusedLinearScaledCrossEntropyTPFunction:
    """The same over the ranks of a group (None: the world), each with its rows of the
    vocabulary."""

    @staticmethod
    def apply(
        _input,
        weight,
        target,
        tp_group,
        temperature=1.0,
        ignore_index=-100,
        tiles_per_reduce=1,
        return_entropy=False,
    ):
        _count("tiles_per_reduce", tiles_per_reduce)
        refuse(tiles_per_reduce=(tiles_per_reduce, 1))
        group = torch.distributed.group.WORLD if tp_group is None else tp_group
        return _scaled(_input, weight, target, group, temperature, ignore_index, return_entropy)


def liger_fused_linear_scaled_cross_entropy_tp(
    input,
    weight,
    target,
    tp_group,
    temperature=1.0,
    ignore_index=-100,
    tiles_per_reduce=1,
    return_entropy=False,
):
    return LigerFusedLinearScaledCrossEntropyTPFunction.apply(
        input, weight, target, tp_group, temperature, ignore_index, tiles_per_reduce, return_entropy
    )

"""linear_cross_entropy(), its module and step() for torch tensors: checks, reductions and autocast
around the operators."""

import torch
from torch import Tensor

from . import _arrays, _native
from ._operators import (
    _DTYPES,
    _IDS,
    forward,
    group_name,
    gradient_of,
    matrix,
    on_device,
    plan_fields,
    resolve,
    upstream,
    wide,
)


def _check(x, weight, target):
    """The dtype of the products."""
    if (
        x.dim() < 1
        or weight.dim() != 2
        or x.shape[-1] != weight.shape[1]
        or target.shape != x.shape[:-1]
    ):
        raise ValueError(
            f"x has shape {tuple(x.shape)}, weight {tuple(weight.shape)}, "
            f"target {tuple(target.shape)}, "
            "expected [..., hidden], [vocab, hidden] and [...]"
        )
    if target.dtype not in _IDS:
        raise TypeError(f"target is of dtype {target.dtype}, expected int64 or int32")
    if weight.device != x.device or target.device != x.device:
        raise ValueError(
            f"x is on {x.device}, weight on {weight.device}, target on {target.device}, "
            "expected one device"
        )
    kind = x.device.type
    for name, tensor in (("x", x), ("weight", weight)):
        if tensor.dtype not in _DTYPES:
            raise TypeError(
                f"{name} is of dtype {tensor.dtype}, expected float32, bfloat16 or float16"
            )
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    if x.dtype != weight.dtype:
        raise NotImplementedError(
            f"x is of dtype {x.dtype} and weight of {weight.dtype}: different dtypes are not "
            "supported"
        )
    return x.dtype


def _split_temperature(temperature):
    if not isinstance(temperature, Tensor):
        return float(temperature), None
    if temperature.requires_grad:
        raise NotImplementedError(
            "temperature requires grad: there is no gradient of the temperature"
        )
    if temperature.dtype != torch.float32 or temperature.numel() != 1:
        raise TypeError(
            f"temperature is of dtype {temperature.dtype} with {temperature.numel()} elements, "
            "expected one float32"
        )
    return 1.0, temperature


def _reduce(nll, target, reduction, ignore_index):
    if reduction == "none":
        return nll
    total = nll.sum()
    return total / (target != ignore_index).sum().clamp(min=1) if reduction == "mean" else total


def linear_cross_entropy(
    x,
    weight,
    target,
    *,
    temperature,
    ignore_index,
    softcap,
    return_entropy,
    return_lse,
    reduction,
    group,
    dx,
    vocab_start,
    vocab_size,
    workspace_bytes,
    deterministic,
):
    _arrays.check_reduction(reduction)
    _arrays.dx_mode(dx)
    compute = _check(x, weight, target)
    number, tensor = _split_temperature(temperature)
    for name, value in (("vocab_start", vocab_start), ("vocab_size", vocab_size)):
        if value is not None and value < 0:
            raise ValueError(f"{name} is {value}, expected at least 0")
    nll, entropy, lse, _, _ = forward(
        x.reshape(-1, x.shape[-1]),
        weight,
        target.reshape(-1),
        number,
        tensor,
        ignore_index,
        0.0 if softcap is None else float(softcap),
        return_entropy,
        dx,
        group_name(group),
        -1 if vocab_start is None else vocab_start,
        -1 if vocab_size is None else vocab_size,
        compute,
        workspace_bytes,
        deterministic,
    )
    given = [_reduce(nll.reshape(target.shape), target, reduction, ignore_index)]
    if return_entropy:
        given.append(entropy.reshape(target.shape))
    if return_lse:
        given.append(lse.reshape(target.shape))
    return given[0] if len(given) == 1 else tuple(given)


class LinearCrossEntropyLoss(torch.nn.Module):
    """linear_cross_entropy() with its options, as a module without parameters: loss(x, weight,
    target)."""

    def __init__(
        self,
        *,
        reduction="mean",
        temperature=1.0,
        ignore_index=-100,
        softcap=None,
        return_entropy=False,
        return_lse=False,
        group=None,
        dx="all_reduce",
        vocab_start=None,
        vocab_size=None,
        workspace_bytes=0,
        deterministic=True,
    ):
        super().__init__()
        _arrays.check_reduction(reduction)
        self.options = dict(
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

    def forward(self, x, weight, target):
        return linear_cross_entropy(x, weight, target, **self.options)

    def extra_repr(self):
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


@torch.no_grad()
def step(
    x,
    weight,
    target,
    *,
    temperature,
    ignore_index,
    softcap,
    return_entropy,
    return_lse,
    reduction,
    group,
    dx,
    vocab_start,
    vocab_size,
    workspace_bytes,
    deterministic,
    g_nll,
    g_entropy,
    g_lse,
    want_dx,
    want_dw,
    dw,
):
    _arrays.check_reduction(reduction)
    compute = _check(x, weight, target)
    number, tensor = _split_temperature(temperature)
    members = resolve(group_name(group), x.device)
    shape, ids = target.shape, target.reshape(-1).contiguous()
    x_in, w_in = matrix(x.reshape(-1, x.shape[-1]), compute), matrix(weight, compute)
    tokens, hidden, width = ids.numel(), x.shape[-1], x_in.shape[1]
    if reduction == "mean":
        g_nll = (ids != ignore_index).sum().clamp(min=1).reciprocal()
    elif reduction == "sum":
        g_nll = 1.0
    vectors = [
        None if g is None else upstream(torch.as_tensor(g, device=x.device).reshape(-1), tokens)
        for g in (g_nll, g_entropy, g_lse)
    ]
    nll, entropy, lse = (
        torch.empty(tokens, device=x.device) if kept else None
        for kept in (True, return_entropy, return_lse)
    )
    rows = tokens
    if dx == "reduce_scatter" and members is not None:
        shard = -(-tokens // members.ranks)
        rows = max(min(tokens - members.rank * shard, shard), 0)
    dx_out = (
        x_in.new_empty(rows, width, dtype=compute if x.dtype == compute else torch.float32)
        if want_dx
        else None
    )
    if dw is not None and width != hidden:
        raise NotImplementedError(
            f"hidden is {hidden} and dw is given, expected a multiple of 8 on a GPU to add to dw"
        )
    if dw is not None and (dw.shape != w_in.shape or dw.dtype not in (compute, torch.float32)):
        raise ValueError(
            f"dw has shape {tuple(dw.shape)} and dtype {dw.dtype}, expected {tuple(w_in.shape)} "
            f"and {compute} or float32"
        )
    accumulate = dw is not None
    dw_out = dw if accumulate else gradient_of(weight, compute, width) if want_dw else None
    wants = _native.STEP | (_native.DX if want_dx else 0) | (_native.DW if want_dw else 0)
    wants |= _native.ENTROPY if return_entropy or g_entropy is not None else 0
    fields = plan_fields(
        x_in,
        w_in,
        ids,
        _arrays.shard_of(members, weight.shape[0], vocab_start, vocab_size),
        compute,
        ignore_index=ignore_index,
        softcap=softcap,
        wants=wants,
        deterministic=deterministic,
        workspace_bytes=workspace_bytes,
        dx=dx,
        dx_dtype=wide(x.dtype, compute),
        dw_dtype=wide(dw_out.dtype if dw_out is not None else compute, compute),
    )
    with on_device(x.device, members, tokens, fields) as plan:
        plan.run(
            "step",
            x_in,
            w_in,
            ids,
            number if tensor is None else tensor.reshape(1),
            None,
            *vectors,
            nll,
            lse,
            entropy,
            dx_out,
            dw_out,
            int(accumulate),
        )
    if dx_out is not None:
        dx_out = dx_out[:, :hidden].to(x.dtype)
        dx_out = dx_out.reshape(x.shape) if rows == tokens else dx_out
    if dw_out is not None and not accumulate:
        dw_out = dw_out[:, :hidden].to(weight.dtype)
    return (
        _reduce(nll.reshape(shape), target, reduction, ignore_index),
        dx_out,
        dw_out,
        *(None if kept is None else kept.reshape(shape) for kept in (entropy, lse)),
    )

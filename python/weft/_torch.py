"""linear_cross_entropy for torch: two custom operators (loss; gradients) with their shapes for tracing and their
autograd formula, so that eager mode, torch.compile and CUDA graphs run the same code; step() beside them."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from . import _arrays, _native, _plan, team

_DTYPES = {torch.float32: _native.F32, torch.bfloat16: _native.BF16, torch.float16: _native.F16}
_IDS = {torch.int64: _native.I64, torch.int32: _native.I32}
_ROW_ALIGNMENT = 16  # bytes, of the rows that a GPU reads


# ---- Tensors as the library reads them ----


def _matrix(tensor, dtype):
    """The tensor itself where its rows can be read as they are, else a copy. On GPUs columns of 0 are added, which
    change no product, where rows would not be aligned."""
    tensor = tensor.detach().to(dtype)
    rows, columns = tensor.shape
    if tensor.is_cuda and columns * tensor.element_size() % _ROW_ALIGNMENT:
        more = -columns % (_ROW_ALIGNMENT // tensor.element_size())
        return torch.nn.functional.pad(tensor, (0, more))
    good = (columns <= 1 or tensor.stride(1) == 1) and (rows <= 1 or tensor.stride(0) >= columns)
    if tensor.is_cuda:
        stride = tensor.stride(0) * tensor.element_size() if rows > 1 else 0
        good = good and tensor.data_ptr() % _ROW_ALIGNMENT == 0 and stride % _ROW_ALIGNMENT == 0
    return tensor if good else tensor.clone(memory_format=torch.contiguous_format)


def _upstream(gradient, tokens):
    """A contiguous f32 vector: gradients come expanded, strided and in other dtypes."""
    if gradient is None:
        return None
    return gradient.detach().to(torch.float32).expand(tokens).contiguous()


def _empty(like):
    return like.new_empty(0)


# ---- Groups and plans ----


def _resolve(group, device):
    """The team of a name that _group_name() gave."""
    if not group:
        return None
    if group.startswith("weft:"):
        return team.named(group)
    from torch.distributed.distributed_c10d import _resolve_process_group

    kind = _native.CUDA if device.type == "cuda" else _native.CPU
    return team.of_process_group(_resolve_process_group(group), kind)


def _group_name(group):
    """Operators carry a group by name. "" is none."""
    if group is None or isinstance(group, str):
        return group or ""
    return group.name if isinstance(group, team.Team) else group.group_name


class _Allocate:
    """A plan's workspace on a GPU, from torch's allocator, which then counts it."""

    def __init__(self, device, ranks):
        properties = torch.cuda.get_device_properties(device)
        self.device = device
        self.machine = (f"sm{properties.major}0", properties.multi_processor_count, ranks, 1)

    def __call__(self, count):
        memory = torch.empty(count, dtype=torch.uint8, device=self.device)
        torch.cuda.current_stream(
            self.device
        ).synchronize()  # the plan clears it at once, by a stream of its own
        return memory


class _OnDevice:
    """A plan, ready for the current stream of the tensors' device."""

    def __init__(self, device, team, tokens, fields):
        self.device, self.cuda = device, device.type == "cuda"
        index = device.index or 0
        cache = _plan.cache(team, fields["device"], index)
        capturing = self.cuda and torch.cuda.is_current_stream_capturing()
        allocate = _Allocate(device, team.ranks if team is not None else 1) if self.cuda else None
        self.use = cache.use(team, index, tokens, fields, allocate, capturing)
        self.guard = torch.cuda.device(device) if self.cuda else None
        self.capturing = capturing

    def __enter__(self):
        if not self.cuda:
            return self.use.__enter__()
        self.guard.__enter__()
        try:
            plan = self.use.__enter__()
            if not self.capturing:
                plan.raise_async()
            current = torch.cuda.current_stream(self.device)
            if plan.last_stream is not None and plan.last_stream != current and not self.capturing:
                current.wait_stream(plan.last_stream)
                plan.workspace.record_stream(current)
            plan.last_stream = current
            return plan
        except BaseException:
            self.guard.__exit__(None, None, None)
            raise

    def __exit__(self, *error):
        done = self.use.__exit__(*error)
        if self.cuda:
            self.guard.__exit__(*error)
        return done


def _fields(x, weight, target, shard, compute, **options):
    return _arrays.plan_fields(
        hidden=x.shape[1],
        rows=weight.shape[0],
        shard=shard,
        dtype=_DTYPES[compute],
        target_dtype=_IDS[target.dtype],
        device=_native.CUDA if x.is_cuda else _native.CPU,
        **options,
    )


def _wide(dtype, compute):
    """The dtype of a gradient's plan field: as the products', else f32, from which it is cast."""
    return 0 if dtype == compute else _native.F32


def _like(tensor, compute, width):
    return tensor.new_empty(
        *tensor.shape[:-1], width, dtype=compute if tensor.dtype == compute else torch.float32
    )


# ---- Operators ----


@torch.library.custom_op(
    "weft::linear_cross_entropy", mutates_args=(), device_types=("cpu", "cuda")
)
def _forward(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    temperature: float,
    temperature_tensor: Optional[Tensor],
    ignore_index: int,
    softcap: float,
    entropy: bool,
    dx: str,
    group: str,
    vocab_start: int,
    vocab_size: int,
    compute: torch.dtype,
    workspace_bytes: int,
    deterministic: bool,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """nll, entropy (or nothing), lse, statistics for the gradients, and (first row, all rows) of the vocabulary where
    there is a group. vocab_start and vocab_size: −1 for what is to be found out."""
    members = _resolve(group, x.device)
    shard = _arrays.shard_of(
        members,
        weight.shape[0],
        None if vocab_start < 0 else vocab_start,
        None if vocab_size < 0 else vocab_size,
    )
    tokens = x.shape[0]
    nll, lse = (torch.empty(tokens, dtype=torch.float32, device=x.device) for _ in range(2))
    ent = torch.empty_like(nll) if entropy else None
    stats = torch.empty(tokens, 4, dtype=torch.float32, device=x.device)
    x_in, w_in = _matrix(x, compute), _matrix(weight, compute)
    fields = _fields(
        x_in,
        w_in,
        target,
        shard,
        compute,
        ignore_index=ignore_index,
        softcap=softcap,
        wants=_native.ENTROPY if entropy else 0,
        deterministic=deterministic,
        workspace_bytes=workspace_bytes,
    )
    t = temperature if temperature_tensor is None else temperature_tensor.detach().reshape(1)
    with _OnDevice(x.device, members, tokens, fields) as plan:
        plan.run("forward", x_in, w_in, target.contiguous(), t, stats, nll, lse, ent)
    told = torch.tensor(shard) if group else _empty(nll)
    return nll, _empty(nll) if ent is None else ent, lse, stats, told


@_forward.register_fake
def _(
    x,
    weight,
    target,
    temperature,
    temperature_tensor,
    ignore_index,
    softcap,
    entropy,
    dx,
    group,
    vocab_start,
    vocab_size,
    compute,
    workspace_bytes,
    deterministic,
):
    nll = x.new_empty(x.shape[0], dtype=torch.float32)
    told = torch.empty(2, dtype=torch.int64) if group else _empty(nll)
    return (
        nll,
        torch.empty_like(nll) if entropy else _empty(nll),
        torch.empty_like(nll),
        nll.new_empty(x.shape[0], 4),
        told,
    )


@torch.library.custom_op(
    "weft::linear_cross_entropy_backward", mutates_args=(), device_types=("cpu", "cuda")
)
def _backward(
    g_nll: Optional[Tensor],
    g_entropy: Optional[Tensor],
    g_lse: Optional[Tensor],
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    stats: Tensor,
    shard: Tensor,
    temperature: float,
    temperature_tensor: Optional[Tensor],
    ignore_index: int,
    softcap: float,
    dx: str,
    group: str,
    compute: torch.dtype,
    workspace_bytes: int,
    deterministic: bool,
    need_dx: bool,
    need_dw: bool,
) -> Tuple[Tensor, Tensor]:
    members = _resolve(group, x.device)
    tokens, hidden = x.shape
    x_in, w_in = _matrix(x, compute), _matrix(weight, compute)
    width = x_in.shape[1]
    wants = (_native.DX if need_dx else 0) | (_native.DW if need_dw else 0)
    wants |= _native.ENTROPY if g_entropy is not None else 0
    fields = _fields(
        x_in,
        w_in,
        target,
        tuple(shard.tolist()) if group else (0, weight.shape[0]),
        compute,
        ignore_index=ignore_index,
        softcap=softcap,
        wants=wants,
        deterministic=deterministic,
        workspace_bytes=workspace_bytes,
        dx=dx,
        dx_dtype=_wide(x.dtype, compute),
        dw_dtype=_wide(weight.dtype, compute),
    )
    dx_out, own = (_like(x, compute, width) if need_dx else None), None
    if need_dx:
        own = dx_out
        if dx == "reduce_scatter" and members is not None:
            rows = -(-tokens // members.ranks)
            own = dx_out.zero_()[members.rank * rows : (members.rank + 1) * rows]
    dw = _like(weight, compute, width) if need_dw else None
    t = temperature if temperature_tensor is None else temperature_tensor.detach().reshape(1)
    upstream = [_upstream(g, tokens) for g in (g_nll, g_entropy, g_lse)]
    with _OnDevice(x.device, members, tokens, fields) as plan:
        plan.run("backward", x_in, w_in, target.contiguous(), t, stats, *upstream, own, dw, 0)
    return tuple(
        _empty(like) if out is None else out[:, :hidden].to(like.dtype).contiguous()
        for out, like in ((dx_out, x), (dw, weight))
    )


@_backward.register_fake
def _(
    g_nll,
    g_entropy,
    g_lse,
    x,
    weight,
    target,
    stats,
    shard,
    temperature,
    temperature_tensor,
    ignore_index,
    softcap,
    dx,
    group,
    compute,
    workspace_bytes,
    deterministic,
    need_dx,
    need_dw,
):
    return (x.new_empty(x.shape) if need_dx else _empty(x)), (
        weight.new_empty(weight.shape) if need_dw else _empty(weight)
    )


def _setup(ctx, inputs, output):
    (
        x,
        weight,
        target,
        temperature,
        temperature_tensor,
        ignore_index,
        softcap,
        _,
        dx,
        group,
        _,
        _,
        compute,
        workspace_bytes,
        deterministic,
    ) = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, target, output[3], output[4], temperature_tensor)
    ctx.options = (ignore_index, softcap, dx, group, compute, workspace_bytes, deterministic)
    ctx.temperature = temperature


def _gradients(ctx, g_nll, g_entropy, g_lse, g_stats, g_shard):
    x, weight, target, stats, shard, temperature_tensor = ctx.saved_tensors
    need_dx, need_dw = ctx.needs_input_grad[:2]
    if g_entropy is not None and g_entropy.numel() == 0:
        g_entropy = None  # of the entropy that was not asked for
    dx = dw = None
    if (need_dx or need_dw) and not (g_nll is None and g_entropy is None and g_lse is None):
        dx, dw = _backward(
            g_nll,
            g_entropy,
            g_lse,
            x,
            weight,
            target,
            stats,
            shard,
            ctx.temperature,
            temperature_tensor,
            *ctx.options,
            need_dx,
            need_dw,
        )
    return (dx if need_dx else None, dw if need_dw else None, *(None,) * 13)


_forward.register_autograd(_gradients, setup_context=_setup)


# ---- What users call ----


def _check(x, weight, target):
    """The dtype of the products."""
    if (
        x.dim() < 1
        or weight.dim() != 2
        or x.shape[-1] != weight.shape[1]
        or target.shape != x.shape[:-1]
    ):
        raise ValueError(
            f"x has shape {tuple(x.shape)}, weight {tuple(weight.shape)}, target {tuple(target.shape)}, "
            "expected [..., hidden], [vocab, hidden] and [...]"
        )
    if target.dtype not in _IDS:
        raise TypeError(f"target is of dtype {target.dtype}, expected int64 or int32")
    if weight.device != x.device or target.device != x.device:
        raise ValueError(
            f"x is on {x.device}, weight on {weight.device}, target on {target.device}, expected one "
            "device"
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
            f"temperature is of dtype {temperature.dtype} with {temperature.numel()} elements, expected "
            "one float32"
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
    nll, entropy, lse, _, _ = _forward(
        x.reshape(-1, x.shape[-1]),
        weight,
        target.reshape(-1),
        number,
        tensor,
        ignore_index,
        0.0 if softcap is None else float(softcap),
        return_entropy,
        dx,
        _group_name(group),
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
    """linear_cross_entropy() with its options, as a module without parameters: loss(x, weight, target)."""

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
    members = _resolve(_group_name(group), x.device)
    shape, ids = target.shape, target.reshape(-1).contiguous()
    x_in, w_in = _matrix(x.reshape(-1, x.shape[-1]), compute), _matrix(weight, compute)
    tokens, hidden, width = ids.numel(), x.shape[-1], x_in.shape[1]
    if reduction == "mean":
        g_nll = (ids != ignore_index).sum().clamp(min=1).reciprocal()
    elif reduction == "sum":
        g_nll = 1.0
    upstream = [
        None if g is None else _upstream(torch.as_tensor(g, device=x.device).reshape(-1), tokens)
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
    if dw is not None and (dw.shape != w_in.shape or dw.dtype not in (compute, torch.float32)):
        raise ValueError(
            f"dw has shape {tuple(dw.shape)} and dtype {dw.dtype}, expected {tuple(w_in.shape)} and "
            f"{compute} or float32"
        )
    accumulate = dw is not None
    dw_out = dw if accumulate else _like(weight, compute, width) if want_dw else None
    wants = _native.STEP | (_native.DX if want_dx else 0) | (_native.DW if want_dw else 0)
    wants |= _native.ENTROPY if return_entropy or g_entropy is not None else 0
    fields = _fields(
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
        dx_dtype=_wide(x.dtype, compute),
        dw_dtype=_wide(dw_out.dtype if dw_out is not None else compute, compute),
    )
    with _OnDevice(x.device, members, tokens, fields) as plan:
        plan.run(
            "step",
            x_in,
            w_in,
            ids,
            number if tensor is None else tensor.reshape(1),
            None,
            *upstream,
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

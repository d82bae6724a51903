"""Two custom operators of torch (loss; gradients) with their shapes for tracing and their
autograd formula, so that eager mode, torch.compile and CUDA graphs run the same code."""

import contextlib
from typing import Optional, Tuple

import torch
from torch import Tensor

from . import _arrays, _native, _plan, team

_DTYPES = {torch.float32: _native.F32, torch.bfloat16: _native.BF16, torch.float16: _native.F16}
_IDS = {torch.int64: _native.I64, torch.int32: _native.I32}
_ROW_ALIGNMENT = 16  # bytes, of the rows that a GPU reads


# ---- Tensors as the library reads them ----


def matrix(tensor, dtype):
    """The tensor itself where its rows can be read as they are, else a copy. On GPUs columns of 0
    are added, which change no product, where rows would not be aligned."""
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


def upstream(gradient, tokens):
    """A contiguous f32 vector: gradients come expanded, strided and in other dtypes."""
    if gradient is None:
        return None
    return gradient.detach().to(torch.float32).expand(tokens).contiguous()


def _empty(like):
    return like.new_empty(0)


# ---- Groups and plans ----


def resolve(group, device):
    """The team of a name that group_name() gave."""
    if not group:
        return None
    if group.startswith("weft:"):
        return team.named(group)
    from torch.distributed.distributed_c10d import _resolve_process_group

    kind = _native.CUDA if device.type == "cuda" else _native.CPU
    return team.of_process_group(_resolve_process_group(group), kind)


def group_name(group):
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


@contextlib.contextmanager
def on_device(device, team, tokens, fields):
    """A plan, ready for the current stream of the tensors' device."""
    index = device.index or 0
    cache = _plan.cache(team, fields["device"], index)
    if device.type != "cuda":
        with cache.use(team, index, tokens, fields) as plan:
            yield plan
        return
    capturing = torch.cuda.is_current_stream_capturing()
    allocate = _Allocate(device, team.ranks if team is not None else 1)
    with (
        torch.cuda.device(device),
        cache.use(team, index, tokens, fields, allocate, capturing) as plan,
    ):
        if not capturing:
            plan.raise_async()
        current = torch.cuda.current_stream(device)
        if plan.last_stream is not None and plan.last_stream != current and not capturing:
            current.wait_stream(plan.last_stream)
            plan.workspace.record_stream(current)
        plan.last_stream = current
        yield plan


def _shard(members, rows, start, size):
    """(first row, all rows), of numbers that are −1 where they are to be found out."""
    return _arrays.shard_of(members, rows, None if start < 0 else start, None if size < 0 else size)


def plan_fields(x, weight, target, shard, compute, **options):
    return _arrays.plan_fields(
        hidden=x.shape[1],
        rows=weight.shape[0],
        shard=shard,
        dtype=_DTYPES[compute],
        target_dtype=_IDS[target.dtype],
        device=_native.CUDA if x.is_cuda else _native.CPU,
        **options,
    )


def wide(dtype, compute):
    """The dtype of a gradient's plan field: as the products', else f32, from which it is cast."""
    return 0 if dtype == compute else _native.F32


def gradient_of(tensor, compute, width):
    return tensor.new_empty(
        *tensor.shape[:-1], width, dtype=compute if tensor.dtype == compute else torch.float32
    )


# ---- Operators ----


@torch.library.custom_op(
    "weft::linear_cross_entropy", mutates_args=(), device_types=("cpu", "cuda")
)
def forward(
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
    """nll, entropy (or nothing), lse, statistics for the gradients, and (first row, all rows) of
    the vocabulary where there is a group. vocab_start and vocab_size: −1 for what is to be found
    out."""
    members = resolve(group, x.device)
    shard = _shard(members, weight.shape[0], vocab_start, vocab_size)
    tokens = x.shape[0]
    nll, lse = (torch.empty(tokens, dtype=torch.float32, device=x.device) for _ in range(2))
    ent = torch.empty_like(nll) if entropy else None
    stats = torch.empty(tokens, 4, dtype=torch.float32, device=x.device)
    x_in, w_in = matrix(x, compute), matrix(weight, compute)
    fields = plan_fields(
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
    with on_device(x.device, members, tokens, fields) as plan:
        plan.run("forward", x_in, w_in, target.contiguous(), t, stats, nll, lse, ent)
    told = torch.tensor(shard) if group else _empty(nll)
    return nll, _empty(nll) if ent is None else ent, lse, stats, told


@forward.register_fake
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
def backward(
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
    vocab_start: int,
    vocab_size: int,
    compute: torch.dtype,
    workspace_bytes: int,
    deterministic: bool,
    need_dx: bool,
    need_dw: bool,
) -> Tuple[Tensor, Tensor]:
    members = resolve(group, x.device)
    tokens, hidden = x.shape
    x_in, w_in = matrix(x, compute), matrix(weight, compute)
    width = x_in.shape[1]
    wants = (_native.DX if need_dx else 0) | (_native.DW if need_dw else 0)
    wants |= _native.ENTROPY if g_entropy is not None else 0
    fields = plan_fields(
        x_in,
        w_in,
        target,
        tuple(shard.tolist()) if group else _shard(None, weight.shape[0], vocab_start, vocab_size),
        compute,
        ignore_index=ignore_index,
        softcap=softcap,
        wants=wants,
        deterministic=deterministic,
        workspace_bytes=workspace_bytes,
        dx=dx,
        dx_dtype=wide(x.dtype, compute),
        dw_dtype=wide(weight.dtype, compute),
    )
    dx_out, own = (gradient_of(x, compute, width) if need_dx else None), None
    if need_dx:
        own = dx_out
        if dx == "reduce_scatter" and members is not None:
            rows = -(-tokens // members.ranks)
            own = dx_out.zero_()[members.rank * rows : (members.rank + 1) * rows]
    dw = gradient_of(weight, compute, width) if need_dw else None
    t = temperature if temperature_tensor is None else temperature_tensor.detach().reshape(1)
    vectors = [upstream(g, tokens) for g in (g_nll, g_entropy, g_lse)]
    with on_device(x.device, members, tokens, fields) as plan:
        plan.run("backward", x_in, w_in, target.contiguous(), t, stats, *vectors, own, dw, 0)
    return tuple(
        _empty(of) if out is None else out[:, :hidden].to(of.dtype).contiguous()
        for out, of in ((dx_out, x), (dw, weight))
    )


@backward.register_fake
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
    vocab_start,
    vocab_size,
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
        vocab_start,
        vocab_size,
        compute,
        workspace_bytes,
        deterministic,
    ) = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, target, output[3], output[4], temperature_tensor)
    ctx.options = (ignore_index, softcap, dx, group, vocab_start, vocab_size, compute)
    ctx.options += (workspace_bytes, deterministic)
    ctx.temperature = temperature


def _gradients(ctx, g_nll, g_entropy, g_lse, g_stats, g_shard):
    x, weight, target, stats, shard, temperature_tensor = ctx.saved_tensors
    need_dx, need_dw = ctx.needs_input_grad[:2]
    if g_entropy is not None and g_entropy.numel() == 0:
        g_entropy = None  # of the entropy that was not asked for
    dx = dw = None
    if (need_dx or need_dw) and not (g_nll is None and g_entropy is None and g_lse is None):
        dx, dw = backward(
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


forward.register_autograd(_gradients, setup_context=_setup)

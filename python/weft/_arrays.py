"""linear_cross_entropy and step on NumPy arrays, and what both frameworks' paths share: the fields
of a plan. There is no autograd here."""

import numpy

from . import _native, _plan

_DTYPES = {"float32": _native.F32, "float16": _native.F16, "uint16": _native.BF16}
_IDS = {"int64": _native.I64, "int32": _native.I32}


def check_reduction(reduction):
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f'reduction is {reduction!r}, expected "none", "mean" or "sum"')


def dx_mode(dx):
    if dx not in _native.DX_MODES:
        raise ValueError(f'dx is {dx!r}, expected "all_reduce", "reduce_scatter" or "none"')
    return _native.DX_MODES[dx]


def plan_fields(
    *,
    hidden,
    rows,
    shard,
    ignore_index,
    softcap,
    wants,
    dtype,
    target_dtype,
    dx_dtype=0,
    dw_dtype=0,
    dx="all_reduce",
    deterministic=True,
    workspace_bytes=0,
    device=_native.CPU,
):
    """The fields of weft_ce_config, by name, hashable."""
    start, vocab = shard
    return dict(
        hidden=hidden,
        vocab=vocab,
        vocab_start=start,
        vocab_local=rows,
        ignore_index=ignore_index,
        workspace_budget=workspace_bytes,
        softcap=0.0 if softcap is None else float(softcap),
        wants=wants,
        dtype=dtype,
        target_dtype=target_dtype,
        dx_dtype=dx_dtype,
        dw_dtype=dw_dtype,
        dx_mode=dx_mode(dx),
        deterministic=int(deterministic),
        max_sms=0,
        threads=0,
        device=device,
    )


def shard_of(team, rows, vocab_start, vocab_size):
    """(first row, all rows); asks the team's ranks unless both are given."""
    if vocab_start is not None and vocab_size is not None:
        return vocab_start, vocab_size
    start, total = team.shard(rows) if team is not None else (0, rows)
    return (start if vocab_start is None else vocab_start), (
        total if vocab_size is None else vocab_size
    )


def _dtype(name, array, known):
    code = known.get(array.dtype.name)
    if code is None:
        raise TypeError(
            f"{name} is of dtype {array.dtype}, expected {', '.join(known)} (the bits of bf16)"
            if known is _DTYPES
            else f"{name} is of dtype {array.dtype}, expected int64 or int32"
        )
    return code


def _rows(array):
    """The array itself where its rows can be read as they are, else a copy."""
    good = array.ndim == 2 and (array.shape[1] <= 1 or array.strides[1] == array.itemsize)
    good = good and (array.shape[0] <= 1 or array.strides[0] >= array.shape[1] * array.itemsize)
    # exported by DLPack: NumPy refuses arrays that can't be written
    return array if good and array.flags.writeable else array.copy()


def _vector(name, value, count):
    if value is None:
        return None
    vector = numpy.ascontiguousarray(
        numpy.broadcast_to(numpy.asarray(value, numpy.float32), (count,))
    )
    return vector if vector.flags.writeable else vector.copy()


class Problem:
    """X, W and targets, checked, with the fields of a plan for them."""

    def __init__(self, x, weight, target, team, vocab_start, vocab_size, **options):
        x, weight, target = numpy.asarray(x), numpy.asarray(weight), numpy.asarray(target)
        if (
            x.ndim < 1
            or weight.ndim != 2
            or x.shape[-1] != weight.shape[1]
            or target.shape != x.shape[:-1]
        ):
            raise ValueError(
                f"x has shape {x.shape}, weight {weight.shape}, target {target.shape}, expected "
                "[..., hidden], [vocab, hidden] and [...]"
            )
        dtype = _dtype("x", x, _DTYPES)
        if weight.dtype != x.dtype:
            raise NotImplementedError(
                f"x is of dtype {x.dtype} and weight of {weight.dtype}: different dtypes are "
                "not supported"
            )
        self.shape, self.team = target.shape, team
        self.x, self.weight = _rows(x.reshape(-1, x.shape[-1])), _rows(weight)
        self.target = _rows(target.reshape(-1, 1)).reshape(-1)
        self.tokens = self.target.size
        self.fields = lambda wants, **more: plan_fields(
            hidden=weight.shape[1],
            rows=weight.shape[0],
            shard=shard_of(team, weight.shape[0], vocab_start, vocab_size),
            wants=wants,
            dtype=dtype,
            target_dtype=_dtype("target", target, _IDS),
            **options,
            **more,
        )

    def run(self, name, wants, *arguments, **more):
        fields = self.fields(wants, **more)
        with _plan.cache(self.team, _native.CPU, 0).use(self.team, 0, self.tokens, fields) as plan:
            plan.run(name, self.x, self.weight, self.target, *arguments)

    def empty(self):
        return numpy.empty(self.tokens, numpy.float32)

    def reduce(self, nll, reduction, ignore_index):
        if reduction == "none":
            return nll.reshape(self.shape)
        total = nll.sum(dtype=numpy.float64)
        if reduction == "mean":
            total /= max(numpy.count_nonzero(self.target != ignore_index), 1)
        return numpy.float32(total)


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
    check_reduction(reduction)
    dx_mode(dx)
    p = Problem(
        x,
        weight,
        target,
        group,
        vocab_start,
        vocab_size,
        ignore_index=ignore_index,
        softcap=softcap,
        workspace_bytes=workspace_bytes,
        deterministic=deterministic,
    )
    nll = p.empty()
    entropy, lse = p.empty() if return_entropy else None, p.empty() if return_lse else None
    p.run(
        "forward",
        _native.ENTROPY if return_entropy else 0,
        float(temperature),
        None,
        nll,
        lse,
        entropy,
    )
    given = [p.reduce(nll, reduction, ignore_index)]
    given += [kept.reshape(p.shape) for kept in (entropy, lse) if kept is not None]
    return given[0] if len(given) == 1 else tuple(given)


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
    check_reduction(reduction)
    p = Problem(
        x,
        weight,
        target,
        group,
        vocab_start,
        vocab_size,
        ignore_index=ignore_index,
        softcap=softcap,
        workspace_bytes=workspace_bytes,
        deterministic=deterministic,
    )
    if reduction != "none":
        count = numpy.count_nonzero(p.target != ignore_index) if reduction == "mean" else 1
        g_nll = 1.0 / max(count, 1)
    upstream = [
        _vector(n, g, p.tokens)
        for n, g in (("g_nll", g_nll), ("g_entropy", g_entropy), ("g_lse", g_lse))
    ]
    nll, entropy = p.empty(), p.empty() if return_entropy else None
    lse = p.empty() if return_lse else None
    rows = p.tokens
    if dx == "reduce_scatter" and group is not None:
        shard = -(-rows // group.ranks)
        rows = max(min(rows - group.rank * shard, shard), 0)
    dx_out = numpy.empty((rows, p.x.shape[1]), p.x.dtype) if want_dx else None
    accumulate, dw_dtype = dw is not None, 0
    if accumulate and dw.dtype != p.weight.dtype:
        dw_dtype = _dtype("dw", dw, _DTYPES)
    if want_dw and dw is None:
        dw = numpy.empty(p.weight.shape, p.weight.dtype)
    wants = _native.STEP | _native.DX * bool(want_dx) | _native.DW * bool(want_dw)
    wants |= _native.ENTROPY * bool(return_entropy or g_entropy is not None)
    p.run(
        "step",
        wants,
        float(temperature),
        None,
        *upstream,
        nll,
        lse,
        entropy,
        dx_out,
        dw if want_dw else None,
        int(accumulate),
        dx=dx,
        dw_dtype=dw_dtype,
    )
    if dx_out is not None and rows == p.tokens:
        dx_out = dx_out.reshape(*p.shape, -1)
    shaped = [None if kept is None else kept.reshape(p.shape) for kept in (entropy, lse)]
    return p.reduce(nll, reduction, ignore_index), dx_out, dw if want_dw else None, *shaped

"""Expert parallelism for torch: a Buffer whose dispatch sends each token's row to the ranks that
hold its experts, and whose combine brings the experts' rows back, both differentiable; and the
low-latency pair in DeepEP's form. Rows are bf16, or E4M3 with scales. CPUs only in this version."""

import weakref

import torch

from . import _native, team as _team
from ._native import functions

_SCALES = {
    (False, False): 0,
    (True, False): 1,
    (True, True): 2,
}  # (round_scale, use_ue8m0) → weft_ep_scale
_WHOLE, _SEND, _RECEIVE = 0, 1, 2


class _Plan:
    """One weft_ep_plan and its handles."""

    FIELDS = (
        "tokens_max hidden experts topk timeout_ms workspace dtype layout alignment scale_format "
        "scale_order topk_dtype masking zero_copy max_sms device"
    ).split()

    def __init__(self, team, **fields):
        self.team, self.fields, self.handles = team, fields, weakref.WeakSet()
        self.number = functions.ep_plan_create(
            team.handle if team is not None else None, 0, *(fields[name] for name in self.FIELDS)
        )
        self.info = _native.told("ep_plan_info", self.number)
        self.ranks = team.ranks if team is not None else 1

    def close(self):
        for handle in list(self.handles):
            handle.close()
        number, self.number = self.number, None
        if number is not None:
            functions.ep_plan_destroy(number)


class Handle:
    """Which rows went where: given by a dispatch, for combines and for dispatches of the same
    routing."""

    def __init__(self, plan):
        self.plan, self.tokens = plan, 0
        self.number = functions.ep_handle_create(plan.number)
        plan.handles.add(self)

    def close(self):
        number, self.number = self.number, None
        if number is not None:
            functions.ep_handle_destroy(number)

    def __del__(self):
        try:
            self.close()
        except Exception:  # in flight, or the process ends
            pass


class Received:
    """What a rank received: rows x [rows, hidden] in the order (expert, source rank, token), their
    weights [rows], counts and offsets [experts here (+ 1)], source_counts [experts here, ranks],
    the handle, and of E4M3 rows their scales. Rows between and behind the experts' are 0."""

    def __init__(self, x, scales, weights, counts, offsets, source_counts, handle):
        self.x, self.scales, self.weights, self.handle = x, scales, weights, handle
        self.counts, self.offsets, self.source_counts = counts, offsets, source_counts

    def expert(self, number):
        """The rows of one of this rank's experts."""
        first = int(self.offsets[number])
        return self.x[first : first + int(self.counts[number])]


def _dispatch(handle, part, x, topk_idx, topk_weights, reuse=False, out=None):
    """The exchange alone, into new arrays or those of a send half."""
    plan, info = handle.plan, handle.plan.info
    if out is None:
        fp8 = plan.fields["dtype"] == _native.E4M3
        rows, local = info["rows_max"], info["experts_local"]
        out = (
            torch.zeros(rows, plan.fields["hidden"], dtype=torch.uint8 if fp8 else torch.bfloat16),
            torch.zeros(info["scale_bytes"] // 4) if fp8 else None,
            torch.zeros(rows),
            torch.zeros(local, dtype=torch.int64),
            torch.zeros(local + 1, dtype=torch.int64),
            torch.zeros(local, plan.ranks, dtype=torch.int64),
        )
    into = out if part != _SEND else (None,) * 6
    functions.ep_dispatch(handle.number, part, x, topk_idx, topk_weights, int(reuse), *into)
    if part != _RECEIVE:
        handle.tokens = x.shape[0]
    return out


def _combine(handle, part, y, row_gradient, topk_weights, out=None, want_weights=False):
    hidden, topk = handle.plan.fields["hidden"], handle.plan.fields["topk"]
    if out is None:
        out = torch.empty(handle.tokens, hidden, dtype=torch.bfloat16)
    weight_gradient = torch.empty(handle.tokens, topk) if want_weights else None
    second = (topk_weights, out, weight_gradient) if part != _SEND else (None,) * 3
    functions.ep_combine(handle.number, part, y, row_gradient, *second)
    return out, weight_gradient


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, topk_weights, topk_idx, handle, reuse):
        ctx.set_materialize_grads(False)
        ctx.handle, ctx.weighted = handle, topk_weights is not None
        x, *rest = _dispatch(handle, _WHOLE, x, topk_idx, topk_weights, reuse)
        ctx.mark_non_differentiable(*rest[2:])
        return (x, *rest[1:])

    @staticmethod
    def backward(ctx, g_x, g_weights, *_):
        if g_x is None and g_weights is None:
            return (None,) * 5
        if g_x is None:
            g_x = torch.zeros(
                g_weights.shape[0], ctx.handle.plan.fields["hidden"], dtype=torch.bfloat16
            )
        if g_weights is not None:
            g_weights = g_weights.float().contiguous()
        want = ctx.weighted and ctx.needs_input_grad[1]
        g_x, g_weights = _combine(
            ctx.handle,
            _WHOLE,
            g_x.to(torch.bfloat16).contiguous(),
            g_weights,
            None,
            want_weights=want,
        )
        return g_x if ctx.needs_input_grad[0] else None, g_weights, None, None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, topk_weights, handle):
        ctx.handle = handle
        ctx.save_for_backward(y if topk_weights is not None else None, topk_weights)
        return _combine(handle, _WHOLE, y, None, topk_weights)[0]

    @staticmethod
    def backward(ctx, g):
        y, topk_weights = ctx.saved_tensors
        g_rows, _, weights, *_ = _dispatch(
            ctx.handle, _WHOLE, g.to(torch.bfloat16).contiguous(), None, topk_weights, reuse=True
        )
        g_weights = None
        if topk_weights is not None and ctx.needs_input_grad[1]:
            dots = (g_rows.float() * y.float()).sum(1)
            g_weights = _combine(ctx.handle, _WHOLE, g_rows, dots, None, want_weights=True)[1]
        if topk_weights is not None:
            g_rows = (g_rows.float() * weights[:, None]).to(torch.bfloat16)
        return g_rows if ctx.needs_input_grad[0] else None, g_weights, None


class Event:
    """DeepEP's place for a CUDA event. On CPUs there is nothing to wait for."""

    def current_stream_wait(self):
        pass


def _check_rows(name, tensor, dtype, columns=None):
    if tensor.device.type != "cpu":
        raise NotImplementedError(
            f"{name} is on {tensor.device}: expert parallelism is not on GPUs in this version"
        )
    if tensor.dtype != dtype:
        raise TypeError(f"{name} is of dtype {tensor.dtype}, expected {dtype}")
    if tensor.dim() != 2 or (columns is not None and tensor.shape[1] != columns):
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}, expected two dimensions"
            + (f", the second {columns}" if columns is not None else "")
        )
    return tensor.contiguous()


def _refuse(**options):
    for name, (value, default) in options.items():
        if value != default:
            raise NotImplementedError(f"{name} is {value!r}, expected {default!r}: not supported")


class Buffer:
    """The exchange of a group: a torch.distributed process group, a weft.Team, or None for one
    rank. `experts` of the whole group, in blocks by rank; `tokens_max`, the most tokens of any rank
    and call. Plans are made at first use, by all ranks together; all ranks make the same calls in
    the same order."""

    def __init__(
        self, group=None, *, tokens_max=None, experts=None, alignment=1, timeout_ms=0, masking=False
    ):
        if group is None or isinstance(group, _team.Team):
            self.team = group
        else:
            self.team = _team.of_process_group(group)
        self.tokens_max, self.experts, self.alignment = tokens_max, experts, alignment
        self.timeout_ms, self.masking = timeout_ms, masking
        self._plans = {}

    def _plan(self, tokens_max, experts, x, topk_idx, **more):
        if tokens_max is None or experts is None:
            raise ValueError(f"tokens_max is {tokens_max} and experts {experts}, expected numbers")
        if topk_idx.dim() != 2 or topk_idx.dtype not in (torch.int64, torch.int32):
            raise TypeError(
                f"topk_idx has {topk_idx.dim()} dimensions of {topk_idx.dtype}, expected "
                "[tokens, k] of int64 or int32"
            )
        fields = dict(
            tokens_max=tokens_max,
            hidden=x.shape[1],
            experts=experts,
            topk=topk_idx.shape[1],
            timeout_ms=self.timeout_ms,
            workspace=None,
            dtype=_native.BF16,
            layout=1,
            alignment=self.alignment,
            scale_format=0,
            scale_order=0,
            topk_dtype=_native.I64 if topk_idx.dtype == torch.int64 else _native.I32,
            masking=int(self.masking),
            zero_copy=0,
            max_sms=0,
            device=0,
        )
        fields.update(more)
        key = tuple(fields.items())
        if key not in self._plans:
            self._plans[key] = _Plan(self.team, **fields)
        return self._plans[key]

    def dispatch(self, x, topk_idx, topk_weights=None, *, handle=None):
        """x [tokens, hidden] bf16 and topk_idx [tokens, k] (−1: none) → Received; topk_weights f32
        travel with the rows. With a handle, the routing that it has (topk_idx is not read).
        Differentiable in x and topk_weights."""
        x = _check_rows("x", x, torch.bfloat16)
        reuse = handle is not None
        if not reuse:
            handle = Handle(self._plan(self.tokens_max, self.experts, x, topk_idx))
        if topk_weights is not None:
            topk_weights = topk_weights.float().contiguous()
        idx = None if reuse else topk_idx.contiguous()
        rows, weights, counts, offsets, sources = _Dispatch.apply(
            x, topk_weights, idx, handle, reuse
        )
        return Received(rows, None, weights, counts, offsets, sources, handle)

    def combine(self, y, handle, topk_weights=None):
        """y, rows where dispatch put them, → [tokens, hidden] bf16: the sum over a token's experts,
        weighted by topk_weights where they are given. Differentiable in y and topk_weights."""
        y = _check_rows("y", y, torch.bfloat16, handle.plan.fields["hidden"])
        if topk_weights is not None:
            topk_weights = topk_weights.float().contiguous()
        return _Combine.apply(y, topk_weights, handle)

    @torch.no_grad()
    def low_latency_dispatch(
        self,
        x,
        topk_idx,
        num_max_dispatch_tokens_per_rank,
        num_experts,
        cumulative_local_expert_recv_stats=None,
        dispatch_wait_recv_cost_stats=None,
        use_fp8=True,
        round_scale=False,
        use_ue8m0=False,
        async_finish=False,
        return_recv_hook=False,
    ):
        """DeepEP's: (rows [experts here, ranks·tokens, hidden] or (rows, scales), counts, handle,
        event, hook). With return_recv_hook the arrays are filled when hook() was called."""
        _refuse(
            async_finish=(async_finish, False),
            dispatch_wait_recv_cost_stats=(dispatch_wait_recv_cost_stats, None),
        )
        if use_ue8m0 and not round_scale:
            raise ValueError("use_ue8m0 is True and round_scale False, expected both")
        x, more = _check_rows("x", x, torch.bfloat16), dict(layout=0, alignment=1)
        if use_fp8:
            more.update(
                dtype=_native.E4M3,
                scale_format=_SCALES[bool(round_scale), bool(use_ue8m0)],
                scale_order=1,
            )
        plan = self._plan(num_max_dispatch_tokens_per_rank, num_experts, x, topk_idx, **more)
        handle, idx = Handle(plan), topk_idx.contiguous()
        out = _dispatch(handle, _SEND if return_recv_hook else _WHOLE, x, idx, None)
        recv_x, scales, _, counts, _, _ = out
        recv_count = torch.empty(counts.shape, dtype=torch.int32)

        def finish():
            recv_count.copy_(counts)
            if cumulative_local_expert_recv_stats is not None:
                cumulative_local_expert_recv_stats.add_(recv_count)

        def hook():
            _dispatch(handle, _RECEIVE, None, None, None, out=out)
            finish()

        if not return_recv_hook:
            finish()
        local = plan.info["experts_local"]
        rows = recv_x.view(local, -1, x.shape[1])
        if use_fp8:
            words = scales.view(local, -1, plan.info["scale_stride"])[
                :, :, : rows.shape[1]
            ].transpose(1, 2)
            rows = rows.view(torch.float8_e4m3fn), words.view(torch.int32) if use_ue8m0 else words
        return rows, recv_count, handle, Event(), hook if return_recv_hook else None

    @torch.no_grad()
    def low_latency_combine(
        self,
        x,
        topk_idx,
        topk_weights,
        handle,
        use_logfmt=False,
        zero_copy=False,
        async_finish=False,
        return_recv_hook=False,
        out=None,
        combine_wait_recv_cost_stats=None,
    ):
        """DeepEP's: (combined [tokens, hidden], event, hook). topk_idx is that of the dispatch: the
        handle knows it."""
        _refuse(
            use_logfmt=(use_logfmt, False),
            zero_copy=(zero_copy, False),
            async_finish=(async_finish, False),
            combine_wait_recv_cost_stats=(combine_wait_recv_cost_stats, None),
        )
        hidden = handle.plan.fields["hidden"]
        if tuple(topk_idx.shape) != (handle.tokens, handle.plan.fields["topk"]):
            raise ValueError(
                f"topk_idx has shape {tuple(topk_idx.shape)}, expected that of the dispatch, "
                f"{(handle.tokens, handle.plan.fields['topk'])}"
            )
        y, weights = (
            _check_rows("x", x.reshape(-1, hidden), torch.bfloat16),
            topk_weights.float().contiguous(),
        )
        if out is not None:
            _check_rows("out", out, torch.bfloat16, hidden)
        result, _ = _combine(
            handle, _SEND if return_recv_hook else _WHOLE, y, None, weights, out=out
        )

        def hook():
            _combine(handle, _RECEIVE, y, None, weights, out=result)

        return result, Event(), hook if return_recv_hook else None

    def close(self):
        """Releases handles and plans. Not collective; the last call must have ended on every
        rank."""
        for plan in self._plans.values():
            plan.close()
        self._plans.clear()

"""Process groups of torch.distributed over gloo on the CPU, 2 and 4 processes: linear cross entropy
over a vocabulary split in uneven parts, sub-groups, compiling, other libraries' signatures, and the
expert exchange."""

import os
import sys
import tempfile
import traceback

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
import weft  # noqa: E402

TOKENS, HIDDEN, VOCAB = 28, 16, 84
CUTS = {2: [0, 50, 84], 4: [0, 11, 11, 50, 84]}  # one rank of four has no row


def problem():
    torch.manual_seed(0)
    x, w = torch.randn(TOKENS, HIDDEN), torch.randn(VOCAB, HIDDEN) / 4
    target, g = torch.randint(0, VOCAB, (TOKENS,)), torch.rand(TOKENS) + 0.25
    target[5] = -100
    return x, w, target, g


def head(x, w, target, g, **options):
    """losses, dx, dw of nll·g − entropy."""
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    nll, entropy = weft.linear_cross_entropy(x, w, target, return_entropy=True, **options)
    (nll * g - entropy).sum().backward()
    return nll.detach(), x.grad, w.grad


def close(a, b):
    assert a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=2e-6), (a - b).abs().max()


def all_equal(tensor):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    assert all(torch.equal(part, tensor) for part in parts)


def check_head(rank, world):
    x, w, target, g = problem()
    first, last = CUTS[world][rank : rank + 2]
    right = head(x, w, target, g)
    for dx in ("all_reduce", "reduce_scatter", "none"):
        nll, dx_found, dw = head(x, w[first:last], target, g, group=dist.group.WORLD, dx=dx)
        close(nll, right[0])
        all_equal(nll)
        if dx == "reduce_scatter":
            rows = TOKENS // world
            outside = dx_found.clone()
            outside[rank * rows : (rank + 1) * rows] = 0
            assert not outside.any()
        if dx == "all_reduce":
            all_equal(dx_found)
        else:
            dist.all_reduce(dx_found)
        close(dx_found, right[1])
        close(dw, right[2][first:last])
    # rows from `vocab_size` on are padding
    padded = torch.cat([w[first:last], torch.full((int(rank == world - 1), HIDDEN), 9.0)])
    nll, dx_found, dw = head(
        x, padded, target, g, group=dist.group.WORLD, vocab_start=first, vocab_size=VOCAB
    )
    close(nll, right[0])
    close(dx_found, right[1])
    assert not dw[last - first :].any()


def check_sub_groups(rank, world):
    if world < 4:
        return
    x, w, target, g = problem()
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine, right = groups[rank % 2], head(x + rank % 2, w, target, g)
    first, last = ((0, 40), (40, VOCAB))[rank // 2]
    nll, dx, dw = head(x + rank % 2, w[first:last], target, g, group=mine)
    for one, exact in zip((nll, dx, dw), (right[0], right[1], right[2][first:last])):
        close(one, exact)
    alone = [dist.new_group([r]) for r in range(world)][rank]
    close(head(x + rank % 2, w, target, g, group=alone)[1], right[1])


def check_compile(rank, world):
    x, w, target, g = problem()
    first, last = CUTS[world][rank : rank + 2]
    compiled = torch.compile(
        lambda x, w: weft.linear_cross_entropy(x, w, target, group=dist.group.WORLD),
        fullgraph=True,
        backend="aot_eager",
    )
    x, w = x.requires_grad_(), w.requires_grad_()
    close(compiled(x, w[first:last]), weft.linear_cross_entropy(x, w, target))


def check_refusal(rank, world):
    x, w, target, _ = problem()
    first, last = CUTS[world][rank : rank + 2]
    count = TOKENS - (rank == 1)
    with pytest.raises(
        ValueError, match=f"tokens is {TOKENS} on rank 0 and {TOKENS - 1} on rank 1"
    ):
        weft.linear_cross_entropy(x[:count], w[first:last], target[:count], group=dist.group.WORLD)
    with pytest.raises(
        ValueError if rank == 0 else RuntimeError,
        match="temperature is 0" if rank == 0 else "rank 0 refused",
    ):
        weft.linear_cross_entropy(
            x, w[first:last], target, temperature=float(rank), group=dist.group.WORLD
        )


def check_compat(rank, world):
    from weft.compat import cce, liger, megatron, verl

    x, w, target, g = problem()
    size = VOCAB // world
    mine, group = w[rank * size : (rank + 1) * size].clone().requires_grad_(), dist.group.WORLD
    nll, entropy = weft.linear_cross_entropy(x, w, target, return_entropy=True)
    logprobs, found = verl.linear_cross_entropy(x, mine, target, 1.0, "none", group)
    close(logprobs, -nll)
    close(found, entropy)
    close(liger.liger_fused_linear_scaled_cross_entropy_tp(x, mine, target, group), nll)
    close(
        liger.LigerFusedLinearScaledCrossEntropyTPFunction.apply(
            x, mine, target, None, 1.0, -100, 1, True
        )[1],
        entropy,
    )
    options = cce.VocabParallelOptions(rank * size, (rank + 1) * size, group)
    close(
        cce.linear_cross_entropy(x, mine, target, reduction="none", vocab_parallel_options=options),
        nll,
    )
    whole, full = x.clone().requires_grad_(), w.clone().requires_grad_()
    (weft.linear_cross_entropy(whole, full, target) * g).sum().backward()
    rows = TOKENS // world
    share = x[rank * rows : (rank + 1) * rows].clone().requires_grad_()
    losses = megatron.linear_cross_entropy(
        share, mine, target, group, "none", sequence_parallel=True
    )
    (losses * g).sum().backward()
    close(losses, nll)
    close(share.grad, whole.grad[rank * rows : (rank + 1) * rows])
    close(mine.grad, full.grad[rank * size : (rank + 1) * size])
    shaped = megatron.vocab_parallel_linear_cross_entropy(
        x.view(7, 4, -1), mine, target.view(7, 4), tp_group=group
    )
    close(shaped, nll.view(7, 4))


def check_ep(rank, world):
    from weft.ep import Buffer

    torch.manual_seed(rank)
    tokens, hidden, experts, k = 5 * rank, 136, 8, 3  # the first rank sends nothing
    local = experts // world
    buffer = Buffer(dist.group.WORLD, tokens_max=20, experts=experts, alignment=4)
    x = torch.randn(tokens, hidden).bfloat16().requires_grad_()
    idx = torch.stack(
        [torch.randperm(experts)[:k] for _ in range(tokens)] or [torch.zeros(k, dtype=torch.long)]
    )[:tokens]
    idx[::4, 1] = -1
    weights = torch.rand(tokens, k).requires_grad_()
    factor = torch.where(idx >= 0, (idx + 1) / 4, 0)  # expert e multiplies its rows by (e + 1) / 4

    def near(a, b, bound=0.01):
        assert (
            a.shape == b.shape and (a.float() - b).abs().max() <= bound * b.abs().max()
            if b.numel()
            else True
        )

    received = buffer.dispatch(x, idx, weights)
    scale = torch.zeros(received.x.shape[0], 1)
    for e in range(local):
        first = int(received.offsets[e])
        assert first % 4 == 0 and received.expert(e).shape[0] == int(received.counts[e]) == int(
            received.source_counts[e].sum()
        )
        scale[first : first + int(received.counts[e])] = (rank * local + e + 1) / 4
    want = (factor * weights).sum(1, keepdim=True) * x.float()
    g = torch.randn(tokens, hidden).bfloat16()
    g_x, g_w = torch.autograd.grad((want * g.float()).sum(), (x, weights), retain_graph=True)
    for out in (
        buffer.combine(
            received.x * scale.bfloat16(), received.handle, weights
        ),  # weighted here or there
        buffer.combine(
            (received.x.float() * scale * received.weights[:, None]).bfloat16(), received.handle
        ),
    ):
        near(out, want.detach())
        found = torch.autograd.grad(out, (x, weights), g, retain_graph=True)
        near(found[0], g_x)
        near(found[1], g_w, 0.02)
    for fp8 in (False, True):
        for hooked in (False, True):
            rows, counts, handle, _, hook = buffer.low_latency_dispatch(
                x.detach(), idx, 20, experts, use_fp8=fp8, return_recv_hook=hooked
            )
            if hooked:
                hook()
            if fp8:
                codes, scales = rows
                rows = codes.float() * scales.repeat_interleave(128, 2)[:, :, :hidden]
            y = rows.float() * (torch.arange(1, local + 1) + rank * local).view(-1, 1, 1) / 4
            out, _, hook = buffer.low_latency_combine(
                y.bfloat16(), idx, weights.detach(), handle, return_recv_hook=hooked
            )
            if hooked:
                hook()
            near(out, want.detach(), 0.06 if fp8 else 0.01)
            assert counts.tolist() == received.counts.tolist()
    with pytest.raises(NotImplementedError, match="async_finish is True"):
        buffer.low_latency_dispatch(x, idx, 20, experts, async_finish=True)
    dist.barrier()
    buffer.close()


CHECKS = {
    name[6:]: function for name, function in list(globals().items()) if name.startswith("check_")
}


def run_rank(rank, world, checks, store, report):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    for name in checks:
        try:
            CHECKS[name](rank, world)
        except BaseException:
            with open(f"{report}.{rank}", "a") as out:
                out.write(f"{name}, rank {rank} of {world}:\n{traceback.format_exc()}\n")
            os._exit(1)  # the others would wait for this one
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("world", [2, 4])
def test_over_gloo(world):
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report")
        error = None
        try:
            mp.spawn(
                run_rank, (world, list(CHECKS), os.path.join(folder, "store"), report), nprocs=world
            )
        except Exception as failure:
            error = failure
        told = [
            open(f"{report}.{r}").read() for r in range(world) if os.path.exists(f"{report}.{r}")
        ]
        assert error is None and not told, "\n".join(told) or str(error)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))

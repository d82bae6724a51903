"""weft.compat on one rank: against plain torch, and what it refuses."""

import pytest
import weft

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from weft.compat import cce, liger, megatron, verl  # noqa: E402


def problem():
    torch.manual_seed(1)
    x, w = torch.randn(2, 9, 16, requires_grad=True), torch.randn(50, 16, requires_grad=True)
    target = torch.randint(0, 50, (2, 9))
    target[0, 2] = -100
    return x, w, target


def plain(x, w, target, reduction="none", cap=None):
    z = x @ w.t()
    z = z if cap is None else cap * torch.tanh(z / cap)
    return F.cross_entropy(z.flatten(0, -2), target.flatten(), reduction=reduction)


def same(found, right, *leaves):
    assert found.shape == right.shape and torch.allclose(found, right, rtol=1e-4, atol=1e-5)
    g = [torch.autograd.grad(loss.sum(), leaves, retain_graph=True) for loss in (found, right)]
    for a, b in zip(*g):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def test_verl():
    x, w, target = problem()
    for function in (verl.linear_cross_entropy, verl.LinearCrossEntropy.apply):
        logprobs, entropy = function(x, w, target, 1.0)
        same(logprobs, -plain(x, w, target), x, w)
        assert entropy.shape == (18,)
    z = x @ w.t() / 0.7
    log_p = z.log_softmax(-1)
    valid = target != -100
    logprobs, entropy = verl.linear_cross_entropy(x[valid], w, target[valid], 0.7, "mean")
    same(entropy, -(log_p.exp() * log_p).sum(-1)[valid], x, w)
    same(logprobs, log_p[valid].gather(-1, target[valid][:, None]).mean(), x, w)


def test_cce():
    x, w, target = problem()
    for reduction in ("none", "mean", "sum"):
        found = cce.linear_cross_entropy(x, w, target, reduction=reduction, softcap=3.0)
        same(
            found.flatten() if reduction == "none" else found,
            plain(x, w, target, reduction, 3.0),
            x,
            w,
        )
    same(
        cce.LinearCrossEntropy(shift=True)(x, w, target),
        plain(x[:, :-1], w, target[:, 1:], "mean"),
        x,
        w,
    )
    loss, lse = cce.linear_cross_entropy(x, w, target, return_lse=True, shift=2)
    same(
        lse,
        (x[:, :-2] @ w.t())
        .logsumexp(-1)
        .where(target[:, 2:] != -100, (x[:, :-2] @ w.t()).logsumexp(-1).detach()),
        x,
        w,
    )
    for bad in (dict(bias=torch.zeros(50)), dict(filter_eps=1e-3), dict(impl="torch_compile")):
        with pytest.raises(NotImplementedError, match=next(iter(bad))):
            cce.linear_cross_entropy(x, w, target, **bad)


def test_liger():
    x, w, target = problem()
    x, target = x.flatten(0, 1), target.flatten()
    for reduction in ("none", "mean", "sum"):
        right = plain(x, w, target, reduction)
        same(liger.liger_fused_linear_cross_entropy(x, w, target, reduction=reduction), right, x, w)
        same(liger.LigerFusedLinearCrossEntropyLoss(reduction=reduction)(w, x, target), right, x, w)
    out = liger.liger_fused_linear_cross_entropy(
        x, w, target, lse_square_scale=1e-2, return_z_loss=True
    )
    valid = target != -100
    z = 1e-2 * ((x @ w.t()).logsumexp(-1)[valid] ** 2).mean()
    same(out.z_loss, z, x, w)
    same(
        liger.LigerFusedLinearCrossEntropyFunction.apply(x, w, target, None, None, -100, 1e-2)[0],
        plain(x, w, target, "mean") + 1e-2 * ((x @ w.t()).logsumexp(-1)[valid] ** 2).mean(),
        x,
        w,
    )
    nll, entropy = liger.LigerFusedLinearScaledCrossEntropyFunction.apply(
        x, w, target, return_entropy=True
    )
    same(nll, plain(x, w, target), x, w)
    for bad in (
        dict(bias=torch.zeros(50)),
        dict(ce_weight=torch.ones(50)),
        dict(label_smoothing=0.1),
        dict(use_token_scaling=True),
        dict(return_token_accuracy=True),
        dict(return_predicted_tokens=True),
        dict(accum_dtype=torch.bfloat16),
        dict(chunk_mem_const=2),
    ):
        with pytest.raises(NotImplementedError, match=next(iter(bad))):
            liger.liger_fused_linear_cross_entropy(x, w, target, **bad)
    with pytest.raises(NotImplementedError, match="selected_token_ids"):
        liger.LigerFusedLinearScaledCrossEntropyFunction.apply(
            x, w, target, selected_token_ids=target[3:5]
        )


def test_megatron():
    x, w, target = problem()
    same(megatron.linear_cross_entropy(x, w, target), plain(x, w, target, "mean"), x, w)
    same(
        megatron.LinearCrossEntropy.apply(x, w, target, None, "sum"),
        plain(x, w, target, "sum"),
        x,
        w,
    )
    found = megatron.vocab_parallel_linear_cross_entropy(x, w, target)
    assert found.shape == target.shape
    same(found.flatten(), plain(x, w, target), x, w)
    with pytest.raises(NotImplementedError, match="label_smoothing is 0.1"):
        megatron.vocab_parallel_linear_cross_entropy(x, w, target, 0.1)


def test_an_unknown_argument_is_an_error():
    for function in (
        verl.linear_cross_entropy,
        cce.linear_cross_entropy,
        megatron.linear_cross_entropy,
        liger.liger_fused_linear_cross_entropy,
        weft.linear_cross_entropy,
    ):
        with pytest.raises(TypeError):
            function(*problem(), colour="red")

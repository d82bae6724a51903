"""The package with torch, on the CPU and where there is one on the GPU: autograd against f64,
torch's own checks of operators, compiling, autocast, and CUDA graphs."""

import copy
import gc

import pytest
import weft

torch = pytest.importorskip("torch")
from weft import _operators  # noqa: E402

DEVICES = ["cpu"] + (
    ["cuda"] if weft.info()["cuda_available"] and torch.cuda.is_available() else []
)
DTYPES = {
    "cpu": [torch.float32, torch.bfloat16, torch.float16],
    "cuda": [torch.bfloat16, torch.float16],
}
CASES = [(device, dtype) for device in DEVICES for dtype in DTYPES[device]]


def problem(device="cpu", dtype=torch.float32, shape=(3, 17), hidden=24, vocab=103, seed=0):
    torch.manual_seed(seed)
    x = torch.randn(*shape, hidden).to(device, dtype).requires_grad_()
    w = (torch.randn(vocab, hidden) / hidden**0.5).to(device, dtype).requires_grad_()
    target = torch.randint(0, vocab, shape)
    target.view(-1)[::5] = -100
    return x, w, target.to(device)


def plain(x, w, target, temperature=1.0, cap=None):
    """nll, entropy, lse in f64."""
    z = x.double() @ w.double().t()
    z = (z if cap is None else cap * torch.tanh(z / cap)) / temperature
    lse = z.logsumexp(-1)
    log_p = z - lse[..., None]
    counts = target != -100
    nll = -log_p.gather(-1, target.clamp(min=0)[..., None])[..., 0]
    entropy = -(log_p.exp() * log_p).sum(-1)
    return torch.where(counts, nll, 0), torch.where(counts, entropy, 0), lse


def near(found, right, dtype):
    bound = 2e-5 if dtype == torch.float32 else 5e-3
    assert found.dtype == dtype
    return (found.double() - right.double()).norm() <= bound * right.double().norm() + 1e-12


def gradients(loss, *leaves):
    return torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("device, dtype", CASES)
@pytest.mark.parametrize("temperature, cap", [(1.0, None), (0.7, 3.0)])
def test_autograd(device, dtype, temperature, cap):
    x, w, target = problem(device, dtype)
    found = weft.linear_cross_entropy(
        x, w, target, temperature=temperature, softcap=cap, return_entropy=True, return_lse=True
    )
    right = plain(x, w, target, temperature, cap)
    for one, exact in zip(found, right):
        assert one.dtype == torch.float32 and (one - exact).abs().max() < 2e-4
    g, counts = torch.rand(3, target.numel(), device=device).view(3, *target.shape), target != -100

    def loss(nll, entropy, lse):
        return (nll * g[0] - entropy * g[1] + torch.where(counts, lse, 0) * g[2]).sum()

    for one, exact in zip(gradients(loss(*found), x, w), gradients(loss(*right), x, w)):
        assert near(one, exact, dtype)


@pytest.mark.parametrize("device, dtype", [(d, DTYPES[d][0]) for d in DEVICES])
def test_upstream_gradients_of_any_form(device, dtype):
    x, w, target = problem(device, dtype)
    nll, entropy = weft.linear_cross_entropy(x, w, target, return_entropy=True)
    right_nll, right_entropy, _ = plain(x, w, target)
    strided = torch.rand(*target.shape, 2, device=device)[..., 1]
    for g in (
        torch.ones((), device=device).expand(target.shape),
        strided,
        torch.rand(1, 17, device=device).expand(3, 17),
    ):
        for one, exact in zip(
            torch.autograd.grad(nll, (x, w), g, retain_graph=True),
            torch.autograd.grad(right_nll, (x, w), g.double(), retain_graph=True),
        ):
            assert near(one, exact, dtype)
    for one, exact in zip(
        gradients(entropy.mean(), x, w),
        torch.autograd.grad(right_entropy.mean(), (x, w), retain_graph=True),
    ):
        assert near(one, exact, dtype)  # the entropy alone
    hole = torch.where(target == -100, torch.nan, 1.0)
    nll = weft.linear_cross_entropy(x, w, target)
    for one, exact in zip(
        torch.autograd.grad(nll, (x, w), hole), torch.autograd.grad(right_nll.sum(), (x, w))
    ):
        assert near(one, exact, dtype)


def test_only_what_requires_grad_is_computed(monkeypatch):
    asked = []
    native = _operators._arrays.plan_fields
    monkeypatch.setattr(
        _operators._arrays, "plan_fields", lambda **f: asked.append(f["wants"]) or native(**f)
    )
    x, w, target = problem()
    for dx, dw, wants in ((True, False, 2), (False, True, 4), (True, True, 6)):
        asked.clear()
        weft.linear_cross_entropy(
            x.detach().requires_grad_(dx), w.detach().requires_grad_(dw), target, reduction="mean"
        ).backward()
        assert asked == [0, wants]
    asked.clear()
    assert not weft.linear_cross_entropy(
        x.detach(), w.detach(), target
    ).requires_grad and asked == [0]


@pytest.mark.parametrize("device", DEVICES)
def test_reductions_views_and_step(device):
    dtype = DTYPES[device][0]
    x, w, target = problem(device, dtype)
    count = (target != -100).sum()
    mean = weft.linear_cross_entropy(x, w, target, reduction="mean")
    assert torch.allclose(mean, (plain(x, w, target)[0].sum() / count).float(), rtol=1e-4)
    right = gradients(mean, x, w)
    step = weft.step(x, w, target)
    assert (
        torch.equal(step.loss, mean)
        and near(step.dx, right[0], dtype)
        and near(step.dw, right[1], dtype)
    )
    sums = torch.full(w.shape, 1.0, device=device)  # f32, added to
    assert weft.step(x, w, target, dw=sums).dw is sums
    assert (sums - 1 - step.dw.float()).norm() <= 5e-3 * step.dw.float().norm()
    whole = weft.linear_cross_entropy(x, w, target)
    wide = torch.zeros(3, 17, 40, device=device, dtype=dtype)
    wide[..., 8:32] = x.detach()
    for view in (
        wide[..., 8:32],
        x.detach().transpose(0, 1).contiguous().transpose(0, 1),
        x.detach().transpose(1, 2).contiguous().transpose(1, 2),
    ):
        assert torch.equal(weft.linear_cross_entropy(view, w, target), whole)
    same = x.detach()[:1].expand(3, 17, 24)
    assert torch.equal(
        weft.linear_cross_entropy(same, w, target[:1].expand(3, 17)), whole[:1].expand(3, 17)
    )
    scale = torch.tensor(0.5, device=device)
    assert torch.equal(
        weft.linear_cross_entropy(x, w, target, temperature=scale),
        weft.linear_cross_entropy(x, w, target, temperature=0.5),
    )
    odd = [t.detach()[..., :23].requires_grad_() for t in (x, w)]  # rows that are not aligned
    nll = weft.linear_cross_entropy(*odd, target)
    assert (nll - plain(*odd, target)[0]).abs().max() < 2e-4
    for one, exact in zip(
        gradients(nll.sum(), *odd), gradients(plain(*odd, target)[0].sum(), *odd)
    ):
        assert near(one, exact, dtype)
    ignored = torch.full_like(target, -100)
    mean = weft.linear_cross_entropy(x, w, ignored, reduction="mean")
    assert mean == 0 and not any(g.any() for g in gradients(mean, x, w))


def test_padded_vocabulary():
    """Rows of weight from vocab_size on count for nothing, whatever they hold."""
    x, w, target = problem()
    padded = torch.cat([w.detach(), torch.full((5, 24), 50.0)]).requires_grad_()
    nll = weft.linear_cross_entropy(x, padded, target, vocab_start=0, vocab_size=103)
    right = weft.linear_cross_entropy(x, w, target)
    assert torch.allclose(nll, right)
    found, exact = gradients(nll.sum(), x, padded), gradients(right.sum(), x, w)
    assert torch.allclose(found[0], exact[0], atol=1e-6) and not found[1][103:].any()
    assert torch.allclose(found[1][:103], exact[1], atol=1e-6)
    with pytest.raises(ValueError, match="vocab_start is -1, expected at least 0"):
        weft.linear_cross_entropy(x, w, target, vocab_start=-1)


def test_gradcheck():
    """By f32 differences, to 1%."""
    x, w, target = problem(shape=(4,), hidden=5, vocab=7)
    assert torch.autograd.gradcheck(
        lambda x, w: weft.linear_cross_entropy(x, w, target, temperature=0.8, return_entropy=True),
        (x, w),
        eps=1e-2,
        atol=1e-2,
        rtol=1e-2,
    )


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck(device):
    dtype = DTYPES[device][0]
    x, w, target = problem(device, dtype, shape=(12,))
    forward = (x, w, target, 1.0, None, -100, 0.0, True, "all_reduce", "", -1, -1, dtype, 0, True)
    torch.library.opcheck(_operators.forward, forward)
    torch.library.opcheck(_operators.forward, (*forward[:7], False, *forward[8:]))
    given = _operators.forward(*forward)
    g = torch.rand(12, device=device)
    torch.library.opcheck(
        _operators.backward,
        (
            g,
            None,
            None,
            x.detach(),
            w.detach(),
            target,
            given[3].detach(),
            given[4].detach(),
            1.0,
            None,
            -100,
            0.0,
            "all_reduce",
            "",
            -1,
            -1,
            dtype,
            0,
            True,
            True,
            False,
        ),
    )


@pytest.mark.parametrize("device", DEVICES)
def test_compile_without_a_graph_break(device):
    x, w, target = problem(device, DTYPES[device][0])

    def loss(x, w, target):
        nll, entropy = weft.linear_cross_entropy(x * 2, w, target, return_entropy=True, softcap=4.0)
        return nll.sum() - 0.1 * entropy.sum()

    compiled = torch.compile(
        loss, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager"
    )
    one, right = compiled(x, w, target), loss(x, w, target)
    assert torch.allclose(one, right)
    for a, b in zip(gradients(one, x, w), gradients(right, x, w)):
        assert torch.allclose(a, b, rtol=1e-2, atol=1e-3)
    module = weft.LinearCrossEntropyLoss(temperature=0.5)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, w, target), module(x, w, target))


@pytest.mark.parametrize("device", DEVICES)
def test_autocast(device):
    """f32 parameters, products of bf16, gradients in f32 rounded once."""
    x, w, target = problem(device, torch.float32)
    with torch.autocast(device, torch.bfloat16):
        loss = weft.linear_cross_entropy(x, w, target, reduction="sum")
    rounded = [t.detach().bfloat16().requires_grad_() for t in (x, w)]
    exact = plain(*(t.double() for t in rounded), target)[0].sum()
    assert torch.allclose(loss.double(), exact, rtol=1e-5)
    for one, right in zip(gradients(loss, x, w), gradients(exact, *rounded)):
        assert one.dtype == torch.float32 and (one - right).norm() < 5e-3 * right.norm()


def test_misuse():
    x, w, target = problem()
    for kind, words, call in (
        (
            ValueError,
            "args.temperature is -1",
            lambda: weft.linear_cross_entropy(x, w, target, temperature=-1.0),
        ),
        (
            ValueError,
            "targets are outside 0 … 102",
            lambda: weft.linear_cross_entropy(x, w, target + 103),
        ),
        (
            TypeError,
            "x is of dtype torch.float64",
            lambda: weft.linear_cross_entropy(x.double(), w, target),
        ),
        (
            TypeError,
            "target is of dtype torch.float32",
            lambda: weft.linear_cross_entropy(x, w, target.float()),
        ),
        (ValueError, "x has shape", lambda: weft.linear_cross_entropy(x, w[:, 1:], target)),
        (
            NotImplementedError,
            "different dtypes",
            lambda: weft.linear_cross_entropy(x, w.bfloat16(), target),
        ),
        (
            NotImplementedError,
            "temperature requires grad",
            lambda: weft.linear_cross_entropy(
                x, w, target, temperature=torch.ones(1, requires_grad=True)
            ),
        ),
        (ValueError, "dw has shape", lambda: weft.step(x, w, target, dw=torch.zeros(3, 3))),
    ):
        with pytest.raises(kind, match=words):
            call()
    double = torch.autograd.grad(
        weft.linear_cross_entropy(x, w, target).sum(), x, create_graph=True
    )[0]
    with pytest.raises(RuntimeError):
        double.sum().backward()


def test_module():
    module = weft.LinearCrossEntropyLoss(reduction="sum", ignore_index=3, return_entropy=True)
    x, w, target = problem()
    loss, entropy = copy.deepcopy(module)(x, w, target.clamp(min=3))
    right = weft.linear_cross_entropy(x, w, target.clamp(min=3), reduction="sum", ignore_index=3)
    assert (
        torch.equal(loss, right)
        and entropy.shape == target.shape
        and "ignore_index=3" in repr(module)
    )


needs_gpu = pytest.mark.skipif("cuda" not in DEVICES, reason="no GPU that weft can use")


@needs_gpu
def test_cuda_graph():
    x, w, target = problem("cuda", torch.bfloat16, shape=(256,), hidden=64, vocab=1000)
    static = [t.detach().clone() for t in (x, w)]
    for t in static:
        t.requires_grad_()

    def run():
        return gradients(weft.linear_cross_entropy(*static, target, reduction="mean"), *static)

    weft.clear_plans()
    with pytest.raises(RuntimeError, match="captured"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            run()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    for seed in range(5):
        other = problem("cuda", torch.bfloat16, (256,), 64, 1000, seed)
        with torch.no_grad():
            for t, value in zip(static, other):
                t.copy_(value)
        graph.replay()
        for one, right in zip(captured, run()):
            assert torch.equal(one, right)


@needs_gpu
def test_streams_and_memory():
    weft.clear_plans()
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    x, w, target = problem("cuda", torch.bfloat16, shape=(512,), hidden=128, vocab=5000)
    right = gradients(weft.linear_cross_entropy(x, w, target).sum(), x, w)
    for _ in range(4):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found = gradients(weft.linear_cross_entropy(x, w, target).sum(), x, w)
        torch.cuda.current_stream().wait_stream(stream)
        assert all(torch.equal(a, b) for a, b in zip(found, right))
    bad = target.clone()
    bad[7] = 5000
    weft.linear_cross_entropy(x, w, bad)
    with pytest.raises(ValueError, match="targets are outside 0"):
        weft.check_errors()
    del x, w, target, bad, found, right
    weft.clear_plans()
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before

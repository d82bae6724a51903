"""The loss heads that a user would pick instead of weft, each behind the call its own package documents.

peers.py asks for heads(problem): one Head for each that can be called here, and a reason for each that can't. Everything
here is torch and the packages' public functions; nothing is timed and nothing is copied from them.
"""
import dataclasses
import importlib.metadata
import os
from typing import Callable, Optional

import torch
import torch.nn.functional as F


@dataclasses.dataclass
class Problem:
    """X [M, H], W [V, H], targets and the upstream gradient of each token, on the GPU."""
    M: int
    H: int
    V: int
    X: torch.Tensor
    W: torch.Tensor
    T: torch.Tensor
    g: torch.Tensor

    @staticmethod
    def make(M, H, V, dtype=torch.bfloat16, seed=0):
        generator = torch.Generator(device="cuda").manual_seed(seed)
        X = torch.randn(M, H, device="cuda", generator=generator).to(dtype).requires_grad_(True)
        W = torch.empty(V, H, device="cuda", dtype=dtype)
        for rows in W.split(16384):
            rows.copy_(torch.randn(rows.shape, device="cuda", generator=generator) * H**-0.5)
        T = torch.randint(0, V, (M,), device="cuda", generator=generator)
        g = torch.rand(M, device="cuda", generator=generator) + 0.25
        return Problem(M, H, V, X, W.requires_grad_(True), T, g)

    def clear(self):
        self.X.grad = self.W.grad = None


@dataclasses.dataclass
class Head:
    """One way to compute the loss. forward() gives the loss; backward() gradients of a loss that was computed before;
    both() the loss, dX and dW. A head has those of the first two that its package has apart."""
    name: str
    version: str
    forward: Optional[Callable]
    both: Callable              # () -> (loss, dX, dW)
    backward: Optional[Callable] = None
    gradient: str = "token"     # "token": an upstream gradient a token; "mean": 1 / M for all
    outputs: int = 0            # bytes of dX and dW, which are not counted as memory taken
    extra: int = 0              # bytes taken outside torch's allocator
    note: str = ""
    release: Callable = lambda: None  # lets go of what backward() kept
    close: Callable = lambda: None


def version(*names):
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


class Autograd:
    """The calls of a head that is a differentiable loss, per token or their mean."""
    def __init__(self, p, loss, gradient):
        self.p, self.loss, self.gradient = p, loss, gradient
        self.graph = None

    def forward(self):
        with torch.no_grad():
            return self.loss()

    def upstream(self):
        return self.p.g if self.gradient == "token" else None

    def both(self):
        self.p.clear()
        out = self.loss()
        out.backward(self.upstream())
        return out, self.p.X.grad, self.p.W.grad

    def backward(self):
        if self.graph is None:
            self.graph = self.loss()
        self.p.clear()
        self.graph.backward(self.upstream(), retain_graph=True)

    def release(self):
        self.graph = None


def with_autograd(p, name, versions, loss, gradient, note="", apart=True):
    """A head made of a differentiable loss; not `apart` where its forward computes the gradients already."""
    calls = Autograd(p, loss, gradient)
    outputs = (p.X.numel() + p.W.numel()) * p.X.element_size()
    return Head(name, versions, calls.forward, calls.both, calls.backward if apart else None, gradient, outputs,
                note=note, release=calls.release)


def torch_heads(p):
    def unfused():
        return F.cross_entropy(p.X @ p.W.t(), p.T, reduction="none")

    def unfused_f32():
        return F.cross_entropy((p.X @ p.W.t()).float(), p.T, reduction="none")

    yield with_autograd(p, "torch bf16", f"torch {torch.__version__}", unfused, "token")
    yield with_autograd(p, "torch f32 logits", f"torch {torch.__version__}", unfused_f32, "token")


def liger_triton(p):
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Function

    def loss():
        out = Function.apply(p.X, p.W, p.T, None, None, -100, 0.0, 0.0, "mean")
        return out[0] if isinstance(out, tuple) else out

    yield with_autograd(p, "liger triton", version("liger-kernel", "triton"), loss, "mean", apart=False)


def liger_hopper(p):
    """Liger's Hopper kernels in CuTe DSL: per-token loss, one persistent backward kernel."""
    os.environ.setdefault("LIGER_SCALED_CE_SM90_VALIDATE_TARGETS", "0")  # it would synchronise with the host
    from liger_kernel.ops.cutedsl.ops.fused_scaled_cross_entropy_sm90 import \
        LigerFusedScaledCrossEntropySM90Function as Function

    yield with_autograd(p, "liger hopper", version("liger-kernel", "nvidia-cutlass-dsl"),
                        lambda: Function.apply(p.X, p.W, p.T), "token", "target check off")


def liger_native(p):
    """liger-cute-kernels: the tensor-parallel kernels in CUTLASS and NVSHMEM, in a team of one rank."""
    import liger_cute_kernels
    import torch.distributed as dist
    from liger_kernel.ops.cute.fused_linear_scaled_cross_entropy_tp import \
        LigerFusedLinearScaledCrossEntropyNativeTPFunction as Function
    os.environ.setdefault("NVSHMEM_DISABLE_NVLS", "1")
    os.environ.setdefault("NVSHMEM_SYMMETRIC_SIZE", "8G")
    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        liger_cute_kernels.configure(flsce=liger_cute_kernels.FusedLinearCrossEntropyConfig(
            max_tokens=16384, hidden_size=7168, local_vocab_size=151936))
    team = dist.group.WORLD

    def loss():
        return Function.apply(p.X, p.W, p.T, 0, 1.0, -100, 1, False, team)

    yield with_autograd(p, "liger native", version("liger-cute-kernels"), loss, "token",
                        "workspace outside torch's allocator, not counted")


def verl_chunks(p):
    from liger_kernel.ops.fused_linear_scaled_cross_entropy import _FusedLinearPPOFallbackFunction as Function
    yield with_autograd(p, "verl 512-chunk", version("liger-kernel"),
                        lambda: Function.apply(p.X, p.W, p.T, 1.0, -100, False), "token",
                        "verl's chunked fallback as liger-kernel ships it")


def verl_triton(p):
    from verl.utils.kernel.linear_cross_entropy import linear_cross_entropy

    def loss():
        return -linear_cross_entropy(p.X, p.W, p.T, 1.0, "none")[0]

    yield with_autograd(p, "verl triton", version("verl"), loss, "token")


def apple(p):
    from cut_cross_entropy import linear_cross_entropy
    for name, options in (("apple cce", {}), ("apple cce exact", {"filter_eps": None})):
        def loss(options=options):
            return linear_cross_entropy(p.X, p.W, p.T, impl="cce", reduction="none", **options)
        yield with_autograd(p, name, version("cut-cross-entropy", "triton"), loss, "token",
                            "" if options else "small gradients filtered out")


def quack(p):
    from quack import linear_cross_entropy as module
    versions = version("quack-kernels", "nvidia-cutlass-dsl")
    yield with_autograd(p, "quack", versions, lambda: module.chunked_linear_cross_entropy(p.X, p.W, p.T), "mean",
                        apart=False)
    if not module.scaled_exp_lce_supported(p.X, p.W, 4096, "mean"):
        return
    scale = torch.full((), 1.0 / p.M, device="cuda")

    def step():
        return module.scaled_exp_linear_cross_entropy_fwd(p.X.detach(), p.W.detach(), p.T, 4096, grad_scale=scale)

    outputs = p.X.numel() * 2 + p.W.numel() * 4
    yield Head("quack one call", versions, None, step, None, "mean", outputs,
               note="its forward with gradients alone: dW in f32, no autograd")
    yield with_autograd(p, "quack base", versions,
                        lambda: module.chunked_linear_cross_entropy(p.X, p.W, p.T, tuned=False, use_scaled_exp=False),
                        "mean", "the pipeline it uses elsewhere, untuned", apart=False)


def reason(error):
    """The first line of what went wrong."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


PEERS = {"torch": torch_heads, "quack": quack, "liger-hopper": liger_hopper, "liger-native": liger_native,
         "liger": liger_triton, "apple": apple, "verl": verl_chunks, "verl-triton": verl_triton}


def heads(p, names, extra=()):
    """Yields (Head, None), or (name, reason) for what can't be called here. `extra`: further makers of heads."""
    for name, maker in [*extra, *((name, PEERS[name]) for name in names)]:
        try:
            for head in maker(p):
                yield head, None
        except Exception as error:  # whatever a foreign package fails with, the others are still timed
            yield name, reason(error)

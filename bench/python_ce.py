"""Linear cross entropy from Python on one GPU, beside the bare calls of the library and plain
torch:

    python3 bench/python_ce.py [--json FILE] [--cpu] [MxHxV ...]

Blocks of back-to-back calls, turn by turn, medians of blocks; peak memory over inputs and outputs,
with the plans' workspace, as torch.cuda.max_memory_allocated counts it. Data: X ~ N(0,1), W ~
N(0,1)/sqrt(H), bf16; upstream gradient uniform in [0.25, 1.25) a token. --cpu runs a small f32
problem through the same code."""

import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
import weft
from weft import _native, _operators


def problem(m, h, v, device, dtype):
    torch.manual_seed(0)
    x = torch.randn(m, h, device=device).to(dtype).requires_grad_()
    w = (torch.randn(v, h, device=device) * h**-0.5).to(dtype).requires_grad_()
    return x, w, torch.randint(0, v, (m,), device=device), torch.rand(m, device=device) + 0.25


class BareCalls:
    """weft_ce_forward and weft_ce_backward on plans and outputs made beforehand."""

    def __init__(self, x, w, target, g):
        m, device = x.shape[0], x.device
        self.x, self.w, self.target, self.g = x.detach(), w.detach(), target, g
        self.dx, self.dw = torch.empty_like(self.x), torch.empty_like(self.w)
        self.nll, self.lse = torch.empty(m, device=device), torch.empty(m, device=device)
        self.stats, self.plans = torch.empty(m, 4, device=device), []
        for wants in (0, _native.DX | _native.DW):
            fields = _operators.plan_fields(
                self.x,
                self.w,
                target,
                (0, w.shape[0]),
                x.dtype,
                ignore_index=-100,
                softcap=0.0,
                wants=wants,
            )
            allocate = _operators._Allocate(device, 1) if x.is_cuda else None
            self.plans.append(_operators._plan.Plan(None, device.index or 0, m, fields, allocate))

    def forward(self):
        self.plans[0].run(
            "forward", self.x, self.w, self.target, 1.0, self.stats, self.nll, self.lse, None
        )

    def both(self):
        self.forward()
        self.plans[1].run(
            "backward",
            self.x,
            self.w,
            self.target,
            1.0,
            self.stats,
            self.g,
            None,
            None,
            self.dx,
            self.dw,
            0,
        )

    def close(self):
        for plan in self.plans:
            plan.close()


def contenders(x, w, target, g):
    """name → (forward, forward and backward)"""

    def weft_forward():
        with torch.no_grad():
            weft.linear_cross_entropy(x, w, target)

    def weft_both():
        x.grad = w.grad = None
        weft.linear_cross_entropy(x, w, target).backward(g)

    def weft_step():
        weft.step(x, w, target, reduction="none", g_nll=g)

    def torch_forward():
        with torch.no_grad():
            F.cross_entropy(x @ w.t(), target, reduction="none")

    def torch_both():
        x.grad = w.grad = None
        F.cross_entropy(x @ w.t(), target, reduction="none").backward(g)

    return {
        "weft autograd": (weft_forward, weft_both),
        "weft.step": (None, weft_step),
        "torch": (torch_forward, torch_both),
    }


def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def block_ms(function, calls):
    synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        function()
    synchronize()
    return 1e3 * (time.perf_counter() - start) / calls


def times(functions, blocks, calls):
    """Median milliseconds of each, in turns: the card's clock drifts for all alike."""
    for function in functions.values():
        function()
    found = {name: [] for name in functions}
    for block in range(blocks):
        for name in list(functions) if block % 2 == 0 else reversed(list(functions)):
            found[name].append(block_ms(functions[name], calls))
    return {name: statistics.median(values) for name, values in found.items()}


def peak_mib(function):
    weft.clear_plans()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    function()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - base) / 2**20


def graph_of(function):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


def measure(m, h, v, device, dtype, blocks=7, calls=4):
    x, w, target, g = problem(m, h, v, device, dtype)
    bare = BareCalls(x, w, target, g)
    all_of = contenders(x, w, target, g)
    forward = times(
        {"C calls": bare.forward, **{n: f for n, (f, _) in all_of.items() if f}}, blocks, calls
    )
    both = times({"C calls": bare.both, **{n: b for n, (_, b) in all_of.items()}}, blocks, calls)
    x.grad = w.grad = None
    weft.linear_cross_entropy(x, w, target).backward(g)
    assert torch.equal(x.grad, bare.dx) and torch.equal(w.grad, bare.dw), (
        "autograd and the C calls differ"
    )
    rows = []
    if device == "cuda":
        x.grad = w.grad = None
        graph = graph_of(all_of["weft autograd"][1])
        both["weft graph"] = times({"weft graph": graph.replay}, blocks, calls)["weft graph"]
        assert torch.equal(x.grad, bare.dx) and torch.equal(w.grad, bare.dw), (
            "graph and the C calls differ"
        )
        del graph
    bare.close()
    del bare
    for name, ms in both.items():
        row = dict(name=name, forward_ms=forward.get(name), both_ms=ms, over_c=ms / both["C calls"])
        if device == "cuda" and name in all_of:
            x.grad = w.grad = None
            outputs = (x.numel() + w.numel()) * x.element_size() / 2**20
            row["both_mib"] = peak_mib(all_of[name][1]) - outputs
        rows.append(row)
    return rows


def main():
    arguments = sys.argv[1:]
    out = arguments.pop(arguments.index("--json") + 1) if "--json" in arguments else None
    cpu = "--cpu" in arguments
    shapes = [a for a in arguments if not a.startswith("--")]
    shapes = shapes or (["256x128x5000"] if cpu else ["4096x4096x131072", "8192x2048x151936"])
    every = {}
    print(
        f"{'M × H × V':>20} {'':16} {'forward ms':>11} {'f+b ms':>9} {'/ C calls':>9} "
        f"{'peak MiB':>9}"
    )
    for shape in shapes:
        device, dtype = ("cpu", torch.float32) if cpu else ("cuda", torch.bfloat16)
        every[shape] = measure(*map(int, shape.split("x")), device, dtype)
        for row in every[shape]:
            forward = f"{row['forward_ms']:11.3f}" if row["forward_ms"] else f"{'':11}"
            memory = f"{row['both_mib']:9.1f}" if "both_mib" in row else ""
            print(
                f"{shape:>20} {row['name']:16} {forward} {row['both_ms']:9.3f} "
                f"{row['over_c']:9.4f} {memory}",
                flush=True,
            )
    if out:
        with open(out, "w") as file:
            json.dump(dict(torch=torch.__version__, info=weft.info(), shapes=every), file, indent=1)
    slow = [
        s
        for s, rows in every.items()
        for row in rows
        if row["name"] == "weft autograd" and row["over_c"] > 1.02
    ]
    if slow and not cpu:
        sys.exit(f"autograd takes more than 1.02 of the C calls at {', '.join(slow)}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Times weft's loss head and every other that is installed, on one GPU, in one process, against cuBLAS's bare products.

    bench/peers.py [--weft build/libweft.so] [--peers torch,quack,...] [--rounds N] [--profile NAME,...]
                   [--no-check] [--json FILE] [MxHxV ...]

X ~ N(0,1), W ~ N(0,1)/sqrt(H), bf16; upstream gradients 0.25 to 1.25 a token, or 1/M where a package offers the mean alone.
The yardstick is torch.mm, that is cuBLAS: `logits` (X·Wᵀ, written), and `three` (logits, dZ·W, dZᵀ·X on real dZ).
A measurement is ABAB: blocks of back-to-back launches between two events, a block of the yardstick before each block of the
head, and of weft's own in between; the figures are medians over the rounds of ms, of the ratio to the yardstick's block
and of the ratio to weft's. Exit 77 where there is no GPU or no torch.
"""
import argparse
import datetime
import gc
import json
import os
import subprocess
import sys
import time

SHAPES = ("4096x4096x131072", "8192x2048x151936", "8192x7168x129280", "16384x4096x131072")
MOST_LAUNCHES, LEAST_LAUNCHES = 24, 2  # of a block
MIB = 2**20
SKIPPED = 77
PHASES = ("forward", "backward", "both")
# weft's heads that others are compared with directly, the last of them that runs
REFERENCES = {"forward": ("weft",), "backward": ("weft",), "both": ("weft step small", "weft step large")}
PEER_NAMES = ("torch", "quack", "liger-hopper", "liger-native", "liger", "apple", "verl", "verl-triton")


def parse_shape(text):
    sizes = text.split("x")
    if len(sizes) != 3 or not all(size.isdigit() and int(size) > 0 for size in sizes):
        raise argparse.ArgumentTypeError(f"{text!r} is not tokens x hidden x vocabulary, such as 4096x4096x131072")
    return tuple(map(int, sizes))


def parse_names(text):
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in PEER_NAMES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(PEER_NAMES)}")
    return names


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", type=parse_shape, metavar="MxHxV")
    parser.add_argument("--weft", metavar="FILE", help="weft's shared library; without it the others alone are timed")
    parser.add_argument("--peers", type=parse_names, default=list(PEER_NAMES), metavar="NAME,...")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--block-ms", type=float, default=120.0, metavar="MS")
    parser.add_argument("--seconds", type=float, default=float("inf"), metavar="S",
                        help="begin nothing more after so long; what was measured by then is kept")
    parser.add_argument("--profile", default="", metavar="NAME,...", help="heads whose kernels are timed one by one")
    parser.add_argument("--no-check", action="store_true", help="do not compare the gradients with f32 ones")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--table", metavar="FILE", help="print the tables of such a file, in Markdown; measures nothing")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least 1")
    if not options.block_ms > 0:
        parser.error(f"--block-ms {options.block_ms}: more than 0")
    options.shapes = options.shapes or [parse_shape(shape) for shape in SHAPES]
    return options


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])


def published(shape):
    """What others publish for one GPU of another kind at this shape: a row for orientation, measured by them, or None."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "baseline", "b300.json")
    with open(path) as file:
        baseline = json.load(file)
    row = {"name": "published, B300", "version": baseline["source"], "published": True}
    for table in baseline["tables"]:
        sizes = (table["M"], table["H"], table["V"])
        phase = {"forward": "forward", "forward+backward": "both"}.get(table["phase"])
        if sizes != shape or phase is None or table["columns"][:2] != ["TP", "Native ms"]:
            continue
        one = [cells for cells in table["rows"] if cells[0] == 1]
        if one:
            row[phase] = {"ms": one[0][1]}
    return row if "forward" in row and "both" in row else None


def markdown(report):
    """The tables of a result file, a line at a time."""
    yield f"{report['device']}, driver {report['driver']}, CUDA {report['cuda']}, commit {report['commit']}, {report['date']}"
    versions = {}
    for shape, rows in report["shapes"].items():
        yield from ("", "{} × {} × {}".format(*shape.split("x")), "",
                    "| head | forward, ms | / logits | backward | / three | both | / three | / weft | MiB | dX, dW error |",
                    "|---|---|---|---|---|---|---|---|---|---|")
        for row in rows:
            if "failed" in row:
                yield f"| {row['name']} | did not run: {row['failed']} |" + " |" * 8
                continue
            cells = [row["name"] + (" (mean)" if row.get("gradient") == "mean" else "")]
            if "ms" in row:
                cells[0] += f": {row['ms']:.3f} ms"
            for phase in PHASES:
                part = row.get(phase, {})
                cells += [form.format(part[key]) if part.get(key) is not None else ""
                          for key, form in (("ms", "{:.3f}"), ("ratio", "{:.3f}"))]
            both, error = row.get("both", {}), row.get("error", {})
            cells.append(f"{both['to_weft']:.3f}" if both.get("to_weft") is not None else "")
            cells.append(f"{both['mib']:.0f}" if both.get("mib") is not None else "")
            cells.append(f"{error['dx']:.2%}, {error['dw']:.2%}" if error else "")
            yield "| " + " | ".join(cells) + " |"
            if row.get("version") and not row.get("published"):
                versions[row["name"]] = row["version"]
    yield ""
    yield "; ".join(sorted({f"{name}: {version}" for name, version in versions.items()}))


# ---- what follows needs torch and a GPU


def block(run, launches):
    """ms of one launch in a block of back-to-back ones."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(launches):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / launches


def launches_for(run, block_ms):
    """Warms up (the first call may compile), and tells how many launches fill a block."""
    run()
    torch.cuda.synchronize()
    return max(LEAST_LAUNCHES, min(MOST_LAUNCHES, round(block_ms / max(block(run, 1), 1e-3))))


def abab(options, runs):
    """Blocks of each of `runs` in turn, round by round; the ms of each, by round."""
    counts = [launches_for(run, options.block_ms) for run in runs]
    return list(zip(*([block(run, count) for run, count in zip(runs, counts)] for _ in range(options.rounds))))


def peak_mib(run, outputs, extra):
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    result = run()
    torch.cuda.synchronize()
    del result
    return max(0.0, (torch.cuda.max_memory_allocated() - base - outputs + extra) / MIB)


class Yardstick:
    """cuBLAS's products of one problem, with nothing of a loss in them; dZ holds real gradients."""
    def __init__(self, p):
        with torch.no_grad():
            self.X, self.W = p.X.detach(), p.W.detach()
            self.z = torch.empty(p.M, p.V, device="cuda", dtype=p.X.dtype)
            self.dz = torch.empty_like(self.z)
            self.dx, self.dw = torch.empty_like(self.X), torch.empty_like(self.W)
            for rows, z, dz, t, g in zip(*(a.split(1024) for a in (self.X, self.z, self.dz, p.T, p.g))):
                torch.mm(rows, self.W.t(), out=z)
                gradient = torch.softmax(z.float(), dim=1)
                gradient[torch.arange(len(t), device="cuda"), t] -= 1
                dz.copy_(gradient * g[:, None])

    def logits(self):
        torch.mm(self.X, self.W.t(), out=self.z)

    def dx_product(self):
        torch.mm(self.dz, self.W, out=self.dx)

    def dw_product(self):
        torch.mm(self.dz.t(), self.X, out=self.dw)

    def three(self):
        self.logits()
        self.dx_product()
        self.dw_product()


class Oracle:
    """Loss, dX and dW in f32 from the same bf16 inputs, for both kinds of upstream gradient."""
    def __init__(self, p):
        torch.backends.cuda.matmul.allow_tf32 = False
        with torch.no_grad():
            W = p.W.detach().float()
            self.nll = torch.empty(p.M, device="cuda")
            self.dx = {kind: torch.empty(p.M, p.H, device="cuda") for kind in ("token", "mean")}
            self.dw = {kind: torch.zeros(p.V, p.H, device="cuda") for kind in ("token", "mean")}
            for first in range(0, p.M, 1024):
                rows = slice(first, min(p.M, first + 1024))
                X, T = p.X.detach()[rows].float(), p.T[rows]
                z = X @ W.t()
                at = torch.arange(len(T), device="cuda")
                lse = torch.logsumexp(z, dim=1)
                self.nll[rows] = lse - z[at, T]
                z = z.sub_(lse[:, None]).exp_()
                z[at, T] -= 1
                for kind, g in (("token", p.g[rows]), ("mean", torch.full_like(p.g[rows], 1 / p.M))):
                    dz = z * g[:, None]
                    self.dx[kind][rows] = dz @ W
                    self.dw[kind].addmm_(dz.t(), X)

    def errors(self, head, result):
        loss, dx, dw = (t.detach().float() for t in result)
        loss = loss.reshape(-1)[:len(self.nll)]  # one for all, or one a token and rows of padding
        expected = self.nll if loss.numel() == self.nll.numel() else self.nll.mean()
        off = lambda a, b: (torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(b)).item()
        with torch.no_grad():
            return {"loss": off(loss.reshape(-1), expected.reshape(-1)),
                    "dx": off(dx[:len(self.nll)], self.dx[head.gradient]), "dw": off(dw, self.dw[head.gradient])}


def profile(run, calls=3):
    """[(kernel, mean us a call, launches a call)], the longest first."""
    from torch.profiler import ProfilerActivity
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            run()
        torch.cuda.synchronize()
    rows = [(event.key, event.self_device_time_total / calls, event.count / calls)
            for event in profiler.key_averages() if event.self_device_time_total > 0]
    return sorted(rows, key=lambda row: -row[1])


def time_phase(run, yardstick, first, options):
    runs = [yardstick] + ([first] if first else []) + [run]
    columns = abab(options, runs)
    bare, own = columns[0], columns[-1]
    row = {"ms": median(own), "yardstick_ms": median(bare), "ratio": median([a / b for a, b in zip(own, bare)])}
    if first:
        row["to_weft"] = median([a / b for a, b in zip(own, columns[1])])
    return row


def measure(shape, options, makers):
    import loss_heads
    p = loss_heads.Problem.make(*shape)
    yardstick, oracle = Yardstick(p), None if options.no_check else Oracle(p)
    rows = []
    for name in ("logits", "dx_product", "dw_product", "three"):
        rows.append({"name": "cublas " + name.replace("_", " "), "version": f"torch {torch.__version__}",
                     "ms": median(abab(options, [getattr(yardstick, name)])[0])})
    show(rows)
    own, kept = {}, []
    for head, reason in loss_heads.heads(p, options.peers, makers):
        if time.monotonic() > options.end:
            break
        if reason is not None:
            rows.append({"name": head, "failed": reason})
            show(rows[-1:])
            continue
        row = {"name": head.name, "version": head.version, "note": head.note, "gradient": head.gradient}
        try:
            if oracle:
                row["error"] = oracle.errors(head, head.both())
                p.clear()
            for phase in PHASES:
                run, bare = getattr(head, phase), yardstick.logits if phase == "forward" else yardstick.three
                if run is None:
                    continue
                row[phase] = time_phase(run, bare, own.get(phase), options)
                p.clear()
                head.release()
                row[phase]["mib"] = peak_mib(run, head.outputs if phase != "forward" else 0, head.extra)
                p.clear()
                head.release()
            if head.name in options.profile.split(","):
                row["kernels"] = profile(head.both)
        except Exception as error:  # one that fails, or runs out of memory, does not end the others
            row["failed"] = loss_heads.reason(error)
        p.clear()
        head.release()
        if head.name.startswith("weft"):
            kept.append(head)
            if "failed" not in row:
                own.update({phase: getattr(head, phase) for phase in PHASES
                            if getattr(head, phase) and head.name in REFERENCES[phase]})
        rows.append(row)
        show(rows[-1:])
    torch.cuda.synchronize()
    for head in kept:
        head.close()
    row = published(shape)
    if row:
        rows.append(row)
        show(rows[-1:])
        print(f"# the last row is of another GPU, as {row['version']} gives it; nothing of it was measured here")
    return rows


COLUMNS = (("ms", 9, ".3f"), ("ratio", 8, ".3f"), ("to_weft", 7, ".3f"), ("mib", 7, ".0f"))
HEADS = {"forward": ("fwd ms", "/logits"), "backward": ("bwd ms", "/three"), "both": ("f+b ms", "/three")}


def heading(shape):
    print(f"# {shape[0]} tokens, hidden {shape[1]}, vocabulary {shape[2]}; cuBLAS's logits and three products are 1;"
          " /weft: against weft's forward, backward and step")
    print(f"{'head':24s}" + "".join(f"{HEADS[phase][0]:>9s}{HEADS[phase][1]:>8s}{'/weft':>7s}{'MiB':>7s}"
                                    for phase in PHASES) + f"{'dX err':>8s}{'dW err':>8s}")


def cell(value, width, form):
    return f"{value:{width}{form}}" if value is not None else " " * (width - 1) + "-"


def show(rows):
    for row in rows:
        if "failed" in row:
            print(f"{row['name']:24s} failed: {row['failed']}", flush=True)
            continue
        if "ms" in row:
            print(f"{row['name']:24s}{row['ms']:9.3f}", flush=True)
            continue
        line = f"{row['name']:24s}"
        for phase in PHASES:
            line += "".join(cell(row.get(phase, {}).get(key), width, form) for key, width, form in COLUMNS)
        error = row.get("error", {})
        print(line + cell(error.get("dx"), 8, ".3%") + cell(error.get("dw"), 8, ".3%"), flush=True)
        for kernel, us, count in row.get("kernels", [])[:12]:
            print(f"    {us:9.1f} us {count:5.1f} x {kernel[:110]}", flush=True)


def commit():
    try:
        here = os.path.dirname(os.path.abspath(__file__))
        return subprocess.run(["git", "-C", here, "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                              check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("WEFT_COMMIT", "unknown")


def driver():
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                             capture_output=True, text=True, check=True).stdout
        return out.split("\n")[0].strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def report(every, options):
    return {"bench": "peers", "device": torch.cuda.get_device_name(), "driver": driver(),
            "cuda": torch.version.cuda, "commit": commit(), "date": datetime.date.today().isoformat(),
            "method": {"rounds": options.rounds, "block_ms": options.block_ms, "order": "yardstick, weft, head",
                       "statistic": "median over rounds", "yardstick": "torch.mm"},
            "shapes": every}


def main():
    global torch
    options = parse(sys.argv[1:])
    if options.table:
        with open(options.table) as file:
            print("\n".join(markdown(json.load(file))))
        return 0
    try:
        import torch
    except ImportError as error:
        print(f"peers.py: skipped: {error}", file=sys.stderr)
        return SKIPPED
    if not torch.cuda.is_available():
        print("peers.py: skipped: no GPU", file=sys.stderr)
        return SKIPPED
    makers = []
    if options.weft:
        import weft_library
        makers.append(("weft", weft_library.maker(options.weft)))
    every = {}
    options.end = time.monotonic() + options.seconds
    for shape in options.shapes:
        if time.monotonic() > options.end:
            print(f"# {options.seconds:g} s are over: the other shapes were not measured")
            break
        heading(shape)
        every["x".join(map(str, shape))] = measure(shape, options, makers)
        gc.collect()
        torch.cuda.empty_cache()
        if options.json:  # after each shape: what was measured is kept if a later one fails
            with open(options.json, "w") as out:
                json.dump(report(every, options), out, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())

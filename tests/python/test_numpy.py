"""The package with NumPy alone: against an f64 oracle, teams of threads, an exchange between them,
misuse, and that torch is not imported."""

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest
import weft
from oracle import close, loss_and_gradients, near, problem
from weft import _native


@pytest.mark.parametrize("temperature, cap", [(1.0, None), (0.7, None), (1.3, 2.0)])
@pytest.mark.parametrize("tokens, hidden, vocab", [(1, 1, 1), (37, 24, 103), (130, 8, 1025)])
def test_loss_and_gradients(tokens, hidden, vocab, temperature, cap):
    x, w, target = problem(tokens, hidden, vocab)
    g = np.linspace(0.5, 1.5, tokens, dtype=np.float32)
    options = dict(temperature=temperature, softcap=cap)
    nll, entropy, lse, dx, dw, z = loss_and_gradients(x, w, target, g, -g, 0.3, temperature, cap)
    found = weft.linear_cross_entropy(x, w, target, return_entropy=True, return_lse=True, **options)
    for one, right in zip(found, (nll, entropy, lse)):
        assert one.dtype == np.float32 and close(one, right, z)
    step = weft.step(
        x, w, target, reduction="none", g_nll=g, g_entropy=-g, g_lse=0.3, return_lse=True, **options
    )
    assert close(step.loss, nll, z) and close(step.lse, lse, z) and step.entropy is None
    assert near(step.dx, dx) and near(step.dw, dw)


def test_reductions_and_what_is_wanted():
    x, w, target = problem(50, 16, 77)
    count = np.count_nonzero(target != -100)
    nll, _, _, dx, dw, z = loss_and_gradients(x, w, target, 1 / count)
    for reduction, right in (("sum", nll.sum()), ("mean", nll.sum() / count)):
        assert (
            abs(weft.linear_cross_entropy(x, w, target, reduction=reduction) - right) < 1e-5 * right
        )
    step = weft.step(x, w, target)
    assert near(step.dx, dx) and near(step.dw, dw)
    assert (
        weft.step(x, w, target, want_dx=False).dx is None
        and weft.step(x, w, target, want_dw=False).dw is None
    )
    before = np.full_like(w, 2.0)
    assert weft.step(x, w, target, dw=before).dw is before and near(before, dw + 2.0)
    none = np.full(50, -100)
    step = weft.step(x, w, none)
    assert step.loss == 0 and not step.dx.any() and not step.dw.any()  # no mean of nothing


def test_arrays_as_they_come():
    x, w, target = problem(12, 16, 40)
    right = weft.linear_cross_entropy(x, w, target)
    wide = np.zeros((12, 40), np.float32)
    wide[:, 8:24] = x
    read_only = x.copy()
    read_only.flags.writeable = False
    for view in (wide[:, 8:24], np.asfortranarray(x), x[::-1][::-1], read_only):
        assert np.array_equal(weft.linear_cross_entropy(view, w, target), right)
    assert np.array_equal(weft.linear_cross_entropy(x, w, target.astype(np.int32)), right)
    shaped = weft.linear_cross_entropy(x.reshape(3, 4, 16), w, target.reshape(3, 4))
    assert shaped.shape == (3, 4) and np.array_equal(shaped.reshape(-1), right)
    half = weft.step(x.astype(np.float16), w.astype(np.float16), target)
    _, _, _, dx, _, _ = loss_and_gradients(x, w, target, 1 / np.count_nonzero(target != -100))
    assert half.dx.dtype == np.float16 and near(half.dx, dx, 4e-3)
    bits = [(a.view(np.uint32) >> 16).astype(np.uint16) for a in (x, w)]  # bf16, rounded towards 0
    exact = [(b.astype(np.uint32) << 16).view(np.float32) for b in bits]
    nll, _, _, _, _, z = loss_and_gradients(*exact, target)
    assert close(weft.linear_cross_entropy(*bits, target), nll, z)
    assert weft.linear_cross_entropy(x[:0], w, target[:0]).shape == (0,)


def ranks(teams, work):
    """Runs work(rank, team) in a thread each; their results, or the first exception."""
    results, errors = [None] * len(teams), [None] * len(teams)

    def run(rank):
        try:
            results[rank] = work(rank, teams[rank])
        except BaseException as error:
            errors[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(teams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results, errors


CUTS = [0, 30, 30, 71, 103]


def shards(x, w, target, rank, team, **options):
    return weft.step(x, w[CUTS[rank] : CUTS[rank + 1]], target, group=team, **options)


def test_team_of_threads():
    x, w, target = problem(37, 24, 103)
    nll, _, _, dx, dw, z = loss_and_gradients(x, w, target, 1 / np.count_nonzero(target != -100))
    teams = weft.Team.in_process(4, timeout_ms=20000)
    assert [team.rank for team in teams] == [0, 1, 2, 3] and teams[0].info["transport"] == "inproc"

    def work(rank, team):
        options = dict(vocab_start=CUTS[rank], vocab_size=103)
        part = shards(x, w, target, rank, team, dx="reduce_scatter", **options)
        return (
            shards(x, w, target, rank, team, **options),
            part.dx,
            team.split([3, 1]) if rank in (1, 3) else None,
        )

    results, errors = ranks(teams, work)
    assert errors == [None] * 4
    for rank, (step, rows, _) in enumerate(results):
        assert near(step.dx, dx) and np.array_equal(step.dx, results[0][0].dx)
        assert near(step.dw, dw[CUTS[rank] : CUTS[rank + 1]])
        assert np.array_equal(rows, step.dx[10 * rank : 10 * rank + 10])
    assert results[1][2].rank == 1 and results[3][2].rank == 0

    def refused(rank, team):
        shards(
            x[: 30 + (rank == 2)],
            w,
            target[: 30 + (rank == 2)],
            rank,
            team,
            vocab_start=CUTS[rank],
            vocab_size=103,
        )

    for error in ranks(teams, refused)[1]:
        assert isinstance(error, ValueError) and "tokens is 30 on rank 0 and 31 on rank 2" in str(
            error
        )
    for _, _, part in results:
        if part is not None:
            part.close()
    for team in teams:
        team.close()


class Plaza:
    """An exchange between threads."""

    def __init__(self, count):
        self.gate, self.sent, self.fail = threading.Barrier(count), [None] * count, False

    def functions(self, rank):
        def allgather(send, recv):
            if self.fail and rank == 1:
                raise OSError("the cable is out")
            self.sent[rank] = bytes(send)
            self.gate.wait(20)
            recv[:] = b"".join(self.sent)
            self.gate.wait(20)

        def barrier():
            if self.fail:
                raise OSError("the cable is out")
            self.gate.wait(20)

        return allgather, barrier


def test_team_over_an_exchange():
    x, w, target = problem(37, 24, 103)
    _, _, _, dx, dw, _ = loss_and_gradients(x, w, target, 1 / np.count_nonzero(target != -100))
    plaza = Plaza(4)
    teams, errors = ranks(
        range(4), lambda rank, _: weft.Team.from_exchange(rank, 4, *plaza.functions(rank))
    )
    assert errors == [None] * 4
    results, errors = ranks(
        teams, lambda rank, team: shards(x, w, target, rank, team)
    )  # asks for the ranges
    assert errors == [None] * 4
    for rank, step in enumerate(results):
        assert near(step.dx, dx) and near(step.dw, dw[CUTS[rank] : CUTS[rank + 1]])
    plaza.fail = True
    with pytest.raises(RuntimeError, match="exchange function returned 1") as caught:
        teams[1].barrier()
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(OSError):
        shards(x, w, target, 1, teams[1])
    plaza.fail = False
    with pytest.raises(RuntimeError, match="weft_comm_reset"):
        teams[1].barrier()  # until then
    for team in teams:
        team.close()


def plan(**changes):
    fields = dict(
        hidden=8,
        vocab=10,
        vocab_start=0,
        vocab_local=10,
        ignore_index=-100,
        workspace_budget=0,
        workspace=None,
        softcap=0.0,
        wants=15,
        dtype=1,
        target_dtype=5,
        dx_dtype=0,
        dw_dtype=0,
        dx_mode=0,
        deterministic=1,
        max_sms=0,
        threads=0,
        device=1,
    )
    fields.update(changes)
    return _native.functions.ce_plan_create(None, 0, 4, *fields.values())


def test_misuse_says_what_c_says():
    x, w, target = problem(4, 8, 10, ignore=0)
    for kind, words, call in (
        (
            ValueError,
            "args.temperature is 0, expected a number above 0",
            lambda: weft.linear_cross_entropy(x, w, target, temperature=0.0),
        ),
        (
            ValueError,
            "config.softcap is -1, expected",
            lambda: weft.linear_cross_entropy(x, w, target, softcap=-1.0),
        ),
        (
            ValueError,
            "1 targets are outside 0 … 9 and are not ignore_index -100, the first at token 2",
            lambda: weft.linear_cross_entropy(x, w, np.array([0, 1, 10, 9])),
        ),
        (
            ValueError,
            "config.workspace_budget is 1",
            lambda: weft.linear_cross_entropy(x, w, target, workspace_bytes=1),
        ),
        (ValueError, "x has shape", lambda: weft.linear_cross_entropy(x, w[:, :7], target)),
        (
            ValueError,
            "reduction is 'all'",
            lambda: weft.linear_cross_entropy(x, w, target, reduction="all"),
        ),
        (ValueError, "dx is 'some'", lambda: weft.linear_cross_entropy(x, w, target, dx="some")),
        (
            TypeError,
            "x is of dtype float64",
            lambda: weft.linear_cross_entropy(x.astype(float), w, target),
        ),
        (TypeError, "target is of dtype float32", lambda: weft.linear_cross_entropy(x, w, x[:, 0])),
        (
            NotImplementedError,
            "different dtypes",
            lambda: weft.linear_cross_entropy(x, w.astype(np.float16), target),
        ),
        (
            ValueError,
            "no upstream|without an upstream",
            lambda: weft.step(x, w, target, reduction="none"),
        ),
        (ValueError, "config.hidden is 0, expected at least 1", lambda: plan(hidden=0)),
        (TypeError, "wants is a string, expected an int", lambda: plan(wants="all")),
        (NotImplementedError, "CUDA|GPU|gpu", lambda: plan(device=2, dtype=2)),
        (NotImplementedError, "NVSHMEM", lambda: _native.functions.comm_unique_id()),
    ):
        if kind is NotImplementedError and "GPU" in words and weft.info()["cuda_available"]:
            continue
        with pytest.raises(kind, match=words):
            call()


def test_misuse_of_handles_and_tensors():
    f = _native.functions
    x, w, target = problem(4, 8, 10, ignore=0)
    nll, number = np.empty(4, np.float32), plan()

    def forward(x=x, w=w, target=target, nll=nll, plan=number):
        f.ce_forward(plan, x, w, target, 1.0, None, nll, None, None)

    forward()
    for kind, words, change in (
        (ValueError, "args.x has stride -1 in dimension 1", dict(x=x[:, ::-1])),
        (
            ValueError,
            "args.x_stride is 0, expected at least 8",
            dict(x=np.lib.stride_tricks.as_strided(x, (4, 8), (0, 4))),
        ),
        (ValueError, "args.x has 7 in dimension 1, expected 8", dict(x=x[:, :7])),
        (ValueError, "args.w has 9 in dimension 0, expected 10", dict(w=w[:9])),
        (ValueError, "args.nll has stride 2", dict(nll=np.empty(8, np.float32)[::2])),
        (ValueError, "args.target has 3 in dimension 0", dict(target=target[:3])),
        (
            TypeError,
            "args.target is of dtype int32, expected int64",
            dict(target=target.astype(np.int32)),
        ),
        (ValueError, "args.nll overlaps args.x", dict(nll=x.reshape(-1)[:4])),
        (TypeError, "x is a float, expected a tensor", dict(x=1.0)),
        (ValueError, "handle 5, which is not alive", dict(plan=5)),
        (TypeError, "plan is None", dict(plan=None)),
    ):
        with pytest.raises(kind, match=words):
            forward(**change)
    raw = np.empty(4 * 8 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(4, 8)
    with pytest.raises(ValueError, match="expected alignment to its 4-byte elements"):
        forward(x=raw)
    with pytest.raises(TypeError, match="arguments, expected|is missing"):
        f.ce_forward(number)
    with pytest.raises(TypeError, match="team is a ce plan, expected a team"):
        f.comm_info(number)
    f.ce_plan_destroy(number)
    with pytest.raises(ValueError, match="not alive"):
        f.ce_plan_destroy(number)


def test_ep_by_its_exports():
    """One rank, by the functions alone: rows go to their experts and come back summed."""
    f, tokens, hidden, experts, k = _native.functions, 5, 16, 4, 2
    number = f.ep_plan_create(
        None,
        0,
        tokens,
        hidden,
        experts,
        k,
        0,
        None,
        _native.BF16,
        1,
        1,
        0,
        0,
        _native.I64,
        0,
        0,
        0,
        _native.CPU,
    )
    info, handle = _native.told("ep_plan_info", number), f.ep_handle_create(number)
    x = np.full((tokens, hidden), 0x3F80, np.uint16)  # 1.0
    x[:, 0] += np.arange(tokens, dtype=np.uint16)
    idx = np.array([[0, 1], [3, -1], [2, 0], [1, 2], [-1, -1]])
    rows, counts, offsets = (
        np.zeros((info["rows_max"], hidden), np.uint16),
        np.zeros(4, int),
        np.zeros(5, int),
    )
    f.ep_dispatch(handle, 0, x, idx, None, 0, rows, None, None, counts, offsets, None)
    assert counts.tolist() == [2, 2, 2, 1] and offsets.tolist() == [0, 2, 4, 6, 7]
    assert np.array_equal(rows[:7], x[[0, 2, 0, 3, 2, 3, 1]])
    out = np.empty_like(x)
    f.ep_combine(handle, 0, rows, None, None, out, None)
    twice = (x.astype(np.uint32) << 16).view(np.float32) * np.array([2, 1, 2, 2, 0], np.float32)[
        :, None
    ]
    assert np.array_equal((out.astype(np.uint32) << 16).view(np.float32), twice)
    with pytest.raises(ValueError, match="args.y has 3 in dimension 0"):
        f.ep_combine(handle, 0, rows[:3], None, None, out, None)
    with pytest.raises(RuntimeError, match="handle"):
        f.ep_plan_destroy(number)
    f.ep_handle_destroy(handle)
    f.ep_plan_destroy(number)


def test_plans_are_kept_and_freed():
    x, w, target = problem(9, 8, 10)
    weft.clear_plans()
    for _ in range(3):
        weft.linear_cross_entropy(x, w, target)
        weft.linear_cross_entropy(x[:4], w, target[:4])
    from weft import _plan

    assert len(_plan.cache(None, _native.CPU, 0).plans) == 1
    for hidden in range(1, 20):
        weft.linear_cross_entropy(*problem(2, hidden, 3))
    assert len(_plan.cache(None, _native.CPU, 0).plans) == _plan.MOST_PLANS
    weft.clear_plans()
    gc.collect()
    assert not _plan.cache(None, _native.CPU, 0).plans


def test_torch_is_not_imported():
    # TVM FFI imports torch where it is installed; weft does not
    code = (
        "import sys, weft; assert not {'weft._torch', 'weft._operators'} & set(sys.modules); "
        "print(weft.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.strip() == weft.__version__, done.stderr

"""Plans of ce, made when a call first needs one and kept: a plan holds its workspace, and making
one is collective. Knows devices and sizes, not arrays: whoever calls brings a function that
allocates."""

import contextlib
import threading
import weakref

from . import _native
from ._native import functions

MOST_PLANS = 8  # of a team, or of a GPU, or of the CPU without a team


class Plan:
    """One weft_ce_plan. `workspace` is memory of the caller's framework, which the plan keeps."""

    def __init__(self, team, gpu, max_tokens, fields, allocate=None):
        arguments = [
            fields[name]
            for name in (
                "hidden vocab vocab_start vocab_local ignore_index workspace_budget softcap wants "
                "dtype target_dtype dx_dtype dw_dtype dx_mode deterministic max_sms threads device"
            ).split()
        ]
        head, tail = [max_tokens, *arguments[:6]], arguments[6:]
        self.team, self.max_tokens, self.pinned = team, max_tokens, False
        self.handle, self.workspace, self.last_stream, self.errors_seen = None, None, None, 0
        if allocate is not None:
            info = _native.told("ce_plan_query", *allocate.machine, *head, None, *tail)
            self.workspace = allocate(info["local_bytes"])
        handle = team.handle if team is not None else None
        with _guard(team):
            self.handle = functions.ce_plan_create(handle, gpu, *head, self.workspace, *tail)

    @property
    def info(self):
        return _native.told("ce_plan_info", self.handle)

    def run(self, name, *arguments):
        with _guard(self.team):
            getattr(functions, "ce_" + name)(self.handle, *arguments)

    def raise_async(self):
        """Raises what kernels of earlier calls found: on GPUs, calls end before their work does."""
        error = _native.told("ce_plan_async_error", self.handle)
        if error["count"] > self.errors_seen:
            self.errors_seen = error["count"]
            raise (ValueError if error["name"] == "target" else RuntimeError)(error["message"])

    def close(self):
        handle, self.handle = self.handle, None
        if self.last_stream is not None:
            self.last_stream.synchronize()
        if handle is not None:
            functions.ce_plan_destroy(handle)
        self.workspace = None

    def __del__(self):  # of a thread that has ended
        try:
            self.close()
        except Exception:
            pass


class _NoGuard:
    def __enter__(self):
        pass

    def __exit__(self, *unused):
        return False


def _guard(team):
    return team.guard() if team is not None else _NoGuard()


class Cache:
    """The plans of a team, of a GPU, or of one thread on the CPU. A plan is used under the cache's
    lock."""

    def __init__(self):
        self.lock, self.plans, self.retired = threading.RLock(), {}, []
        _caches.add(self)

    @contextlib.contextmanager
    def use(self, team, gpu, tokens, fields, allocate=None, capturing=False):
        """A plan for these fields that takes so many tokens, until the end of the context. There is
        one for each set of fields, replaced by a larger one when tokens grow. The ranks of a team
        hold different rows, so one may have a plan where another has none: if one needs a new one,
        all make it."""
        with self.lock:
            key = tuple(fields.items())
            plan = self.plans.pop(key, None)
            needed = plan is None or plan.max_tokens < tokens
            if team is not None:
                needed = team.any(needed)
            if needed:
                if capturing:
                    raise RuntimeError(
                        "a plan can't be made while a stream is being captured: run the same call "
                        "once before the capture"
                    )
                self._make_room(plan)
                plan = Plan(team, gpu, tokens, fields, allocate)
            self.plans[key] = plan  # the latest is last
            plan.pinned |= capturing
            yield plan

    def _make_room(self, replaced):
        if replaced is not None:
            self._retire(replaced)
        while len(self.plans) >= MOST_PLANS:
            self._retire(self.plans.pop(next(iter(self.plans))))

    def _retire(self, plan):
        if plan.pinned:
            self.retired.append(plan)  # a captured graph still needs it
        else:
            plan.close()

    def clear(self):
        with self.lock:
            for plan in [*self.plans.values(), *self.retired]:
                plan.close()
            self.plans.clear()
            self.retired.clear()


_caches = weakref.WeakSet()
_of_gpu = {}
_of_thread = threading.local()


def cache(team, device, gpu):
    if team is not None:
        return team.plans
    if device == _native.CUDA:
        return _of_gpu.setdefault(gpu, Cache())
    if not hasattr(_of_thread, "cache"):
        _of_thread.cache = Cache()
    return _of_thread.cache


def clear():
    """Destroys all plans and frees their workspace, that of captured CUDA graphs included. Not
    collective; the ranks of a team must all do it, between the same calls."""
    for kept in list(_caches):
        kept.clear()


def check_errors():
    """Waits for the GPU's work and raises what it found wrong: targets outside the vocabulary,
    timeouts."""
    for kept in list(_caches):
        with kept.lock:
            for plan in [*kept.plans.values(), *kept.retired]:
                if plan.last_stream is not None:
                    plan.last_stream.synchronize()
                    plan.raise_async()

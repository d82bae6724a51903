"""Teams of ranks: threads of one process, or processes over an exchange of the caller's,
torch.distributed's among them. A team keeps the plans that were made on it, because all its ranks
must make and look up plans alike."""

import atexit
import ctypes
import struct
import threading
import weakref

import numpy

from . import _native, _plan
from ._native import functions


def _view(address, size):
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


class _Exchange:
    """Python functions in the shape that the library calls, and what they failed with."""

    def __init__(self, ranks, allgather, barrier):
        self.ranks, self.user_allgather, self.user_barrier = ranks, allgather, barrier
        self.failure = None

    def _try(self, function, *arguments):
        try:
            function(*arguments)
            return 0
        except BaseException as failure:  # it is raised again where the library's call ends
            self.failure = failure
            return 1

    def allgather(self, send, recv, size):
        return self._try(self.user_allgather, _view(send, size), _view(recv, size * self.ranks))

    def barrier(self):
        return self._try(self.user_barrier)


class Team:
    """One rank's view of a team. Collective calls block until all its ranks have made them."""

    def __init__(self, handle, exchange=None):
        self.handle = handle
        self.info = _native.told("comm_info", handle)
        self.rank, self.ranks = self.info["rank"], self.info["ranks"]
        self.plans = _plan.Cache()
        self._exchange = exchange
        self.name = f"weft:{handle}"
        _teams.add(self)
        _by_name[self.name] = self

    @classmethod
    def in_process(cls, ranks, *, hosts=1, timeout_ms=0, device=_native.CPU):
        """Ranks that are threads of this process: a list of `ranks` teams, one for each thread."""
        handles = numpy.zeros(ranks, numpy.int64)
        functions.comm_create_inproc(ranks, hosts, 0, timeout_ms, device, handles)
        return [cls(int(handle)) for handle in handles]

    @classmethod
    def from_exchange(
        cls, rank, ranks, allgather, barrier, *, hosts=1, timeout_ms=0, device=_native.CPU
    ):
        """A rank of a world of processes. allgather(send, recv) fills recv, a writable memoryview
        of ranks times send's bytes, with every rank's send in rank order; barrier() waits for all.
        Both raise to fail."""
        exchange = _Exchange(ranks, allgather, barrier)
        with _Cause(exchange):
            handle = functions.comm_create_external(
                ranks, hosts, 0, timeout_ms, device, rank, exchange.allgather, exchange.barrier
            )
        return cls(handle, exchange)

    def split(self, members):
        """A team of the parent's ranks in this order; ranks outside do not call."""
        return Team(
            functions.comm_split_list(self.handle, numpy.asarray(members, numpy.int64)),
            self._exchange,
        )

    def guard(self):
        """A context in which an exception of the exchange becomes the cause of the library's."""
        return _Cause(self._exchange)

    def shard(self, rows):
        """(first row, all rows) of a vocabulary of which each rank holds the next `rows`.
        Collective."""
        counts = self._gather_counts(rows)
        return sum(counts[: self.rank]), sum(counts)

    def any(self, flag):
        """Whether one of the ranks says so. Collective; ranks that are threads decide alone, for
        which all of them must make the same calls with the same rows."""
        return any(self._gather_counts(int(flag))) if self._exchange is not None else flag

    def _gather_counts(self, value):
        if self._exchange is None:
            raise ValueError(
                "vocab_start and vocab_size are None, expected numbers for a team of threads"
            )
        send, recv = bytearray(struct.pack("<q", value)), bytearray(8 * self.ranks)
        self._exchange.user_allgather(memoryview(send), memoryview(recv))
        return struct.unpack(f"<{self.ranks}q", recv)

    def barrier(self):
        with self.guard():
            functions.comm_barrier(self.handle)

    def abort(self):
        functions.comm_abort(self.handle)

    def reset(self):
        with self.guard():
            functions.comm_reset(self.handle)

    def async_error(self):
        return _native.told("comm_async_error", self.handle)

    def close(self):
        """Destroys the team's plans and the team. Not collective."""
        self.plans.clear()
        handle, self.handle = self.handle, None
        if handle is not None:
            functions.comm_destroy(handle)
        self._exchange = None  # and with it the process group


class _Cause:
    def __init__(self, exchange):
        self.exchange = exchange

    def __enter__(self):
        if self.exchange is not None:
            self.exchange.failure = None

    def __exit__(self, kind, error, trace):
        failure = self.exchange.failure if self.exchange is not None else None
        if error is not None and failure is not None and error is not failure:
            raise error from failure
        return False


_teams = weakref.WeakSet()
_by_name = weakref.WeakValueDictionary()
_of_group = {}  # (name, device) → (weak reference to the group, its team): weft keeps none alive
_lock = threading.Lock()


def named(name):
    """The team of this name: torch's operators carry a team by it."""
    found = _by_name.get(name)
    if found is None:
        raise ValueError(f"team {name!r} is not alive")
    return found


def of_process_group(group, device=_native.CPU):
    """The team of a torch.distributed process group, made at its first use; None for a group of
    one. Collective over the group at first."""
    import torch.distributed as dist

    ranks = dist.get_world_size(group)
    if ranks == 1:
        return None
    key = (group.group_name, device)
    with _lock:
        found = _of_group.get(key)
    if found is not None and found[0]() is group:
        return found[1]
    team = Team.from_exchange(dist.get_rank(group), ranks, *_functions_of(group), device=device)
    with _lock:
        _of_group[key] = (weakref.ref(group), team)
    if found is not None:
        found[1].close()  # a group of the past, of the same name
    return team


def _functions_of(group):
    import torch
    import torch.distributed as dist

    # NCCL sees GPU memory alone: bytes go there and back. Gloo gets memory of torch's own: it may
    # let go of a tensor in a thread of its own, which must not need Python then.
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    ranks, reference = dist.get_world_size(group), weakref.ref(group)

    def alive():
        found = reference()
        if found is None:
            raise RuntimeError("the process group was destroyed")
        return found

    def allgather(send, recv):
        own = torch.frombuffer(send, dtype=torch.uint8).to(device, copy=True)
        parts = torch.empty(ranks, own.numel(), dtype=torch.uint8, device=device)
        dist.all_gather(list(parts), own, group=alive())
        torch.frombuffer(recv, dtype=torch.uint8).copy_(parts.view(-1))

    return allgather, lambda: dist.barrier(alive())


@atexit.register
def _close_all():
    _plan.clear()
    _of_group.clear()
    for team in list(_teams):
        try:
            team.close()
        except Exception:  # the process ends; a call of another thread may still hold a handle
            pass

"""weft's loss head for peers.py, by ctypes on the public header include/weft/weft.h: one rank, no team.

Structs are those of weft_structs.py. Outputs are made by each call, as torch makes gradients.
"""
import ctypes
import os

import torch

from loss_heads import Head
from weft_structs import (DEVICE_CUDA, PTR, WANTS_DW, WANTS_DX, WANTS_STEP, WEFT_BF16, WEFT_F16, WEFT_F32, WEFT_I64,
                          Args, Config, PlanInfo)

DTYPES = {torch.bfloat16: WEFT_BF16, torch.float16: WEFT_F16}


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(os.path.abspath(path))
        self.c.weft_last_error.restype = ctypes.c_char_p
        self.c.weft_ce_plan_create.argtypes = [PTR, ctypes.POINTER(Config), ctypes.POINTER(PTR)]
        self.c.weft_ce_plan_info_get.argtypes = [PTR, ctypes.POINTER(PlanInfo)]
        self.c.weft_ce_plan_destroy.argtypes = [PTR]
        for call in (self.c.weft_ce_forward, self.c.weft_ce_backward, self.c.weft_ce_step):
            call.argtypes = [PTR, ctypes.POINTER(Args), PTR]

    def must(self, status):
        if status != 0:
            raise RuntimeError(self.c.weft_last_error().decode() or f"status {status}")

    def version(self):
        number = self.c.weft_version()
        return f"weft {number // 10000}.{number // 100 % 100}.{number % 100}"

    def config(self, p, wants, budget=0, dw_dtype=0):
        c = Config(size=ctypes.sizeof(Config), max_tokens=p.M, hidden=p.H, vocab=p.V, vocab_local=p.V,
                   ignore_index=-100, workspace_budget=budget, wants=wants, dtype=DTYPES[p.X.dtype],
                   target_dtype=WEFT_I64, dw_dtype=dw_dtype, deterministic=1, device=DEVICE_CUDA)
        return c

    def plan(self, config):
        plan, info = PTR(), PlanInfo(size=ctypes.sizeof(PlanInfo))
        self.must(self.c.weft_ce_plan_create(None, ctypes.byref(config), ctypes.byref(plan)))
        self.must(self.c.weft_ce_plan_info_get(plan, ctypes.byref(info)))
        return plan, info


class Call:
    """A plan, its outputs and the arguments that name them. Outputs are made by the call, as torch makes gradients."""
    def __init__(self, library, p, wants, budget=0, dw_dtype=0):
        self.library, self.p, self.wants = library, p, wants
        self.handle, self.info = library.plan(library.config(p, wants, budget, dw_dtype))
        self.dw_type = torch.float32 if dw_dtype == WEFT_F32 else p.W.dtype
        self.stats = torch.empty(p.M, 4, device="cuda")
        self.ready = False

    def args(self):
        p = self.p
        self.nll, self.lse = torch.empty(2, p.M, device="cuda").unbind(0)
        a = Args(size=ctypes.sizeof(Args), tokens=p.M, x=p.X.data_ptr(), w=p.W.data_ptr(), target=p.T.data_ptr(),
                 temperature=1.0, g_nll=p.g.data_ptr(), stats=self.stats.data_ptr(), nll=self.nll.data_ptr(),
                 lse=self.lse.data_ptr())
        if self.wants & (WANTS_DX | WANTS_DW):
            self.dx = torch.empty_like(p.X, requires_grad=False)
            self.dw = torch.empty(p.V, p.H, device="cuda", dtype=self.dw_type)
            a.dx, a.dw = self.dx.data_ptr(), self.dw.data_ptr()
        return a

    def run(self, *names):
        stream = torch.cuda.current_stream().cuda_stream
        a = self.args()
        for name in names:
            self.library.must(getattr(self.library.c, "weft_ce_" + name)(self.handle, ctypes.byref(a), stream))
        return (self.nll, self.dx, self.dw) if self.wants & WANTS_DX else self.nll

    def backward(self):
        """Gradients alone, of the statistics that the first call's forward left."""
        if not self.ready:
            self.run("forward")
            self.ready = True
        return self.run("backward")

    def close(self):
        torch.cuda.synchronize()
        self.library.must(self.library.c.weft_ce_plan_destroy(self.handle))


MIB = 2**20


def small_budget(p):
    return p.M * p.H * 4 + 224 * MIB


def large_budget(p):
    return p.M * p.V * 2 + p.M * p.H * 4 + 192 * MIB


def maker(path):
    """A maker of weft's heads for loss_heads.heads(); a kind that the library refuses is told by its error."""
    def make(p):
        library = Library(path)
        gradients = WANTS_DX | WANTS_DW
        forward = Call(library, p, 0)
        kinds = (("weft", ("forward", "backward"), gradients, small_budget(p), 0, "forward, then backward"),
                 ("weft step small", ("step",), gradients | WANTS_STEP, small_budget(p), 0, ""),
                 ("weft step large", ("step",), gradients | WANTS_STEP, large_budget(p), 0, ""),
                 ("weft step large f32 dW", ("step",), gradients | WANTS_STEP, large_budget(p), WEFT_F32, ""))
        for name, calls, wants, budget, dw_dtype, note in kinds:
            call = Call(library, p, wants, budget, dw_dtype)
            text = call.info.text.decode()
            apart = name == "weft"
            outputs = p.X.numel() * p.X.element_size() + p.W.numel() * (4 if dw_dtype else p.W.element_size())
            products = f"{call.info.step_gemms} GEMMs" if "step" in name else ""

            def close(call=call, apart=apart):
                call.close()
                if apart:
                    forward.close()

            yield Head(name, library.version(), (lambda: forward.run("forward")) if apart else None,
                       lambda call=call, calls=calls: call.run(*calls),
                       (lambda call=call: call.backward()) if apart else None, "token", outputs,
                       call.info.local_bytes + call.info.symmetric_bytes,
                       "; ".join(part for part in (note, products, text) if part), close=close)
    return make

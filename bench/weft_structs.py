"""The structs of include/weft/weft.h that peers.py fills, for ctypes, field by field in the header's order.

tests/bench holds sizes and offsets against a C compiler's. Knows nothing of torch.
"""
import ctypes

I32, I64, F32, PTR, SIZE = ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p, ctypes.c_size_t
WEFT_F32, WEFT_BF16, WEFT_F16, WEFT_I64 = 1, 2, 3, 5
WANTS_DX, WANTS_DW, WANTS_STEP = 2, 4, 8
DEVICE_CUDA = 2


class Config(ctypes.Structure):
    _fields_ = [("size", SIZE), ("max_tokens", I64), ("hidden", I64), ("vocab", I64), ("vocab_start", I64),
                ("vocab_local", I64), ("ignore_index", I64), ("workspace_budget", I64), ("workspace", PTR),
                ("workspace_bytes", I64), ("softcap", F32), ("wants", I32), ("dtype", I32), ("w_dtype", I32),
                ("target_dtype", I32), ("dx_dtype", I32), ("dw_dtype", I32), ("dx_mode", I32),
                ("deterministic", I32), ("max_sms", I32), ("threads", I32), ("x_sharded", I32), ("bias", I32),
                ("device", I32)]


class Args(ctypes.Structure):
    _fields_ = [("size", SIZE), ("tokens", I64), ("x", PTR), ("x_stride", I64), ("w", PTR), ("w_stride", I64),
                ("target", PTR), ("temperature", F32), ("dw_accumulate", I32), ("temperature_ptr", PTR),
                ("g_nll", PTR), ("g_entropy", PTR), ("g_lse", PTR), ("stats", PTR), ("nll", PTR), ("lse", PTR),
                ("entropy", PTR), ("dx", PTR), ("dx_stride", I64), ("dw", PTR), ("dw_stride", I64)]


class PlanInfo(ctypes.Structure):
    _fields_ = [("size", SIZE), ("local_bytes", I64), ("symmetric_bytes", I64), ("least_bytes", I64),
                ("token_chunk", I64), ("waves", I64), ("wave_rows", I64), ("step_gemms", I64), ("units", I64),
                ("forward_ms", ctypes.c_double), ("backward_ms", ctypes.c_double), ("step_ms", ctypes.c_double),
                ("text", ctypes.c_char * 256)]


STRUCTS = {"weft_ce_config": Config, "weft_ce_args": Args, "weft_ce_plan_info": PlanInfo}

"""What a user of the wheel alone sees: no torch, the bundled BLAS where there is one, and the
README's numbers."""

import pathlib
import sys

import numpy as np
import weft

folder = pathlib.Path(weft.__file__).parent
assert "torch" not in sys.modules
x, w = np.zeros((2, 8), np.float32), np.zeros((1025, 8), np.float32)
x[:, 0], w[:, 0] = 1, -10  # every logit is -10
step = weft.step(x, w, np.array([3, 1024]))
assert abs(step.loss - np.log(1025)) < 1e-5 and abs(step.dw[3, 0] - (1 / 1025 - 0.5)) < 1e-6
bundled = folder / "blas" / "libopenblas.so.0"
blas = weft.info()["blas"]
assert not bundled.exists() or blas.startswith(str(bundled)), blas
maps = pathlib.Path("/proc/self/maps").read_text()
assert str(folder / "libweft.so.0") in maps
print(f"weft {weft.__version__}: loss {step.loss:.4f}, dw[3][0] {step.dw[3, 0]:.4f}; {blas}")

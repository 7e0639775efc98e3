"""Shared by the tests of all quantizers: golden files, equality and digests of bits, other Pythons."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "quantizers"


def golden(name):
    """The arrays of a golden file."""
    return np.load(GOLDEN / f"{name}.npz", allow_pickle=False)


def same_bits(a, b):
    """Same shape, dtype and bits; any NaN equals any NaN."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind != "f":
        return bool((a == b).all())
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    return bool(((a.view(unsigned) == b.view(unsigned)) | (np.isnan(a) & np.isnan(b))).all())


def digest(buffers):
    """One hash over named arrays."""
    total = hashlib.sha256()
    for name, array in sorted(buffers.items()):
        total.update(f"{name} {array.dtype} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def elsewhere(code, **environment):
    """Words that `code` prints in another Python with that environment, where every warning is an error."""
    path = os.pathsep.join([str(Path(__file__).parent), str(ROOT / "tests"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    assert not done.stderr
    return done.stdout.split()


def on_threads(call):
    """Results of `call`, such as "module.function(1)", on 1, 2 and 4 threads of another Python."""
    module = call.partition(".")[0]
    lines = f"import numba, {module}\nfor n in (1, 2, 4):\n    numba.set_num_threads(n)\n    print({call})"
    return elsewhere(lines, NUMBA_NUM_THREADS="4")


def without_compilation(call):
    """Results of `call` in plain Python."""
    return elsewhere(f"import {call.partition('.')[0]}; print({call})", NUMBA_DISABLE_JIT="1")

"""PyTorch's own Python, for the networks that are measured, and malloc's settings in them."""

import os
from pathlib import Path

# To keep what is freed. Else a network's tensors fault in pages anew, as often as the process's history has it.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_TOP_PAD_": str(1 << 29)}
_TORCH = Path(os.environ.get("PYTRACE_TORCH", "/var/lib/pytrace-ebpf/torch"))


def torch_python() -> Path:
    """The interpreter; ends the benchmark, and well, where PyTorch is not installed."""
    if not (_TORCH / ".made-from").exists():
        print("PyTorch is not installed, so nothing was measured: make torch")
        raise SystemExit
    return _TORCH / "bin" / "python"

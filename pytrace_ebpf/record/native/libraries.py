"""BLAS and the CUDA runtime: which exported functions of which libraries belong to these layers."""

import re
from typing import BinaryIO

from pytrace_ebpf.record.native.probed_library import Found, Gemm
from pytrace_ebpf.record.parsing.elf import Functions, hidden_functions

# sgemm and dgemm under the names that MKL, OpenBLAS (also SciPy's build of it, and with 64-bit numbers) and the reference give them
_GEMM = re.compile(r"(?:scipy_)?(?P<c>cblas_)?(?P<name>[sd]gemm)(?P<wide>_?64)?(?P<fortran>_?)", re.IGNORECASE)
_ONEDNN = ("dnnl_primitive_execute", "dnnl_sgemm")  # PyTorch's libtorch_cpu keeps them to itself
_FORTRAN_FIRST, _C_FIRST = 2, 3  # transa, transb, m, n, k; layout, transa, transb, m, n, k

# What launches, copies, allocates and waits.
_CUDA = re.compile(
    r"(cudaLaunchKernel(ExC)?|cudaLaunchCooperativeKernel|cudaGraphLaunch|cudaMemcpy\w*|cudaMemset\w*|cudaMalloc\w*|cudaFree\w*"
    r"|cuda(Device|Stream|Event)Synchronize|cudaStreamWaitEvent|cudaEvent(Record|Query)"
    r"|cuLaunchKernel(Ex)?|cuGraphLaunch|cuMemcpy\w*|cuMemset\w*|cuMemAlloc\w*|cuMemFree\w*|cu(Ctx|Stream|Event)Synchronize)(_ptsz|_ptds|_v\d)*"
)


def find_blas(file: BinaryIO, functions: Functions) -> list[Found]:
    """Matrix products of a BLAS, and what oneDNN executes."""
    library = _which(functions)
    found = []
    for symbol in functions.symbols:
        match = _GEMM.fullmatch(symbol)
        if match:
            name = match["name"].lower()
            gemm = Gemm(_C_FIRST if match["c"] else _FORTRAN_FIRST, bool(match["wide"]), not match["c"], "float32" if name[0] == "s" else "float64")
            found.append(Found(symbol, "blas", name, symbol, library, gemm=gemm))
    hidden = {name: place for name, place in hidden_functions(file, _ONEDNN).items() if name not in functions.symbols}
    functions.symbols.update(hidden)
    found += [Found(name, "blas", name, name, "oneDNN") for name in _ONEDNN if name in functions.symbols]
    # Of several names for one function the shortest is used.
    return sorted(found, key=lambda each: (len(each.symbol), each.symbol))


def find_cuda(file: BinaryIO, functions: Functions) -> list[Found]:
    """Launches, copies, allocations and waits of the CUDA runtime or driver."""
    module = "libcudart" if "cudaLaunchKernel" in functions.symbols else "libcuda"
    return [Found(name, "cuda", name, name, module) for name in sorted(functions.symbols) if _CUDA.fullmatch(name)]


def _which(functions: Functions) -> str:
    names = functions.symbols
    if any(name.startswith(("mkl_blas_", "mkl_serv_", "MKL_")) for name in names):
        return "MKL"
    if any("openblas_" in name for name in names):
        return "OpenBLAS"
    return "BLAS"

"""Calls native libraries in a folder that export what PyTorch's, a BLAS and the CUDA runtime do: native.py --wait FOLDER [ROUNDS]."""
import ctypes
import os
import sys

from ready import done, ready

FOLDER, ROUNDS = sys.argv[2], int(sys.argv[3])


def forward(torch, batch):
    torch.forward(batch)


def multiply(torch):
    return torch.multiply(2, 3, 3, 4)


def multiply_wrongly(torch):
    return torch.multiply(2, 3, 5, 4)


def gemm(blas):
    blas.multiply(5, 6, 7)


def launch(cuda):
    cuda.step()


if __name__ == "__main__":
    ctypes.CDLL("libstdc++.so.6", ctypes.RTLD_GLOBAL)
    torch, c10, blas, cuda = (
        ctypes.CDLL(os.path.join(FOLDER, name)) for name in ("libtorch_cpu.so", "libc10.so", "libopenblas.so.0", "libcudart.so.12")
    )
    ctypes.c_void_p.in_dll(torch, "raise_error").value = ctypes.cast(
        c10._ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE, ctypes.c_void_p
    ).value
    ready()
    errors = 0
    for batch in range(ROUNDS):
        forward(torch, batch)
        errors += multiply(torch)
        errors += multiply_wrongly(torch)
        gemm(blas)
        launch(cuda)
    done(errors=errors)

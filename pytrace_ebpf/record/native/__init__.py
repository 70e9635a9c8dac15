"""Native layers: calls of PyTorch's operators, of BLAS and of the CUDA runtime, by uprobes on the libraries that a process maps."""

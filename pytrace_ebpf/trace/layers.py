"""The layers of calls, each described once: what it is called, where its functions are, how a user asks for it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """One layer; its place in LAYERS is its number, LAYER_* of probes/events.h where that knows it.

    name       as the trace has it
    prefix     how the names of its functions begin, where they are no functions of a program's
    option     what `--layers` calls it; "" for one that is always recorded
    libraries  a native one's: regular expression of the whole file names of the libraries that its functions are in
    loaded     those libraries in words
    title      in headings
    colour     of its boxes in a page
    """

    name: str
    colour: str
    prefix: str = ""
    option: str = ""
    libraries: str = ""
    loaded: str = ""
    title: str = ""


LAYERS = (
    Layer("python", "#a5c8f2"),
    Layer("gc", "#c3c9d1", prefix="gc generation "),
    Layer("import", "#dccba6", prefix="import "),
    Layer("operator", "#86cf9d", "", "torch", r"libtorch_cpu\.so", "PyTorch (libtorch_cpu.so)", "PyTorch's operators"),
    Layer(
        "blas", "#f5b266", "", "blas", r"libtorch_cpu\.so|lib(scipy_)?(openblas|blas|cblas|mkl_rt|mkl_intel_lp64)[\w.+-]*\.so[\d.]*|libdnnl\.so[\d.]*",
        "BLAS that is known (MKL, oneDNN, OpenBLAS)", "BLAS",
    ),
    Layer("cuda", "#ef867b", "", "cuda", r"lib(cudart|cuda)[\w.-]*\.so[\d.]*", "CUDA (libcudart, libcuda)", "CUDA"),
    Layer("c", "#d9a7d9"),
    Layer("native", "#c9b3dd"),
)  # fmt: skip
NUMBERS = {layer.name: number for number, layer in enumerate(LAYERS)}
NATIVE = tuple(layer for layer in LAYERS if layer.libraries)  # recorded where `--layers` asks for them
NATIVE_NAMES = tuple(layer.name for layer in NATIVE)

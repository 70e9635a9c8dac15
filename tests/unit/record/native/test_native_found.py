"""What of a library is probed: operators by their schemas, BLAS and CUDA by their names, and where a function's code returns."""

import io
from collections.abc import Iterator
from typing import Any

import pytest

from pytrace_ebpf.record.native import code, libraries, operators
from pytrace_ebpf.record.native.mapped import layers_of
from pytrace_ebpf.record.native.probed_library import Found, Gemm, locate, throws
from pytrace_ebpf.record.native.signature import How, TensorArgument
from pytrace_ebpf.record.parsing.elf import Functions, Segment

START = 0x1000
RET, REPZ_RET, JUMP_RAX, NOP = b"\xc3", b"\xf3\xc3", b"\xff\xe0", b"\x90"
ENDBR = b"\xf3\x0f\x1e\xfa"
INWARD = b"\xeb\xfe"  # jmp to itself
OUTWARD = b"\xe9\x00\x10\x00\x00"  # jmp 4 KiB further
THROUGH_MEMORY = b"\xff\x25\x00\x10\x00\x00"  # jmp *0x1000(%rip)
CONDITIONAL = b"\x0f\x84\x00\x10\x00\x00"  # je 4 KiB further
BAD = b"\x06"


@pytest.mark.parametrize(
    ("body", "ends", "without_cold"),
    [
        (ENDBR + NOP + RET, [5], [5]),
        (REPZ_RET, [0], [0]),
        (RET + NOP + RET, [0, 2], [0, 2]),
        (INWARD + RET, [2], [2]),
        (RET + JUMP_RAX, [0, 1], [0, 1]),
        (RET + OUTWARD, [0], []),
        (CONDITIONAL + RET, [6], []),
        (RET + THROUGH_MEMORY, [0], []),
        (OUTWARD, [], []),
        (RET + BAD, [], []),
        (RET + OUTWARD[:2], [], []),
        (b"", [], []),
    ],
)
def test_where_code_returns(body: bytes, ends: list[int], without_cold: list[int]) -> None:
    assert code.returns(body, START, cold=True) == tuple(START + at for at in ends)
    assert code.returns(body, START, cold=False) == tuple(START + at for at in without_cold)


PUSH, TAKE, TEST, GIVE = (
    b"\x53",
    b"\x48\x83\xec\x10",
    b"\x85\xff",
    b"\x48\x83\xc4\x10\x5b\xc3",
)  # push %rbx; sub $16,%rsp; test; add $16,%rsp; pop; ret
FRAME, LEAVE = b"\x55\x48\x89\xe5\x53", b"\x48\x8d\x65\xf8\x5b\x5d\xc3"  # push %rbp; mov %rsp,%rbp; push %rbx; lea -8(%rbp),%rsp; pop; pop; ret
GIVE_128 = b"\x48\x83\xec\x80\x5b\xc3"  # sub $-128,%rsp


def over(size: int) -> bytes:
    """je over so many bytes, and them."""
    return b"\x74" + bytes((size,)) + b"\x90" * size


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (PUSH + TAKE + TEST + over(2) + GIVE, ((7,), 24)),
        (PUSH + TAKE + TEST + over(2) + GIVE_128, ((7,), 136)),
        (FRAME + TEST + over(2) + LEAVE, ((7,), code.BY_FRAME_POINTER)),
        (PUSH + TAKE + TEST + b"\x74\x04" + TEST + over(0) + GIVE, ((7, 11), 24)),  # two of them
        (PUSH + TAKE + TEST + GIVE, ((), 0)),  # no branch
        (PUSH + TAKE + b"\x74\x04" + TEST + over(0) + GIVE, ((5, 9), 24)),
        (PUSH + TAKE + b"\x74\x02" + over(0) + b"\x90" + GIVE, ((), 0)),  # one way comes over a branch to somewhere else
        (PUSH + TAKE + TEST + over(100) + GIVE, ((), 0)),  # too much comes after it
        (PUSH + TAKE + TEST + over(2) + GIVE + JUMP_RAX, ((), 0)),
        (PUSH + TAKE + TEST + over(2) + GIVE + RET, ((), 0)),
        (PUSH + TAKE + TEST + over(2) + GIVE + BAD, ((), 0)),
    ],
)
def test_branches_that_every_return_has_just_passed(body: bytes, expected: tuple[tuple[int, ...], int]) -> None:
    sites, stack = code.last_branches(body, START)
    assert (tuple(at - START for at in sites), stack) == expected


def test_what_exceptions_may_pass_has_a_cold_part() -> None:
    body = RET + OUTWARD
    functions = Functions((Segment(0x5000, 0, len(body), True),), dict.fromkeys(("one", "two"), (0x5000, len(body))))

    def ends(layer: str, module: str) -> list[tuple[int, ...]]:
        wanted = [Found(name, layer, name, name, module) for name in ("one", "two")]
        found = list(locate(io.BytesIO(body), "lib", functions, wanted))
        assert [throws(each) for each in found] == [bool(each.returns) for each in found]
        return [each.returns for each in found]

    assert ends("operator", "<operator>") == ends("blas", "oneDNN") == [(0,)]  # two names of one place are one function
    assert ends("blas", "MKL") == ends("cuda", "libcudart") == [()]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("Tensor", (True, 1)),
        ("Tensor(a)", (True, 1)),
        ("(Tensor)", (True, 1)),
        ("(Tensor(a))", (True, 1)),
        ("Tensor output", (True, 1)),
        ("Tensor(a!)", (False, 1)),
        ("()", (False, 0)),
        ("bool", (False, 0)),
        ("int", (False, 0)),
        ("float", (False, 0)),
        ("ScalarType", (False, 0)),
        ("Scalar", (True, 0)),
        ("SymInt", (True, 0)),
        ("Tensor[]", (True, 0)),
        ("Tensor(a)[]", (True, 0)),
        ("(Tensor[])", (True, 0)),
        ("(Tensor, Tensor)", (True, 2)),
        ("(Tensor values, Tensor indices)", (True, 2)),
        ("(Tensor(a) primal, Tensor tangent)", (True, 2)),
        ("(Tensor, Tensor, Tensor[])", (True, 0)),
        ("(Tensor, Tensor, float, int)", (True, 0)),
        ("(Tensor(a!), Tensor(b!))", (True, 0)),
        ("(Tensor(a!) values, Tensor(b!) indices)", (True, 0)),
        ("(float, int)", (True, 0)),
    ],
)
def test_what_an_operator_returns(schema: str, expected: tuple[bool, int]) -> None:
    assert operators._returned(schema) == expected


MM, ADD = "_ZN2at4_ops2mm4callERKNS_6TensorES4_", "_ZN2at4_ops11add__Tensor4callERNS_6TensorERKS2_RKN3c106ScalarE"
AND = "_ZN2at4_ops14__and___Scalar4callERKNS_6TensorERKN3c106ScalarE"
SCHEMAS = (
    b"\0mm(Tensor self, Tensor mat2) -> Tensor\0mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)"
    b"\0aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"
    b"\0__and__.Scalar(Tensor self, Scalar other) -> Tensor\0unknown(Tensor self) -> Tensor\0"
)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(operators, "section", lambda file, name: SCHEMAS)
    functions = Functions((), dict.fromkeys((MM, ADD, AND, MM.replace("4call", "10redispatch")), (0, 0)))
    return lambda *patterns: {each.qualname: each for each in operators.Operators(patterns)(io.BytesIO(), functions)}


def test_operators_by_their_schemas(found: Any) -> None:
    two = (TensorArgument(1, How.BY_REFERENCE), TensorArgument(2, How.BY_REFERENCE))
    assert found("all") == {
        "aten::__and__.Scalar": Found(AND, "operator", "aten::__and__", "aten::__and__.Scalar", "<operator>", two[:1], 1),
        "aten::add_.Tensor": Found(
            ADD,
            "operator",
            "aten::add_",
            "aten::add_.Tensor",
            "<operator>",
            (TensorArgument(0, How.BY_REFERENCE), TensorArgument(1, How.BY_REFERENCE)),
            1,
        ),
        "aten::mm": Found(MM, "operator", "aten::mm", "aten::mm", "<operator>", two, 1),
    }


def test_operators_by_pattern(found: Any) -> None:
    assert set(found("aten::m*")) == set(found("mm")) == {"aten::mm"}
    assert set(found("add", "nothing")) == set()
    assert set(found("add_", "mm")) == {"aten::add_.Tensor", "aten::mm"}
    assert set(found()) == {f"aten::{name}" for name in ("mm", "add_.Tensor", "__and__.Scalar") if name.partition(".")[0] in operators.DEFAULT}


@pytest.fixture
def blas(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(libraries, "hidden_functions", lambda file, names: {})
    yield lambda *names: libraries.find_blas(io.BytesIO(), Functions((), dict.fromkeys(names, (0, 0))))


@pytest.mark.parametrize(
    ("symbol", "library", "name", "gemm"),
    [
        ("SGEMM", "MKL", "sgemm", Gemm(2, False, True, "float32")),
        ("dgemm_", "MKL", "dgemm", Gemm(2, False, True, "float64")),
        ("cblas_sgemm", "OpenBLAS", "sgemm", Gemm(3, False, False, "float32")),
        ("cblas_dgemm64_", "OpenBLAS", "dgemm", Gemm(3, True, False, "float64")),
        ("dgemm_64_", "OpenBLAS", "dgemm", Gemm(2, True, True, "float64")),
        ("scipy_cblas_sgemm64_", "OpenBLAS", "sgemm", Gemm(3, True, False, "float32")),
        ("scipy_dgemm_", "OpenBLAS", "dgemm", Gemm(2, False, True, "float64")),
        ("sgemm_", "BLAS", "sgemm", Gemm(2, False, True, "float32")),
    ],
)
def test_products_of_every_blas(blas: Any, symbol: str, library: str, name: str, gemm: Gemm) -> None:
    marks = {"MKL": ("mkl_serv_free_buffers",), "OpenBLAS": ("scipy_openblas_get_config64_",), "BLAS": ()}
    assert blas(symbol, "sgemm_batch", "cblas_sgemm_pack", "sgemmt_", "zgemm_", *marks[library]) == [
        Found(symbol, "blas", name, symbol, library, gemm=gemm)
    ]


def test_what_onednn_executes(blas: Any) -> None:
    assert [(each.symbol, each.module) for each in blas("dnnl_primitive_execute", "dnnl_primitive_create")] == [("dnnl_primitive_execute", "oneDNN")]


def test_the_runtime_and_the_driver() -> None:
    def names(*symbols: str) -> list[tuple[str, str]]:
        return [(each.symbol, each.module) for each in libraries.find_cuda(io.BytesIO(), Functions((), dict.fromkeys(symbols, (0, 0))))]

    assert names("cudaLaunchKernel", "cudaMemcpyAsync_ptsz", "cudaGetDevice", "cudaLaunchKernelExC") == [
        ("cudaLaunchKernel", "libcudart"), ("cudaLaunchKernelExC", "libcudart"), ("cudaMemcpyAsync_ptsz", "libcudart"),
    ]  # fmt: skip
    assert names("cuLaunchKernel", "cuMemcpyHtoDAsync_v2", "cuInit") == [("cuLaunchKernel", "libcuda"), ("cuMemcpyHtoDAsync_v2", "libcuda")]


def test_libraries_by_name() -> None:
    torch, openblas, scipy = "/v/torch/lib/libtorch_cpu.so", "/v/numpy.libs/libscipy_openblas64_-fdde5778.so", "/usr/lib/libblas.so.3"
    assert layers_of({torch, openblas, scipy, "/v/torch/lib/libtorch_python.so", "/usr/lib/libc.so.6"}) == {
        "operator": [torch], "blas": sorted((torch, openblas, scipy)),
    }  # fmt: skip
    cuda = {"/usr/lib/libcuda.so.1", "/v/nvidia/lib/libcudart.so.12", "/v/torch/lib/libcudart-9335f6a2.so.12"}
    assert layers_of(cuda | {"/v/torch/lib/libtorch_cuda.so"}) == {"cuda": sorted(cuda)}
    assert layers_of(set()) == {}

"""FLOPs and bytes of operators from shapes: figures worked out by hand, and none where they cannot be known."""

import pytest

from pytrace_ebpf.derive.native.flops import bytes_moved, cost, flops, product

F = "float32"
N, C, L, K, D, G = 4, 6, 10, 3, 8, 2  # batch, channels, length, kernel, channels out, groups


@pytest.mark.parametrize(
    ("name", "given", "returned", "expected"),
    [
        ("mm", [(2, 3), (3, 5)], [(2, 5)], 2 * 2 * 3 * 5),
        ("mm", [(2, 3), (3, 5), (2, 5)], None, 2 * 2 * 3 * 5),  # mm.out; what it returns is not needed
        ("addmm", [(5,), (2, 3), (3, 5)], [(2, 5)], 2 * 2 * 3 * 5),
        ("addmm_", [(2, 5), (2, 3), (3, 5)], [(2, 5)], 2 * 2 * 3 * 5),
        ("bmm", [(7, 2, 3), (7, 3, 5)], None, 7 * 2 * 2 * 3 * 5),
        ("baddbmm", [(5,), (7, 2, 3), (7, 3, 5)], None, 7 * 2 * 2 * 3 * 5),
        ("addbmm", [(2, 5), (7, 2, 3), (7, 3, 5)], None, 7 * 2 * 2 * 3 * 5),
        ("matmul", [(3,), (3,)], [()], 2 * 3),
        ("matmul", [(2, 3), (3,)], [(2,)], 2 * 2 * 3),
        ("matmul", [(3,), (7, 3, 5)], [(7, 5)], 7 * 2 * 3 * 5),
        ("matmul", [(7, 1, 2, 3), (4, 3, 5)], None, 7 * 4 * 2 * 2 * 3 * 5),
        ("linear", [(64, 128), (103, 128), (103,)], None, 2 * 64 * 128 * 103),
        ("linear", [(7, 64, 128), (103, 128), None], None, 2 * 7 * 64 * 128 * 103),
        ("linear", [(128,), (103, 128)], None, 2 * 128 * 103),
        ("conv1d", [(64, 300, 124), (128, 300, 2), (128,)], [(64, 128, 123)], 2 * 64 * 123 * 128 * 300 * 2),
        ("conv1d", [(C, L), (D, C, K), None], [(D, L)], 2 * L * D * C * K),
        ("_convolution", [(N, C, L), (D, C, K), None], [(N, D, L - 2)], 2 * N * (L - 2) * D * C * K),
        ("convolution", [(N, C, L), (D, C // G, K), None], [(N, D, L)], 2 * N * L * D * C // G * K),
        ("convolution", [(N, C, L, L), (C, 1, K, K), None], [(N, C, L, L)], 2 * N * L * L * C * K * K),
        # Transposed: each element that is given meets each weight.
        ("convolution", [(N, C, L), (C, D, K), None], [(N, D, L + 2)], 2 * N * L * D * C * K),
        ("convolution", [(N, C, L), (C, C, K), None], [(N, C, L + 2)], 2 * N * L * C * C * K),
        ("convolution", [(N, C, L), (C, C, K), None], [(N, C, L - 2)], 2 * N * (L - 2) * C * C * K),
        ("conv_transpose1d", [(N, C, L), (C, D, K), None], [(N, D, 2 * L)], 2 * N * L * D * C * K),
        ("convolution_backward", [(N, D, L), (N, C, L), (D, C, K)], [(N, C, L), (D, C, K), (D,)], 2 * 2 * N * L * D * C * K),
        ("convolution_backward", [(N, D, L), (N, C, L), (D, C, K)], [None, (D, C, K), (D,)], 2 * N * L * D * C * K),
        ("convolution_backward", [(N, C, L), (N, C, L), (C, 1, K)], [None, (C, 1, K), None], 2 * N * L * C * K),
        ("convolution_backward", [(N, D, L), (N, C, L), (D, C, K)], None, None),
        ("scaled_dot_product_attention", [(2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 3)], None, 2 * 8 * 5 * 6 * (8 + 3)),
        ("mkldnn_rnn_layer", [(7, 4, 16), (48, 16), (48, 12), (48,), (48,)], None, 2 * 7 * 4 * 48 * (16 + 12)),
        ("relu", [(4, 5)], [(4, 5)], 20),
        ("relu_", [(4, 5)], [(4, 5)], 20),
        ("add", [(4, 1), (1, 5)], [(4, 5)], 20),
        ("sum", [(4, 5)], [()], 20),
        ("log_softmax", [(4, 5)], None, 100),
        ("embedding", [(1000, 30), (4, 5)], [(4, 5, 30)], 0),
        ("embedding_dense_backward", [(4, 5, 30), (4, 5)], [(1000, 30)], 4 * 5 * 30),
        ("transpose", [(4, 5)], [(5, 4)], 0),
        ("copy_", [(4, 5), (4, 5)], [(4, 5)], 0),
        ("__lshift__", [(4, 5)], [(4, 5)], None),
        ("lstm", [(7, 4, 16), (1, 4, 12)], None, None),
        ("mm", [(2, 3)], None, None),
        ("mm", [None, (3, 5)], None, None),
        ("relu", [], None, None),
        ("conv1d", [(N, C, L), (D, C, K), None], None, None),  # stride and padding are not in the shapes
    ],
)  # fmt: skip
def test_flops(name: str, given: list[tuple[int, ...] | None], returned: list[tuple[int, ...] | None] | None, expected: int | None) -> None:
    assert flops(f"aten::{name}", given, [F] * len(given), returned) == expected


def test_whole_numbers_are_no_floating_point() -> None:
    assert flops("aten::add_", [(), ()], ["int64", None], [()]) == 1
    assert flops("aten::add_", [(), ()], ["int64", "int64"], [()]) == 0
    assert flops("aten::add_", [(), ()], [], [()]) == 1  # types not read: taken for floating-point


def test_bytes_are_what_goes_in_and_out() -> None:
    assert bytes_moved("aten::mm", [(2, 3), (3, 5)], [F, F], [(2, 5)], [F]) == 4 * (6 + 15 + 10)
    assert bytes_moved("aten::gt", [(4, 5)], ["float64"], [(4, 5)], ["bool"]) == 20 * 9
    assert bytes_moved("aten::linear", [(2, 3), (5, 3), None], [F, F, None], [(2, 5)], [F]) == 4 * (6 + 15 + 10)
    assert bytes_moved("aten::view", [(4, 5)], [F], [(20,)], [F]) == 0
    # Of a table of a million rows only those that are taken count.
    assert bytes_moved("aten::embedding", [(10**6, 30), (4, 5)], [F, "int64"], [(4, 5, 30)], [F]) == 2 * 4 * 600 + 8 * 20


def test_bytes_are_not_known_where_a_tensor_is_not() -> None:
    assert bytes_moved("aten::mm", [(2, 3), (3, 5)], [F, F], None, []) is None
    assert bytes_moved("aten::mm", [(2, 3), (3, 5)], [F, "float8_strange"], [(2, 5)], [F]) is None
    assert bytes_moved("aten::mm", [(2, 3), (3, 5)], [], [(2, 5)], [F]) is None


def test_a_blas_is_given_two_matrices() -> None:
    assert cost("blas", "sgemm", [(2, 3), (3, 5)], [F, F], None, []) == (60, 4 * (6 + 15 + 10))
    assert cost("blas", "dnnl_primitive_execute", [], [], None, []) == (None, None)
    assert cost("cuda", "cudaLaunchKernel", [], [], None, []) == (None, None)
    assert product([(2, 3), (3, 5)]) == (2, 5, 3)
    assert product([(2, 3), None]) is None

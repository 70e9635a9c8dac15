"""Floating-point operations and bytes of one native call, from the sizes and element types of its tensors.

Products of matrices and convolutions are exact; a multiply-add counts as two operations. The figures equal those of
torch.utils.flop_counter with one exception: for a convolution in G groups it counts the gradient of the weights G times.
Everything in _PER_ELEMENT is an estimate, so many operations for each element of the largest tensor; an exponential counts
as one operation, as an addition does. What only moves data, or views it in another way, takes none.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from math import prod
from typing import Any

Shape = tuple[int, ...]
Shapes = Sequence[Shape | None]
Dtypes = Sequence[str | None]
_Formula = Callable[[Sequence[Any], Any], int | None]

_SIZES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "complex64": 8, "complex128": 16,
}  # fmt: skip


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# These return another view of the same memory.
_VIEWS = _names("""alias as_strided chunk contiguous detach diagonal expand expand_as flatten lift_fresh movedim mT numpy_T narrow permute
real reshape resolve_conj resolve_neg select slice split split_with_sizes squeeze swapaxes t tensor_split transpose unbind unflatten
unfold unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze view view_as _reshape_alias _unsafe_view item _local_scalar_dense
resize cudnn_is_acceptable empty empty_like empty_strided new_empty new_empty_strided set is_nonzero""")
_MOVES = _names("""arange bernoulli cat clone concat constant_pad_nd copy fill flip full full_like gather index index_put
index_select masked_fill masked_select nonzero normal ones ones_like pad random randint randn rand randperm repeat roll scatter
select_backward slice_backward sort stack topk to _to_copy to_mkldnn upsample_nearest2d tril triu uniform where zero zeros zeros_like embedding eq ne lt le gt ge
logical_and logical_or logical_not one_hot new_zeros new_ones new_full""")
_PER_ELEMENT = {
    1: """abs adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d add all any amax amin argmax argmin
        avg_pool1d avg_pool2d avg_pool2d_backward ceil clamp clamp_max clamp_min cos cumsum div exp floor hardtanh
        hardtanh_backward leaky_relu leaky_relu_backward log max max_pool1d max_pool2d max_pool1d_with_indices
        max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d maximum mean min minimum mul neg
        nll_loss nll_loss_backward nll_loss_forward nll_loss_nd pow reciprocal relu relu6 round rsqrt sign sin sqrt sub sum
        threshold_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward adaptive_avg_pool2d_backward
        adaptive_max_pool2d_backward index_add scatter_add
        max_pool3d_with_indices rsub square prod outer ger nll_loss2d_forward nll_loss2d_backward""",
    2: "addcdiv addcmul dropout native_dropout native_dropout_backward mse_loss l1_loss linalg_vector_norm norm std var lerp elu",
    3: """sigmoid sigmoid_backward tanh_backward tanh hardswish hardsigmoid silu mse_loss_backward log_sigmoid_backward
        log_sigmoid_forward log_sigmoid softplus hardswish_backward
        smooth_l1_loss kl_div""",
    5: """softmax log_softmax _softmax _safe_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data cross_entropy_loss gelu
        binary_cross_entropy binary_cross_entropy_with_logits binary_cross_entropy_backward silu_backward""",
    8: """batch_norm native_batch_norm _batch_norm_impl_index _native_batch_norm_legit layer_norm native_layer_norm group_norm
        native_group_norm instance_norm gelu_backward""",
    11: """native_batch_norm_backward _batch_norm_impl_index_backward native_layer_norm_backward native_group_norm_backward
        batch_norm_backward""",
}  # fmt: skip
_ESTIMATED = {name: operations for operations, names in _PER_ELEMENT.items() for name in names.split()}
_GATHERS = frozenset(("embedding", "index_select"))


def cost(layer: str, name: str, given: Shapes, dtypes: Dtypes, returned: Shapes | None, returned_dtypes: Dtypes) -> tuple[int | None, int | None]:
    """(flops, bytes) of a call of `layer`. In layers blas and cuda both are None unless the call was given the two matrices of a product."""
    if layer != "operator":
        sizes = product(given)
        if sizes is None:
            return None, None
        name, returned, returned_dtypes = "mm", [sizes[:2]], dtypes[:1]
    return flops(name, given, dtypes, returned), bytes_moved(name, given, dtypes, returned, returned_dtypes)


def flops(name: str, given: Shapes, dtypes: Dtypes, returned: Shapes | None) -> int | None:
    """Floating-point operations of a call; None where the operator is not known or its shapes do not suffice.

    `name` is as in schema.OPERATORS. `given` and `dtypes` describe the tensors passed in, in the order of the signature;
    `returned` the tensors returned, None where they were not read. An undefined tensor is None.
    """
    name = _plain(name)
    if name in _VIEWS or name in _MOVES:
        return 0
    try:
        if name in _FORMULAS:
            return _FORMULAS[name](given, returned)
        if name in _ESTIMATED:
            if dtypes and not any(d is None or d.startswith(("float", "bfloat", "complex")) for d in dtypes):
                return 0
            return _ESTIMATED[name] * max(prod(s) for s in [*given, *(returned or ())] if s is not None)
    except (IndexError, TypeError, ValueError):  # not the tensors that the formula is for
        pass
    return None


def bytes_moved(name: str, given: Shapes, dtypes: Dtypes, returned: Shapes | None, returned_dtypes: Dtypes) -> int | None:
    """Bytes of the tensors of a call, each read or written once; None where a size or type is not known.

    A view moves none. Where rows are taken from a table, only these rows count. The arguments are those of flops().
    """
    name = _plain(name)
    if name in _VIEWS:
        return 0
    if returned is None:
        return None
    if name in _GATHERS and returned and len(given) > 1:
        given, dtypes = [returned[0], *given[1:]], [returned_dtypes[0], *dtypes[1:]]
    sizes = [
        prod(shape) * _SIZES.get(dtype or "", -1)
        for shape, dtype in zip_longest([*given, *returned], [*dtypes, *returned_dtypes])
        if shape is not None
    ]
    return None if any(size < 0 for size in sizes) else sum(sizes)


def product(given: Shapes) -> tuple[int, int, int] | None:
    """(m, n, k) where `given` is what a BLAS takes for a product, two matrices [m, k] and [k, n]; else None."""
    shapes = [shape for shape in given if shape is not None and len(shape) == 2]
    if len(shapes) != 2 or len(given) != 2:
        return None
    (m, k), (_, n) = shapes
    return m, n, k


def _plain(name: str) -> str:
    """The name without its namespace and without the underscore of an operator that works in place."""
    name = name.rpartition("::")[2]
    return name if name.startswith("__") else name.rstrip("_")


def _broadcast(a: Shape, b: Shape) -> Shape:
    return tuple(max(p) if 0 not in p else 0 for p in zip_longest(reversed(a), reversed(b), fillvalue=1))


def _matmul(a: Shape, b: Shape) -> int:
    a, b = ((1, *a) if len(a) == 1 else a), ((*b, 1) if len(b) == 1 else b)
    return 2 * prod(_broadcast(a[:-2], b[:-2])) * a[-2] * a[-1] * b[-1]


def _product_at(place: int) -> _Formula:
    """The product of the tensor at `place` and the next one."""
    return lambda given, _: _matmul(given[place], given[place + 1])


def _linear(given: Sequence[Any], _: Any) -> int:
    x, weight = given[0], given[1]
    return 2 * prod(x) * prod(weight[:-1])


def _attention(given: Sequence[Any], _: Any) -> int:
    """The scores and the weighted sum of the values. A causal mask is taken to save nothing."""
    query, key, value = given[:3]
    return 2 * prod(query) * key[-2] + 2 * prod(query[:-1]) * key[-2] * value[-1]


def _lstm_layer(given: Sequence[Any], _: Any) -> int:
    """mkldnn_rnn_layer: the products with both weights at every step."""
    x, of_input, of_state = given[:3]
    return 2 * prod(x[:-1]) * (prod(of_input) + prod(of_state))


def _lstm_layer_backward(given: Sequence[Any], _: Any) -> int:
    return 2 * _lstm_layer(given, None)


def _convolved(x: Shape, weight: Shape, out: Shape, transposed: bool | None) -> int:
    """One multiply-add for each weight at each position of the result, or of the input where it is transposed."""
    if len(x) < len(weight):  # no batch
        x, out = (1, *x), (1, *out)
    if transposed is None:
        # With equal numbers of channels only the sizes tell the two apart; where these are equal too, so is the result.
        transposed = x[1] == weight[0] and (out[1] != weight[0] or prod(out[2:]) > prod(x[2:]))
    return 2 * prod(weight) * x[0] * prod((x if transposed else out)[2:])


def _convolution(transposed: bool | None) -> _Formula:
    """`transposed` is None for an operator that does both."""
    return lambda given, returned: _convolved(given[0], given[1], returned[0], transposed) if returned else None


def _convolution_backward(given: Sequence[Any], returned: Any) -> int | None:
    """The gradients of the input and of the weights, where asked for, take as much as the forward pass each."""
    grad, x, weight = given[:3]
    if not returned:
        return None
    return sum(s is not None for s in returned[:2]) * _convolved(x, weight, grad, None)


_FORMULAS: dict[str, _Formula] = {
    **dict.fromkeys(("mm", "bmm", "matmul", "mv", "dot", "vdot"), _product_at(0)),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "_addmm_activation"), _product_at(1)),
    **dict.fromkeys(("linear", "mkldnn_linear"), _linear),
    # Each row of the gradient is added to one row of the table's gradient.
    **dict.fromkeys(("embedding_dense_backward", "embedding_backward"), lambda given, _: prod(given[0])),
    "addbmm": lambda given, _: _matmul(given[1], given[2]),
    "mkldnn_rnn_layer": _lstm_layer,
    "mkldnn_rnn_layer_backward": _lstm_layer_backward,
    **dict.fromkeys(("scaled_dot_product_attention", "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
                     "_scaled_dot_product_efficient_attention", "_scaled_dot_product_attention_math"), _attention),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "mkldnn_convolution", "thnn_conv2d", "_slow_conv2d_forward", "slow_conv3d",
                     "_nnpack_spatial_convolution", "_conv_depthwise2d", "slow_conv_dilated2d"), _convolution(False)),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "slow_conv_transpose2d"), _convolution(True)),
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable", "cudnn_convolution"), _convolution(None)),
    **dict.fromkeys(("convolution_backward", "convolution_backward_overrideable"), _convolution_backward),
}  # fmt: skip

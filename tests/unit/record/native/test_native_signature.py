"""Where the tensors of an operator are at its first instruction, by its mangled name: registers and stack of the System V ABI."""

import pytest

from pytrace_ebpf.record.native.signature import MOST, How, tensor_arguments

REFERENCE, OPTIONAL, LIST, LIST_REFERENCE, OPTIONALS = How

# As libtorch_cpu of PyTorch 2.13 exports them. 0-5 are registers, 6 is the first word on the stack.
SIGNATURES = {
    "conv1d": (
        "_ZN2at4_ops6conv1d4callERKNS_6TensorES4_RKSt8optionalIS2_EN3c108ArrayRefINS9_6SymIntEEESC_SC_SB_",
        True, [(1, REFERENCE), (2, REFERENCE), (3, OPTIONAL)],
    ),
    "cat, of an IListRef": ("_ZN2at4_ops3cat4callERKN3c108IListRefINS_6TensorEEEl", True, [(1, LIST_REFERENCE)]),
    "addmm": (
        "_ZN2at4_ops5addmm4callERKNS_6TensorES4_S4_RKN3c106ScalarES8_", True, [(1, REFERENCE), (2, REFERENCE), (3, REFERENCE)],
    ),
    "lstm.input: the second list in the last two registers": (
        "_ZN2at4_ops10lstm_input4callERKNS_6TensorEN3c108ArrayRefIS2_EES7_bldbbb", True, [(1, REFERENCE), (2, LIST), (4, LIST)],
    ),
    "index_put_: returns a reference": (
        "_ZN2at4_ops10index_put_4callERNS_6TensorERKN3c104ListISt8optionalIS2_EEERKS2_b",
        False, [(0, REFERENCE), (1, OPTIONALS), (2, REFERENCE)],
    ),
    "native_batch_norm: all registers": (
        "_ZN2at4_ops17native_batch_norm4callERKNS_6TensorERKSt8optionalIS2_ES8_S8_S8_bdd",
        True, [(1, REFERENCE), (2, OPTIONAL), (3, OPTIONAL), (4, OPTIONAL), (5, OPTIONAL)],
    ),
    "embedding_bag: the weights behind a bool on the stack": (
        "_ZN2at4_ops13embedding_bag4callERKNS_6TensorES4_S4_blbRKSt8optionalIS2_Eb",
        True, [(1, REFERENCE), (2, REFERENCE), (3, REFERENCE), (7, OPTIONAL)],
    ),
    "div.out_mode: an optional text takes no register": (
        "_ZN2at4_ops12div_out_mode4callERKNS_6TensorES4_St8optionalISt17basic_string_viewIcSt11char_traitsIcEEERS2_",
        False, [(0, REFERENCE), (1, REFERENCE), (2, REFERENCE)],
    ),
    "gelu.out: a text takes two": (
        "_ZN2at4_ops8gelu_out4callERKNS_6TensorESt17basic_string_viewIcSt11char_traitsIcEERS2_", False, [(0, REFERENCE), (3, REFERENCE)],
    ),
    "histogramdd: an optional list of numbers takes none": (
        "_ZN2at4_ops11histogramdd4callERKNS_6TensorEN3c108ArrayRefIlEESt8optionalINS6_IdEEERKS8_IS2_Eb",
        True, [(1, REFERENCE), (4, OPTIONAL)],
    ),
    "normal.Tensor_float_out: a double takes none": (
        "_ZN2at4_ops23normal_Tensor_float_out4callERKNS_6TensorEdSt8optionalINS_9GeneratorEERS2_",
        False, [(0, REFERENCE), (2, REFERENCE)],
    ),
    "nan_to_num.out: an optional double takes one": (
        "_ZN2at4_ops14nan_to_num_out4callERKNS_6TensorESt8optionalIdES6_S6_RS2_", False, [(0, REFERENCE), (4, REFERENCE)],
    ),
    "var_mean.correction_out: an OptionalArrayRef takes none": (
        "_ZN2at4_ops23var_mean_correction_out4callERKNS_6TensorEN3c1016OptionalArrayRefIlEERKSt8optionalINS5_6ScalarEEbRS2_SD_",
        True, [(1, REFERENCE), (4, REFERENCE), (5, REFERENCE)],
    ),
    "linalg_lstsq.out: tensors behind a text on the stack": (
        "_ZN2at4_ops16linalg_lstsq_out4callERKNS_6TensorES4_St8optionalIdES5_ISt17basic_string_viewIcSt11char_traitsIcEEERS2_SC_SC_SC_",
        True, [(1, REFERENCE), (2, REFERENCE), (4, REFERENCE), (5, REFERENCE), (9, REFERENCE), (10, REFERENCE)],
    ),
    "_flash_attention_forward: an optional double takes two words of the stack": (
        "_ZN2at4_ops24_flash_attention_forward4callERKNS_6TensorES4_S4_RKSt8optionalIS2_ES8_N3c106SymIntESA_dbbS5_IdES5_ISA_ESC_S8_S8_S8_S5_IlE",
        True,
        [(1, REFERENCE), (2, REFERENCE), (3, REFERENCE), (4, OPTIONAL), (5, OPTIONAL), (14, OPTIONAL), (15, OPTIONAL), (16, OPTIONAL)],
    ),
    "_fused_adam: what does not fit goes to the stack whole, what comes later may fit": (
        "_ZN2at4_ops11_fused_adam4callEN3c108ArrayRefINS_6TensorEEES5_S5_S5_S5_S5_dddddbbRKSt8optionalIS4_ES9_",
        True, [(1, LIST), (3, LIST), (6, LIST), (8, LIST), (10, LIST), (12, LIST), (15, OPTIONAL), (16, OPTIONAL)],
    ),
    "no tensors": ("_ZN2at4_ops5zeros4callEN3c108ArrayRefINS2_6SymIntEEESt8optionalINS2_10ScalarTypeEE", True, []),
    "no operator": ("main", True, []),
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNATURES)
def test_where_the_tensors_are(name: str) -> None:
    symbol, in_memory, expected = SIGNATURES[name]
    assert [(tensor.register, tensor.how) for tensor in tensor_arguments(symbol, in_memory)] == expected


def test_no_more_than_are_read() -> None:
    many = "_ZN2at4_ops1f4callERKNS_6TensorE" + "S4_" * 11
    assert [tensor.register for tensor in tensor_arguments(many, True)] == list(range(1, 1 + MOST))

"""Where functions are probed: as near to their first instruction as the kernel follows by itself."""

import io

import pytest

from pytrace_ebpf.record.parsing.beginnings import beginnings, followed


@pytest.mark.parametrize(
    ("code", "place"),
    [
        ("4154 c3", 0),  # push r12
        ("4885ff 7401 90 c3", 3),  # test; je: free's
        ("f30f1efa 4885ff 0f8400000000 c3", 7),  # endbr64; test; je
        ("803d0100000000 4154 c3", 7),  # cmp byte ptr [rip + 1], 0; push: posix_memalign's
        ("4889fb 53 c3", 0),  # mov comes first
        ("ff37 c3", 0),  # push of what lies in memory is stepped over
        ("4885ff 7401 90 ebfa c3", 0),  # something jumps to the branch
        ("4885ff 7401 90 ebf7 c3", 3),  # and to the beginning, which is a call like any other
        ("4885ff", 0),
        ("", 0),
    ],
)
def test_a_probe_stands_where_the_kernel_need_not_step(code: str, place: int) -> None:
    assert followed(bytes.fromhex(code.replace(" ", ""))) == place


def test_what_is_no_library_is_refused() -> None:
    with pytest.raises(ValueError, match="ELF"):
        beginnings(io.BytesIO(b"text"), ["malloc"])

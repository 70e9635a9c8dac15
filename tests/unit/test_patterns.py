"""What patterns mean, what somebody meant by one that fits nothing, and which file a command line's main program is of."""

import pytest

from pytrace_ebpf.patterns import Main, Mains, fits_file, fits_function, fits_package, fitting, nearest

ORDERS = ("/srv/app/shop/orders.py", "orders")
DECODER = ("/usr/lib/python3.11/json/decoder.py", "json.decoder")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("work", True), ("Job.work", True), ("Job.*", True), ("orders.Job.work", True), ("shop.orders.Job.work", True), ("app.shop.orders.Job.work", True),
        ("orders", True), ("shop.orders", True), ("app.shop", True), ("orders.py", True), ("ord*.py", True), ("shop/orders.py", True), ("./shop/orders.py", True),
        ("/srv/app/shop/orders.py", True), ("*/shop/*", True), ("__main__", True), ("__main__.Job.work", True), ("__main__.*", True), ("*", True),
        ("wor", False), ("Job", False), ("shop", False), ("srv", False), ("job.work", False), ("other.Job.work", False), ("p/orders.py", False), ("/shop/orders.py", False),
        ("__main__.work", False), ("orders.work", False), ("hop.orders", False),
    ],
)  # fmt: skip
def test_what_a_pattern_of_functions_means(pattern: str, expected: bool) -> None:
    assert fits_function(pattern, *ORDERS, "Job.work", True) == expected
    if "__main__" in pattern:
        assert not fits_function(pattern, *ORDERS, "Job.work", False)


def test_a_package_of_the_programs_own_is_a_folder_and_one_of_a_library_is_not() -> None:
    assert fits_package("shop", *ORDERS, False) and not fits_file("shop", *ORDERS, False)
    assert not fits_package("srv", *ORDERS, False) and not fits_package("app", *ORDERS, False)
    assert fits_package("json", *DECODER, False) and fits_package("json.decoder", *DECODER, False) and fits_package("decoder.py", *DECODER, False)
    assert not fits_package("lib", *DECODER, False) and not fits_package("decoder", *DECODER, False)


def test_of_a_plain_name_the_class_is_left_open() -> None:
    for pattern, expected in (("Job.work", True), ("orders.Job.work", True), ("other.Job.work", False), ("work", True), ("Job.rest", False)):
        assert fits_function(pattern, *ORDERS, "work", False, True) == expected


@pytest.mark.parametrize(
    ("command", "main", "other"),
    [
        ("python3 app.py --port 1", "/srv/app.py", "/srv/myapp.py"), ("python3 ./app.py", "./app.py", "app"),
        ("/usr/bin/python3 -X dev -W ignore -uB /srv/app.py", "/srv/app.py", "/x/srv/app.py"),
        ("python3 -m shop.orders x", "/srv/shop/orders.py", "/srv/orders.py"), ("python3 -um shop", "/srv/shop/__main__.py", "/srv/shop/a.py"),
        ("python3 -Ic 'print(1)' app.py", "<string>", "app.py"),
        ("python3 -", "<stdin>", "<string>"), ("python3 -i", "<python-input-3>", "<string>"), ("python3 folder", "/srv/folder/__main__.py", "/srv/folder/a.py"),
        ("/usr/bin/python3 /usr/bin/gunicorn app:main", "/usr/bin/gunicorn", "app"), ("python3 --check-hash-based-pycs never app.py", "/srv/app.py", "never"),
    ],
)  # fmt: skip
def test_the_main_program_of_a_command_line(command: str, main: str, other: str) -> None:
    assert Main.of(command).has(main) and not Main.of(command).has(other)
    assert Mains(["python3 other.py", command]).have(main)


def test_words_that_are_none() -> None:
    assert not Mains(["'", ""]).have("app.py") and not Main.of("").has("")


def test_the_nearest_names_come_first() -> None:
    known = [(*ORDERS, "Job.work"), (*ORDERS, "Job.rest"), (*DECODER, "JSONDecoder.decode")]
    assert nearest("wrok", known)[0] == "work" and nearest("job.work", known)[0] == "Job.work" and nearest("decode", known)[0] == "decode"
    assert nearest("Other.wrk", known) and nearest("Job.wrk", known)[0] == "Job.work" and nearest("zzzzzz", known) == [] and nearest("*", []) == []


def test_the_sentence() -> None:
    assert fitting("--args", "work", 1, 9, []) == "--args work fits 1 function so far"
    assert fitting("--args", "wrok", 0, 1234, ["work"]) == "--args wrok fits none of the 1,234 functions known so far; the nearest names: work"
    assert fitting("--args", "wrok", 0, 3, []) == "--args wrok fits none of the 3 functions known so far"

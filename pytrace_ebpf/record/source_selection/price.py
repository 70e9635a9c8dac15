"""The expected cost of a call and its return with either source: medians of docs/cost.md, used to choose a source.

The actual cost is measured beside each recording (calibrate.py), and holds from then on (prices.py).
"""

from pytrace_ebpf.record.parsing.elf import Version

_USDT_NS = {8: 2450, 9: 2450, 10: 2450, 11: 3000, 15: 2660}  # scripts/bench/record.py
_AGENT_NS = {8: 310, 9: 310, 10: 310, 11: 310, 12: 160, 13: 100, 14: 80, 15: 80}  # scripts/bench/agent.py
_TABLES = {"usdt": _USDT_NS, "agent": _AGENT_NS}
_PASSED_NS = 40  # an event that a profile function looks at and does not write
_PASSED = 0.15  # the same, of what a call costs: 15 of 100 ns on one machine, 40 of 310 on another
_SLOWER_ON_3_11 = 20  # Python code in all; of it 5 to 8 are the raised `line` semaphore: scripts/bench/service.py
_SHORTEST_CALL_NS = 60  # fib on 3.11 and 3.15


def expected_ns(source: str, version: Version | None) -> float | None:
    """Nanoseconds per call on that CPython, None where it was not measured."""
    return _TABLES[source].get(version[1]) if source in _TABLES and version and version[0] == 3 else None


def passed_ns(ns_per_call: float | None) -> float:
    """Nanoseconds that an event costs which the agent's profile function looks at and does not write, where a call costs so much; None: not known."""
    return _PASSED * ns_per_call if ns_per_call else _PASSED_NS


def usdt_share(cpu_share: float, version: Version | None, ns_per_call: float | None) -> float:
    """Seconds that the probes may add to a second in which a program computes for `cpu_share` seconds.

    On 3.11, where every opcode is slower, about what they do add to Python code; else the most that they can.
    """
    if version and version[:2] == (3, 11):
        return cpu_share * (_SLOWER_ON_3_11 - 1)
    return cpu_share * (ns_per_call or 0) / _SHORTEST_CALL_NS


def slowdown(version: Version | None) -> float:
    """Slowdown by the probes in addition to the cost per call: on 3.11 every opcode is slower."""
    return _SLOWER_ON_3_11 if version and version[:2] == (3, 11) else 1.0

"""Which functions to leave out, so that tracing stays within its budget: the hottest first, brought back when there is room.

Where that is not enough, because a function that is left out still costs something (before 3.12, and by probes) or because
too many are hot, everything is left out except during short intervals of exact recording.

Nothing here measures or acts: `decide` takes what a span of time cost and returns what to leave out from now on.
"""

from dataclasses import dataclass

import numpy as np

MOST_OUT = 512  # functions at a time: as many as an agent takes, MOST_LEFT_OUT of probes/agent/agent.h
_LEAST = 0.002  # of the budget: a function whose calls cost less is never left out
_LEAST_RATE = 500.0  # calls in a second of the program's CPU time: a function with fewer is not hot
_LEAST_CALLS = 20.0  # in a span: with fewer no rate can be estimated
_LEAST_A_SECOND = 200.0  # calls: fewer cost next to nothing, even where they are many for the little CPU time of a program that waits
_MOST_READING_NS = 150.0  # of the tracer's own CPU time that grows with the calls: scripts/bench/collector.py; the rest is constant
_AIM = 0.75  # of the budget: leaves room for costs that are not measured, such as cache misses, which on busy cores double what a call costs
_FOR_CALLS = 0.2  # of the budget: always left to calls, however much CPU time the idle tracer takes
_AT_REST = 0.3  # of the budget: an idle tracer that takes more polls less often
_SLOWEST_S, _FIRST_LOOK_S = 0.5, 1.0
_CALM = 0.6  # of the budget: below it functions are brought back
_PAYBACK_S = 5.0  # within which what was overspent is paid back
_MOST_SAVED_S, _MOST_OWED_S = 1.0, 4.0  # of the program's CPU time: how much unspent budget, or debt, is carried over
_INTERVAL_S = 1.0  # debt after an interval of exact recording, paid back before the next one begins
_HELPLESS_S = 0.25  # how long leaving out single functions may be insufficient before intervals are used
_CALM_S = 1.0  # CPU time of the program: an interval that would last longer is continuous recording
_FIRST_ABSENCE_S, _LONGEST_ABSENCE_S = 5.0, 160.0
_HASTY_S = 20.0  # a function that is left out again so soon after coming back stays out twice as long


EVERYTHING = -1  # takes the place of a func_id


@dataclass(frozen=True)
class Span:
    """What happened since the last decision."""

    now_s: float
    seconds: float
    program_ns: float  # CPU time of the program, less the cost of tracing in it
    tracer_ns: float  # CPU time of the tracer itself
    calls: np.ndarray  # by func_id
    ns_per_call: float  # of the program's CPU time
    passed_ns: float = 0.0  # likewise: for events that were seen and not written, and for costs that no event causes
    by_function: bool = True  # whether it helps to leave out single functions
    ns_per_left_call: float = 0.0  # what a call costs the program all the same that is left out so

    @property
    def spent_ns(self) -> float:
        """What tracing cost."""
        return float(self.calls.sum()) * self.ns_per_call + self.passed_ns + self.tracer_ns

    @property
    def ns_per_whole_call(self) -> float:
        """What a call cost the program and the tracer that reads it."""
        return self.ns_per_call + min(_MOST_READING_NS, self.tracer_ns / max(1.0, float(self.calls.sum())))

    @property
    def saved_ns_per_call(self) -> float:
        """What leaving out a call saves of that."""
        return max(0.0, self.ns_per_whole_call - self.ns_per_left_call) if self.by_function else 0.0


@dataclass
class _Absence:
    rate: float  # calls in a second of the program's CPU time
    until_s: float  # it stays out at least
    length_s: float
    back_s: float | None = None  # when it came back; None while it is out


class Budget:
    """The functions that are left out, as decided from span to span."""

    def __init__(self, share: float) -> None:
        """`share`: of the program's CPU time that tracing may cost."""
        self._share = share
        self._credit_ns = 0.0  # budget that is left; below 0: debt
        self._absences: dict[int, _Absence] = {}
        self._paused = self._by_intervals = False
        self._interval_ns = 0.0
        self._helpless_s: float | None = None  # since when leaving out single functions has been insufficient

    @property
    def out(self) -> frozenset[int]:
        """The func_ids that are to be left out; EVERYTHING among them where no call at all is wanted."""
        if self._paused:
            return frozenset((EVERYTHING,))
        return frozenset(func_id for func_id, absence in self._absences.items() if absence.back_s is None)

    def decide(self, span: Span) -> frozenset[int]:
        """The func_ids that are to be left out from now on, as `out`."""
        if span.program_ns <= 0:
            return self.out
        a_second_ns = self._share * 1e9
        aim = _AIM if self._by_intervals else 1.0  # of single functions _by_function() sees to it
        self._credit_ns += aim * self._share * span.program_ns - span.spent_ns
        self._credit_ns = max(-_MOST_OWED_S * a_second_ns, min(_MOST_SAVED_S * a_second_ns, self._credit_ns))
        if self._paused:
            self._paused = self._credit_ns < 0
            self._interval_ns = 0.0
        elif self._by_intervals:
            self._interval_ns += span.program_ns
            self._paused = self._credit_ns < -_INTERVAL_S * a_second_ns
            self._by_intervals = self._paused or self._interval_ns < _CALM_S * 1e9
        else:
            self._by_function(span)
        return self.out

    def _by_function(self, span: Span) -> None:
        whole_ns, debt_ns = self._share * span.program_ns, max(0.0, -self._credit_ns)
        # Leaving out everything does not count as a success of single functions.
        may_ns = _AIM * whole_ns - min(debt_ns * span.seconds / _PAYBACK_S, _AIM * whole_ns / 2)
        calls_ns = float(span.calls.sum()) * span.ns_per_whole_call
        over_ns = calls_ns - max(may_ns - (span.spent_ns - calls_ns), _FOR_CALLS * whole_ns)
        if over_ns > 0 and (debt_ns or span.spent_ns > whole_ns):
            if span.calls.sum() * span.saved_ns_per_call < over_ns and span.spent_ns > whole_ns:
                self._hopeless(debt_ns)
                return
            self._leave_out(span, over_ns)
        elif span.spent_ns < _CALM * whole_ns and not debt_ns:
            self._bring_back(span, may_ns - span.spent_ns)
        # Earlier decisions may not have taken effect yet; the rest is what leaving out functions cannot save.
        going = sum(float(span.calls[func_id]) for func_id in self.out if func_id < len(span.calls))
        if calls_ns - going * span.ns_per_whole_call + span.passed_ns < whole_ns or debt_ns < _INTERVAL_S * self._share * 1e9:
            self._helpless_s = None
        elif self._helpless_s is None:
            self._helpless_s = span.now_s
        elif span.now_s - self._helpless_s > _HELPLESS_S:
            self._begin_intervals()

    def _hopeless(self, debt_ns: float) -> None:
        """Not even leaving out all functions would be enough."""
        if debt_ns >= _INTERVAL_S * self._share * 1e9:
            self._begin_intervals()

    def _begin_intervals(self) -> None:
        self._helpless_s, self._paused, self._by_intervals = None, True, True
        self._absences.clear()  # what is recorded in an interval is exact

    def pace(self, span: Span, pace_s: float) -> float:
        """How long to wait between two looks at what was recorded, so that these themselves fit in; `pace_s`: until now."""
        rest_ns = span.spent_ns - float(span.calls.sum()) * span.ns_per_whole_call
        just_back = any(each.back_s is not None and span.now_s - each.back_s < _FIRST_LOOK_S for each in self._absences.values())
        if just_back or rest_ns < _AT_REST / 4 * self._share * span.program_ns:
            return 0.0 if just_back or pace_s < _SLOWEST_S / 8 else pace_s / 2
        return min(_SLOWEST_S, max(_SLOWEST_S / 8, 2 * pace_s)) if rest_ns > _AT_REST * self._share * span.program_ns else pace_s

    def _leave_out(self, span: Span, over_ns: float) -> None:
        """The hottest functions that together save so much."""
        out, calls = self.out, span.calls
        least = max(
            _LEAST_CALLS, _LEAST_A_SECOND * span.seconds, span.program_ns * max(self._share * _LEAST / span.ns_per_whole_call, _LEAST_RATE / 1e9)
        )
        away = len(out)
        for func_id in np.argsort(calls, kind="stable")[::-1].tolist():
            if over_ns <= 0 or calls[func_id] <= least or away == MOST_OUT:
                return
            over_ns -= float(calls[func_id]) * span.saved_ns_per_call
            if func_id in out:
                continue  # already left out: these are its last calls
            before = self._absences.get(func_id)
            hasty = before is not None and before.back_s is not None and span.now_s - before.back_s < _HASTY_S
            length_s = min(2 * before.length_s, _LONGEST_ABSENCE_S) if before and hasty else _FIRST_ABSENCE_S
            self._absences[func_id] = _Absence(float(calls[func_id]) / span.program_ns * 1e9, span.now_s + length_s, length_s)
            away += 1

    def _bring_back(self, span: Span, room_ns: float) -> None:
        """Functions to bring back, coldest first: out for long enough and affordable at their former rate; else the coldest, as a trial."""
        over = sorted((each for each in self._absences.values() if each.back_s is None and each.until_s <= span.now_s), key=lambda each: each.rate)
        for number, absence in enumerate(over):
            room_ns -= absence.rate * span.program_ns / 1e9 * (span.ns_per_call + _MOST_READING_NS)
            if room_ns < 0 and number:
                return
            absence.back_s = span.now_s

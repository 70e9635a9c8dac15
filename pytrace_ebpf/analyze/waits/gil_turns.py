"""Waits for the GIL, 5 ms at a time, that are one, and who held it meanwhile: of waits and evidence that come some segments at a time.

What is not known yet waits: of each thread its last wait, until it waits again, is named as the holder, or a second has passed; and what comes
after that in its process. So memory is bounded by these segments, threads, and a second.
"""

import numpy as np
import pandas as pd

from pytrace_ebpf.derive.sinks.gil import EXITED, NOBODY, UNKNOWN, WAIT_COLUMNS

TIMED_OUT_NS = 1_000_000_000  # who stays longer on a core, or wants one, has not just looked whether the GIL is free
THREAD = ["pid", "tid"]
_NEVER = 1 << 62
_ROW = ["pid", "ts", "holder", "by"]


class Turns:
    """Takes waits (WAIT_COLUMNS) by when they began, and tells which of those for the GIL ended with having it."""

    def __init__(self) -> None:
        self._open = pd.DataFrame(columns=list(WAIT_COLUMNS))  # that are not decided
        self._last = pd.DataFrame(np.zeros((0, 4), np.int64), columns=[*THREAD, "wait", "acquired"])  # of each thread
        self._count = 0

    def take(self, waits: pd.DataFrame, said: pd.DataFrame, until: int | None) -> pd.DataFrame:
        """Further waits, all that began before `until`, and all that showed until then who had the GIL; None: to the end.

        Those for the GIL that are decided, by thread and time, with two columns more. acquired (bool): it ended with having it; wait: the
        same number for those that are one.
        """
        waits = waits[waits["kind"].astype("object") != "preempted"].astype(dict.fromkeys(THREAD, "int64"))
        own = pd.concat([self._open, waits]) if len(self._open) else waits
        own = own.sort_values([*THREAD, "start_ns"], kind="stable", ignore_index=True)
        following = own.groupby(THREAD)[["kind", "start_ns"]].shift(-1)
        next_ns = following["start_ns"].fillna(_NEVER).astype(np.int64)
        out = own.assign(next_kind=following["kind"].astype("object"), next_ns=next_ns)
        out = out[out["kind"].astype("object") == "gil"].sort_values("end_ns", kind="stable")
        named = said.loc[said["holder"] > 0, ["pid", "holder", "ts"]].rename(columns={"holder": "tid", "ts": "named_ns"})
        out = pd.merge_asof(out, named, left_on="end_ns", right_on="named_ns", by=THREAD, direction="forward")
        seen = (out["named_ns"].notna() & (out["named_ns"] <= out["next_ns"])).to_numpy(bool)
        stayed = (out["next_ns"].clip(upper=_NEVER if until is None else until) - out["end_ns"]).to_numpy() > TIMED_OUT_NS
        known = seen | stayed | (out["next_ns"] < _NEVER).to_numpy()
        out["acquired"] = out["cpu_after"].notna().to_numpy() & (seen | stayed | (out["next_kind"] != "gil").to_numpy())
        known |= until is None
        self._open = out.loc[~known, list(WAIT_COLUMNS)]
        out = out[known].sort_values([*THREAD, "start_ns"], kind="stable", ignore_index=True)
        return self._numbered(out.drop(columns=["next_kind", "next_ns", "named_ns"]))

    def _numbered(self, rows: pd.DataFrame) -> pd.DataFrame:
        earlier = rows[THREAD].merge(self._last, how="left", on=THREAD)
        before = rows.groupby(THREAD)["acquired"].shift(1)
        begins = before.where(before.notna(), earlier["acquired"].fillna(1)).astype(bool)
        goes_on = begins.groupby([rows["pid"], rows["tid"]]).cumsum() == 0
        number = self._count + begins.cumsum()
        rows = rows.assign(wait=number.where(~goes_on, earlier["wait"]).astype(np.int64))
        self._count += int(begins.sum())
        last = rows.groupby(THREAD).tail(1)[[*THREAD, "wait", "acquired"]].astype(np.int64)
        self._last = pd.concat([self._last, last]).drop_duplicates(THREAD, keep="last")
        return rows

    @property
    def waiting(self) -> pd.DataFrame:
        """The waits that are not decided: pid, tid, start_ns."""
        return self._open[[*THREAD, "start_ns"]].astype("int64")

    @property
    def undecided(self) -> pd.DataFrame:
        """The waits whose end may have begun a hold: pid, ts from when on."""
        got = self._open[self._open["cpu_after"].notna()]
        return pd.DataFrame({"pid": got["pid"], "ts": got["blocked_until_ns"].fillna(got["end_ns"]).astype(np.int64)})


class Holds:
    """Who held the GIL of each process when."""

    def __init__(self, processes: pd.DataFrame, start_ns: int, end_ns: int) -> None:
        """schema.PROCESSES of those of which it is known, and when recording, or the window, began and ended."""
        self.first = processes.set_index("pid")["start_ns"].clip(lower=start_ns).astype(np.int64)
        self.last = processes.set_index("pid")["end_ns"].fillna(end_ns).clip(upper=end_ns).astype(np.int64)
        self.pids = self.first.index
        self._run = pd.DataFrame({"pid": self.first.index, "ts": self.first.to_numpy(), "holder": UNKNOWN, "by": 0})
        self._upto = self.first
        self._rows = pd.DataFrame(np.zeros((0, 5), np.int64), columns=[*_ROW, "order"])

    def upto(self, until: int | None, waiting: "list[pd.DataFrame]") -> "pd.Series[int]":
        """Up to when of each process all rows are there: but for those that may come from what is `waiting` (pid, ts). `until`: None for the end."""
        if until is None:
            return self.last
        waits = pd.concat([each[["pid", "ts"]] for each in waiting]).astype("int64").groupby("pid")["ts"].min()
        return waits.reindex(self.pids).fillna(until).clip(upper=until).astype(np.int64)

    def take(self, rows: pd.DataFrame, upto: "pd.Series[int]") -> tuple[pd.DataFrame, pd.DataFrame]:
        """Rows that show who had it (order: of those of one moment), of which all are there up to a moment of each process.

        Holds, as columns pid, tid (or NOBODY, UNKNOWN), start_ns, end_ns, open (it goes on); and those since the last time, cut at these moments.
        """
        rows = pd.concat([self._rows, rows]) if len(self._rows) else rows
        rows = rows[rows["ts"] >= rows["pid"].map(self.first)]
        there = rows["ts"] < rows["pid"].map(upto)
        self._rows, rows = rows[~there], rows[there].assign(ts=lambda r: np.maximum(r["ts"], r["pid"].map(self._upto)))
        rows = pd.concat([self._run.assign(order=-1), rows]).sort_values(["pid", "ts", "order"], kind="stable", ignore_index=True)
        before = rows["holder"].where(rows["holder"] != EXITED).groupby(rows["pid"]).ffill()
        exited = rows["holder"] == EXITED
        rows.loc[exited, "holder"] = NOBODY
        first, last = rows["pid"].map(self.first), rows["pid"].map(self.last)
        rows = rows[(~exited | (before == rows["by"])) & (rows["ts"] >= first) & (rows["ts"] < last)]
        rows = rows[(rows["holder"] != rows["holder"].shift()) | (rows["pid"] != rows["pid"].shift())]
        following = rows.groupby("pid")["ts"].shift(-1)
        runs = pd.DataFrame({"pid": rows["pid"], "tid": rows["holder"].astype(np.int32), "start_ns": rows["ts"]})
        edge = np.minimum(rows["pid"].map(upto), rows["pid"].map(self.last))
        runs["end_ns"] = following.fillna(edge).astype(np.int64)
        ended = following.notna() | (edge == rows["pid"].map(self.last))
        pieces = runs.assign(start_ns=np.maximum(runs["start_ns"], runs["pid"].map(self._upto)))
        self._run = rows[~ended][_ROW].assign(by=0)
        self._upto = np.minimum(np.maximum(upto.reindex(self.first.index), self._upto), self.last)
        runs, pieces = (each[each["end_ns"] > each["start_ns"]].reset_index(drop=True) for each in (runs.assign(open=~ended), pieces))
        return runs, pieces


def handed_over(of_gil: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Of Turns.take(): from its being woken for the GIL nobody has it, from its getting a core the thread that waited."""
    got = of_gil[of_gil["acquired"]]
    woken = got[(got["waker_pid"] == got["pid"]) & (got["waker_tid"] != 0)]
    return _rows(woken["pid"], woken["blocked_until_ns"], NOBODY, woken["tid"], 1), _rows(got["pid"], got["end_ns"], got["tid"], got["tid"], 2)


def came_back(before: pd.DataFrame, waits: pd.DataFrame, said: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Threads that came back from waiting for something else and were the next to be named; and those that nothing followed yet, as `before`."""
    back = waits[~waits["kind"].isin(["gil", "preempted"]) & waits["cpu_after"].notna()]
    back = back[["pid", "tid", "end_ns"]].rename(columns={"end_ns": "ts"}).astype("int64")
    back = (pd.concat([before, back]) if len(before) else back).sort_values("ts", kind="stable")
    following = said[["pid", "ts", "holder"]].assign(named_ns=said["ts"])
    found = pd.merge_asof(back, following, on="ts", by="pid", direction="forward")
    named = found[found["holder"] == found["tid"]]
    return _rows(named["pid"], named["ts"], named["tid"], named["tid"], 3), found.loc[found["holder"].isna(), list(back)]


def _rows(pid: "pd.Series[int]", ts: "pd.Series[int]", holder: "pd.Series[int] | int", by: "pd.Series[int]", order: int) -> pd.DataFrame:
    return pd.DataFrame({"pid": pid, "ts": ts, "holder": holder, "by": by, "order": order}).astype("int64")

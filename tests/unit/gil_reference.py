"""Who held the GIL when and who waited for whom, of all waits and all evidence at once: what the reading half finds some segments at a time."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.waits.gil import SHARES, SHORT_HOLD_NS, Gil
from pytrace_ebpf.analyze.waits.gil_turns import TIMED_OUT_NS
from pytrace_ebpf.derive.scheduling.curve import Curve
from pytrace_ebpf.derive.sinks.gil import EXITED, NOBODY, UNKNOWN, WAIT_COLUMNS
from pytrace_ebpf.derive.sinks.gil import evidence as by_segment

Ints = npt.NDArray[np.int64]


def evidence(trace: Any) -> pd.DataFrame:
    """Of processes of which the holder was read at all, in the order of time."""
    frame = pd.DataFrame(np.concatenate(list(by_segment(trace)))).sort_values("ts", kind="stable", ignore_index=True)
    read = frame.loc[(frame["by"] != 0) & (frame["holder"] >= 0), "pid"].unique()
    return frame[frame["pid"].isin(read)].reset_index(drop=True)


def analyze(trace: Any) -> Gil:
    """All about the GIL in a pytrace_ebpf Trace."""
    waits, said = trace.waits(columns=WAIT_COLUMNS), evidence(trace)
    of_gil = gil_waits(waits, said)
    of_gil["waited_ns"] = of_gil["blocked_until_ns"].fillna(of_gil["end_ns"]).astype(np.int64) - of_gil["start_ns"]
    held = holds(trace, waits, said, of_gil)
    whole = _whole(of_gil, held)
    return Gil(pairs(of_gil), shares(held, of_gil), _threads(trace, held, whole), _takes(whole))


def pairs(of_gil: pd.DataFrame) -> pd.DataFrame:
    """Gil.pairs of waits as from gil_holds.gil_waits, with waited_ns."""
    ids = {"waiting_func_id": of_gil["func_id"], "holding_func_id": of_gil["holder_func_id"]}
    rows = pd.DataFrame({name: func_id.to_numpy(np.int64) for name, func_id in ids.items()})
    holder = of_gil["holder_tid"].to_numpy()
    by = [holder == NOBODY, holder < 0, rows["holding_func_id"] < 0]
    rows["held"] = np.select(by, ["nobody", "not known", "no call"], "function")
    key = ["waiting_func_id", "holding_func_id", "held"]
    # A wait of 12 ms is three of 5, 5 and 2: for each holder it counts once, with its whole time.
    once = rows.assign(wait=of_gil["wait"], ns=of_gil["waited_ns"]).groupby([*key, "wait"], as_index=False)["ns"].sum()
    out = once.groupby(key, as_index=False).agg(waits=("ns", "size"), total_ns=("ns", "sum"), longest_ns=("ns", "max"))
    return out.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)


def shares(held: pd.DataFrame, of_gil: pd.DataFrame) -> pd.DataFrame:
    """Gil.processes, from gil_holds.holds and gil_waits."""
    rows = []
    for pid, own in held.groupby("pid"):
        waits = of_gil[of_gil["pid"] == pid]
        wanted = _covered(
            waits["start_ns"].to_numpy(),
            waits["end_ns"].to_numpy(),
            own["start_ns"].to_numpy(),
            own["end_ns"].to_numpy(),
        )
        length, tid = (own["end_ns"] - own["start_ns"]).to_numpy(), own["tid"].to_numpy()
        has, free = tid > 0, tid == NOBODY
        times = [(length - wanted)[has], wanted[has], wanted[free], (length - wanted)[free], length[tid == UNKNOWN]]
        sums = dict(zip(SHARES, (int(part.sum()) for part in times), strict=True))
        rows.append({"pid": pid, "wall_ns": int(length.sum()), "held_ns": sums["alone_ns"] + sums["contended_ns"], **sums})
    return pd.DataFrame(rows, columns=["pid", "wall_ns", "held_ns", *SHARES])


def _covered(start: Ints, end: Ints, from_ns: Ints, to_ns: Ints) -> Ints:
    """How much of each [from_ns, to_ns) lies in any of the intervals [start, end), which may overlap."""
    if not len(start):
        return np.zeros(len(from_ns), np.int64)
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.append(True, start[1:] > reach[:-1])
    covered = Curve.of(start[first], reach[np.append(first[1:], True)])
    return covered.at(to_ns) - covered.at(from_ns)


def _whole(of_gil: pd.DataFrame, held: pd.DataFrame) -> pd.DataFrame:
    """One row per whole wait: pid, tid, start_ns, waited_ns, having_ns (from wanting to having), holder_tid, convoy (null where holders are not known)."""
    got = of_gil.groupby("wait").agg(
        pid=("pid", "first"), tid=("tid", "first"), start_ns=("start_ns", "first"), end_ns=("end_ns", "last"),
        waited_ns=("waited_ns", "sum"), holder_tid=("holder_tid", "first"),
    )  # fmt: skip
    got["having_ns"] = got.pop("end_ns") - got["start_ns"]
    own = held[held["tid"] > 0].sort_values("start_ns", kind="stable").assign(held_ns=lambda rows: rows["end_ns"] - rows["start_ns"])
    found = pd.merge_asof(
        got.sort_values("start_ns", kind="stable"),
        own[["pid", "tid", "start_ns", "held_ns"]],
        on="start_ns",
        by=["pid", "tid"],
    )
    found["convoy"] = (found["held_ns"] < SHORT_HOLD_NS).astype("Int64")
    found.loc[~found["pid"].isin(held["pid"].unique()), "convoy"] = pd.NA
    return found.drop(columns="held_ns")


def _threads(trace: Any, held: pd.DataFrame, whole: pd.DataFrame) -> pd.DataFrame:
    own = held[held["tid"] > 0].assign(ns=held["end_ns"] - held["start_ns"]).groupby(["pid", "tid"])["ns"].agg(held_ns="sum", holds="size")
    convoys = whole.assign(convoy_ns=whole["having_ns"].where(whole["convoy"].eq(1).fillna(False).astype(bool), 0))
    waited = convoys.groupby(["pid", "tid"]).agg(
        waited_ns=("waited_ns", "sum"), waits=("waited_ns", "size"), mean_ns=("having_ns", "mean"), longest_ns=("having_ns", "max"),
        convoys=("convoy", "sum"), convoy_ns=("convoy_ns", "sum"),
    )  # fmt: skip
    out = own.join(waited, how="outer").reset_index()
    out = out.merge(trace.threads()[["pid", "tid", "name"]], how="left", on=["pid", "tid"])
    out["mean_ns"] = out["mean_ns"].round()
    known = out["pid"].isin(held["pid"].unique())
    for name in ("held_ns", "holds", "waited_ns", "waits", "mean_ns", "longest_ns", "convoys", "convoy_ns"):
        out[name] = out[name].astype("Int64")
        if name not in ("mean_ns", "longest_ns"):
            out[name] = out[name].fillna(0)
    out.loc[~known, ["held_ns", "holds", "convoys", "convoy_ns"]] = pd.NA
    names = [
        "pid",
        "tid",
        "name",
        "held_ns",
        "holds",
        "waited_ns",
        "waits",
        "mean_ns",
        "longest_ns",
        "convoys",
        "convoy_ns",
    ]
    return out[names].sort_values(["waited_ns", "held_ns"], ascending=False, kind="stable", ignore_index=True)


def _takes(whole: pd.DataFrame) -> pd.DataFrame:
    out = whole.groupby(["pid", "tid", "holder_tid"], as_index=False).agg(waits=("start_ns", "size"))
    return out.sort_values(["pid", "tid", "waits"], ascending=[True, True, False], ignore_index=True)


def gil_waits(waits: pd.DataFrame, said: pd.DataFrame) -> pd.DataFrame:
    """The rows of kind gil of `waits` (WAIT_COLUMNS) by thread and time, with two columns more.

    acquired (bool): it ended with having the GIL; wait (int64): the same number for those that are one wait, for 5 ms at a time.
    `said`: as from `evidence`.
    """
    own = waits[waits["kind"] != "preempted"].sort_values(["pid", "tid", "start_ns"], kind="stable")
    following = own.groupby(["pid", "tid"])[["kind", "start_ns"]].shift(-1)
    out = own.assign(
        next_kind=following["kind"].astype("object"),
        next_ns=following["start_ns"].fillna(np.iinfo(np.int64).max).astype(np.int64),
    )
    out = out[out["kind"] == "gil"].sort_values("end_ns", kind="stable")
    named = said.loc[said["holder"] > 0, ["pid", "holder", "ts"]].rename(columns={"holder": "tid", "ts": "named_ns"})
    out = pd.merge_asof(out, named, left_on="end_ns", right_on="named_ns", by=["pid", "tid"], direction="forward")
    seen = out["named_ns"].notna() & (out["named_ns"] <= out["next_ns"])
    stayed = out["next_ns"] - out["end_ns"] > TIMED_OUT_NS
    out["acquired"] = (out["cpu_after"].notna() & (seen | stayed | (out["next_kind"] != "gil"))).to_numpy(dtype=bool)
    out = out.sort_values(["pid", "tid", "start_ns"], kind="stable", ignore_index=True)
    before = out.groupby(["pid", "tid"])["acquired"].shift(1, fill_value=True)
    return out.assign(wait=before.cumsum().astype(np.int64)).drop(columns=["next_kind", "next_ns", "named_ns"])


def holds(trace: Any, waits: pd.DataFrame, said: pd.DataFrame, of_gil: pd.DataFrame) -> pd.DataFrame:
    """Who held the GIL of each process when: columns pid, tid (or NOBODY, UNKNOWN), start_ns, end_ns, by process and in the order of time.

    The intervals of a process cover its time in the recording without a gap. `waits` (WAIT_COLUMNS), `said` and `of_gil` are
    those of `evidence` and `gil_waits`. A process of which nothing is known has no rows.
    """
    processes = trace.processes()
    processes = processes[processes["pid"].isin(said["pid"].unique())]
    start = processes["start_ns"].clip(lower=trace.start_ns).astype(np.int64)
    end = processes["end_ns"].fillna(trace.end_ns).clip(upper=trace.end_ns).astype(np.int64)
    begin = pd.DataFrame({"pid": processes["pid"], "ts": start, "holder": UNKNOWN, "by": 0})
    rows = pd.concat([begin, said, _handed_over(of_gil), _came_back(waits, said)]).sort_values(["pid", "ts"], kind="stable", ignore_index=True)
    before = rows["holder"].where(rows["holder"] != EXITED).groupby(rows["pid"]).ffill()
    exited = rows["holder"] == EXITED
    rows.loc[exited, "holder"] = NOBODY
    first, last = (rows["pid"].map(pd.Series(values.to_numpy(), index=processes["pid"])) for values in (start, end))
    rows = rows[(~exited | (before == rows["by"])) & (rows["ts"] >= first) & (rows["ts"] < last)]
    changes = (rows["holder"] != rows["holder"].shift()) | (rows["pid"] != rows["pid"].shift())
    rows = rows[changes]
    until = rows.groupby("pid")["ts"].shift(-1).fillna(last).astype(np.int64)
    out = pd.DataFrame({"pid": rows["pid"], "tid": rows["holder"].astype(np.int32), "start_ns": rows["ts"], "end_ns": until})
    return out[out["end_ns"] > out["start_ns"]].reset_index(drop=True)


def _handed_over(of_gil: pd.DataFrame) -> pd.DataFrame:
    """From its being woken for the GIL nobody has it, from its getting a core the thread that waited."""
    got = of_gil[of_gil["acquired"]]
    woken = got[(got["waker_pid"] == got["pid"]) & (got["waker_tid"] != 0)]
    free = pd.DataFrame({"pid": woken["pid"], "ts": woken["blocked_until_ns"].astype(np.int64), "holder": NOBODY, "by": woken["tid"]})
    return pd.concat([free, pd.DataFrame({"pid": got["pid"], "ts": got["end_ns"], "holder": got["tid"], "by": got["tid"]})])


def _came_back(waits: pd.DataFrame, said: pd.DataFrame) -> pd.DataFrame:
    """Threads that came back from waiting for something else and were the next to be named."""
    back = waits[~waits["kind"].isin(["gil", "preempted"]) & waits["cpu_after"].notna()].sort_values("end_ns", kind="stable")
    following = pd.merge_asof(
        back[["pid", "tid", "end_ns"]],
        said[["pid", "ts", "holder"]],
        left_on="end_ns",
        right_on="ts",
        by="pid",
        direction="forward",
    )
    following = following[following["holder"] == following["tid"]]
    return pd.DataFrame({"pid": following["pid"], "ts": following["end_ns"], "holder": following["tid"], "by": following["tid"]})

"""The GIL: which function waited for which, how much of the time it was held, wanted and free, and what each thread had of it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.time.curve import Curve
from pytrace_ebpf.analyze.waits.gil_holds import NOBODY, UNKNOWN, WAIT_COLUMNS, evidence, gil_waits, holds

SHORT_HOLD_NS = 2_500_000  # half of sys.getswitchinterval()'s default: a thread that computes is left the GIL for twice as long
SHARES = ("alone_ns", "contended_ns", "handover_ns", "idle_ns", "unknown_ns")

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Gil:
    """What `analyze` found; times are int64 nanoseconds.

    pairs: one row per waiting and holding function, most time first: waiting_func_id, holding_func_id (-1 none or not
      known), held (by "function"; "no call": a thread without an open one; "nobody": it was free or being handed over; "not known"),
      waits, total_ns, longest_ns.
    processes: pid, wall_ns and SHARES, which sum to it: held with nobody waiting, held while somebody waits, free
      while somebody waits, free, not known; held_ns is the first two.
    threads: pid, tid, name, held_ns, holds, waited_ns, waits, mean_ns and longest_ns from wanting to having
      (null without waits), convoys (waits straight after a hold shorter than SHORT_HOLD_NS), convoy_ns (from wanting to having, of these); longest waited first.
      held_ns, holds, convoys and convoy_ns are null where the holder is not known.
    takes: pid, tid, holder_tid (who had it when the wait began), waits.
    """

    pairs: pd.DataFrame
    processes: pd.DataFrame
    threads: pd.DataFrame
    takes: pd.DataFrame


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

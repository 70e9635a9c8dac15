"""The first lines of a report: what was lost, what was traced, and what tracing it cost."""

import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from pytrace_ebpf.patterns import fitting
from pytrace_ebpf.trace.left_out import INTERVAL
from pytrace_ebpf.trace.losses import LOST, NOT_REPORTED, PARTLY
from pytrace_ebpf.trace.sampled import SAMPLES_ALONE
from pytrace_ebpf.trace.stream import Loss
from pytrace_ebpf.units import plural
from pytrace_ebpf.view import ended, text
from pytrace_ebpf.view.identities import sentences
from pytrace_ebpf.view.states import samples_tell
from pytrace_ebpf.view.trigger import trigger_lines

_NAMES_A_PROCESS = re.compile(r"^process \d+( \([^)]*\))?")
_AGENT = "agent"
_PIDS_SHOWN = 8
_RULES_SHOWN = 3
_LEFT_OUT_SHOWN = 3
_ENDS_SHOWN = 3
_CHAIN_SHOWN = 3  # programs that one process executed, one after the other
_EXECUTED = ", which executed "
_MUCH, _LITTLE = (
    0.2,
    0.05,
)  # of the CPU time that the program used, which of one that does little means little; of a core: a cost above both distorts the figures
_EVENT = Loss("", -1, "event", "events")


def lost_words(name: str, number: int) -> tuple[str, str]:
    """So many losses of a class in words, and what they mean, or ""."""
    loss = LOST.get(name, _EVENT)
    return f"{number:,} {loss.one if number == 1 else loss.several}", loss.meaning


def _partly(name: str, number: int) -> str:
    """What is missing of what is known of some."""
    counted, meaning = lost_words(name, number)
    if name in NOT_REPORTED.values():
        return f"The kernel did not report {counted}: {meaning}"
    return f"There {'is' if number == 1 else 'are'} {counted}: {meaning}"


def _counted(facts: dict[str, Any], calls: int) -> str:
    if facts.get("sampled"):
        from pytrace_ebpf.view import sampled  # what reads samples is not needed for calls

        return sampled.words(facts["sampled"])
    return plural(calls, "call")


def head(facts: dict[str, Any], calls: int, width: int, answer: Sequence[Text] = ()) -> list[Text]:
    """The lines of the head, each at most `width` cells, from view.summary's facts with `cost`.

    The `answer` to what was asked comes first, but for what it must not be read without: that the program was killed, or that a part of the trace is lost.
    """
    target = facts["target"]
    python = f"Python {target['python_version']}" if target.get("python_version") else "no Python"
    counts = [
        *([plural(facts["processes"], "process")] if facts["processes"] > 1 and not of_several(facts) else []),
        plural(facts["threads"], "thread"),
        _counted(facts, calls),
    ]
    about = [
        python,
        f"pid {_listed([str(each.get('pid', '?')) for each in facts.get('targets') or [target]])}",
        f"{text.duration(facts['wall_ns'])} recorded",
        *counts,
    ]
    if facts.get("window"):
        about[2] = window_words(facts["window"])
    lost, partly = loss_lines(facts, width)
    ended_by_signal, ended_else = ended_lines(facts, width)
    return [
        *trigger_lines(facts, width),
        *killed_lines(facts, width),
        *ended_by_signal,
        *wrong_lines(facts, width),
        *lost,
        *answer,
        *(Text(text.fit(line, width), "bold") for line in _in_parts(traced(facts), width)),
        *(Text(text.fit(text.clean(line), width)) for line in sentences(facts.get("identities") or [])),
        *(Text(line) for line in _in_lines(about, width)),
        *ended_else,
        *partly,
        *unserved_lines(facts, width),
        *taken_lines(facts, width),
        *unmet_lines(facts, width),
        *scheduling_lines(facts, width),
        *interpreter_lines(facts, width),
        *native_lines(facts, width),
        *cost_lines(facts, calls, width),
        *left_out_lines(facts, width),
    ]


def of_several(facts: dict[str, Any]) -> bool:
    """Whether several programs were traced from the beginning, so that traced() says how many there are."""
    return len(facts.get("targets") or [facts["target"]]) > 1


def traced(facts: dict[str, Any]) -> str:
    """What was traced: the program, or how many processes of which programs, children included."""
    targets = facts.get("targets") or [facts["target"]]
    commands = list(dict.fromkeys(each.get("command") or each.get("executable") or "(unknown program)" for each in targets))
    if len(targets) > 1:
        return f"{max(len(targets), facts['processes'])} processes of {', '.join(commands)}"
    earlier: list[str] = targets[0].get("earlier_commands") or []
    first, *others = [*earlier, commands[0]]
    if len(others) > _CHAIN_SHOWN:
        return f"{first}{_EXECUTED}{len(others):,} programs in turn, the last of them {others[-1]}"
    return _EXECUTED.join([first, *others])


def _in_parts(program: str, width: int) -> list[str]:
    """In one line where it fits, else one that executed another in a line for each."""
    return [program] if len(program) <= width else re.split(f"(?<=,) (?={_EXECUTED.removeprefix(', ')})", program)


def window_words(window: dict[str, Any]) -> str:
    """Which piece of the recording is shown, and whose."""
    start, end, whole = (text.duration(window[key]) for key in ("from_ns", "to_ns", "of_ns"))
    of = "".join(f", {name} {window[name]} alone" for name in ("pid", "tid") if window[name] is not None)
    when = f"all of {whole}" if not window["from_ns"] and window["to_ns"] == window["of_ns"] else f"from {start} to {end} of {whole}"
    return when + of


def killed_lines(facts: dict[str, Any], width: int) -> list[Text]:
    """Which processes the kernel killed for want of memory: before all else."""
    killed = [row for row in facts.get("ends", []) if row["oom_killed"]]
    return [Text(line, "bold red") for sentence in ended.sentences(killed, _ENDS_SHOWN) for line in _wrap(f"{sentence}.", width)]


def ended_lines(facts: dict[str, Any], width: int) -> tuple[list[Text], list[Text]]:
    """How the targets ended, but for those: by a signal, and all others."""
    targets = {each.get("pid") for each in facts.get("targets") or [facts["target"]]}
    others = [row for row in facts.get("ends", []) if not row["oom_killed"] and row["pid"] in targets]
    by_signal, by_themselves = ([row for row in others if bool(row["exit_signal"]) is kind] for kind in (True, False))
    return (
        [Text(line, "yellow") for sentence in ended.sentences(by_signal, _ENDS_SHOWN) for line in _wrap(f"{sentence}.", width)],
        [Text(line) for sentence in ended.sentences(by_themselves, _ENDS_SHOWN) for line in _wrap(f"{sentence}.", width)],
    )


def wrong_lines(facts: dict[str, Any], width: int) -> list[Text]:
    """One sentence, in red, where sums of the report do not hold."""
    wrong = facts.get("wrong_sums") or []
    if not wrong:
        return []
    rules = [f"that {row['rule']} ({plural(row['rows'], 'row')}, by up to {_off(row)})" for row in wrong[:_RULES_SHOWN]]
    more = [plural(len(wrong) - _RULES_SHOWN, "more rule")] if len(wrong) > _RULES_SHOWN else []
    sentence = (
        f"WRONG SUMS, so do not rely on these figures, and please report this defect of pytrace-ebpf: it does not hold {'; '.join([*rules, *more])}."
    )
    return [Text(line, "bold red") for line in _wrap(sentence, width)]


def _off(wrong: dict[str, Any]) -> str:
    return text.duration(wrong["off"]) if wrong["unit"] == "ns" else plural(wrong["off"], "call")


def loss_lines(facts: dict[str, Any], width: int) -> tuple[list[Text], list[Text]]:
    """What is missing from the trace, one line each, in red; and what the kernel did not report, in yellow, with one line in green where nothing else is missing."""
    partly = list[Text]()
    lines = [Text(line, "bold red") for line in _wrap(cut_sentence(facts), width)]
    lines += [Text(line, "yellow") for line in _wrap(ended_sentence(facts), width)]
    for name, number in facts["lost"].items():
        windows = [w for w in facts["losses"] if w["class"] == name]
        if name in PARTLY:
            of = f", within {text.duration(sum(w['end_ns'] - w['start_ns'] for w in windows))}" if name in NOT_REPORTED.values() and windows else ""
            partly += [Text(line, "yellow") for line in _wrap(f"{_partly(name, number)} ({name}{of}).", width)]
            continue
        within = f" within {text.duration(sum(w['end_ns'] - w['start_ns'] for w in windows))}" if windows else ""
        counted, meaning = lost_words(name, number)
        lines += [Text(line, "bold red") for line in _wrap(f"LOST {counted}{within}{f': {meaning}' if meaning else ''} ({name}).", width)]
    taken = any(source.get("threads_taken") for source in facts.get("sources", []))
    if not facts["lost"].keys() - PARTLY and facts["state"] == "complete" and not taken:
        partly.append(Text(f"Nothing {'else ' if facts['lost'] else ''}was lost{' here' if facts.get('window') else ''}.", "green"))
    return lines, partly


def unserved_lines(facts: dict[str, Any], width: int) -> list[Text]:
    """Which processes have no calls, and why: one sentence for each reason, whichever process that names."""
    pids: dict[str, list[str]] = {}
    others: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for source in facts.get("sources", []):
        if not source.get("source"):
            why = str(source.get("why")).rstrip(".")
            of_each = _NAMES_A_PROCESS.sub("each", why)
            reasons[of_each] = of_each if of_each in reasons else why
            pids.setdefault(of_each, []).append(str(source.get("pid")))
            others[of_each] += source.get("others", 0)
    sentences = []
    for of_each, of in pids.items():
        why, left = reasons[of_each], others[of_each] + len(of[_PIDS_SHOWN:])
        sentences.append(f"No calls of process {', '.join(of[:_PIDS_SHOWN])}{f' and {left:,} more' if left else ''}: {why}.")
    for each in facts.get("left_alone", []):
        sentences.append(f"Processes of user {each['user']} were left alone {plural(each['times'], 'time')}, as to look at them took too long.")
    return [Text(line, "yellow") for sentence in sentences for line in _wrap(sentence, width)]


def unmet_lines(facts: dict[str, Any], width: int) -> list[Text]:
    """Patterns that fitted no function, and the nearest names: a sentence each."""
    unmet = [each for each in facts.get("patterns") or [] if not each["fits"] and each["known"]]
    sentences = [text.clean(fitting(each["option"], each["pattern"], 0, each["known"], each["nearest"])) for each in unmet]
    return [Text(line, "yellow") for sentence in sentences for line in _wrap(f"{sentence}.", width)]


def taken_lines(facts: dict[str, Any], width: int) -> list[Text]:
    """Which processes took threads for a tool of their own, so that calls are missing: a sentence each."""
    lines = []
    for source in facts.get("sources", []):
        if count := source.get("threads_taken", 0):
            said = f"Process {source.get('pid')} gave {plural(count, 'thread')} a profile function of its own (cProfile, sys.setprofile)"
            lines += _wrap(f"{said}: {'its' if count == 1 else 'their'} calls from then on are not recorded.", width)
    return [Text(line, "yellow") for line in lines]


def interpreter_lines(facts: dict[str, Any], width: int) -> list[Text]:
    """What is not known of interpreters beside the main one: a sentence for each process that made any."""
    lines = []
    for row in facts.get("interpreters", []):
        recorded = row.get("recorded", 0)
        if recorded >= row["others"] or row["source"] == "usdt":
            continue
        missing = f"are recorded for {recorded} of them alone" if recorded else "are not recorded"
        if row["source"] == SAMPLES_ALONE:
            if tuple(map(int, row["python_version"].split(".")[:2])) >= (3, 12):
                continue
            missing = "have no stacks here"
        made = plural(row["others"], "interpreter")
        lines += _wrap(
            f"Process {row['pid']} has made {made} beside its main one: calls in {'it' if row['others'] == 1 else 'them'} {missing}.", width
        )
    return [Text(line, "yellow") for line in lines]


def native_lines(facts: dict[str, Any], width: int) -> list[Text]:
    """What was asked for of native layers and could not be had: a sentence each."""
    missing = (facts.get("native") or {}).get("missing", [])
    return [Text(line, "yellow") for sentence in missing for line in _wrap(sentence, width)]


def scheduling_lines(facts: dict[str, Any], width: int) -> list[Text]:
    """What is not known of scheduling, and why; nothing where eBPF recorded it."""
    scheduling = facts.get("scheduling") or {"source": "bpf"}
    if scheduling["source"] == "bpf" or samples_tell(facts):
        return []
    missing = "Run queue, GIL wait and blocked are not distinguished" if scheduling["source"] else "When threads ran and waited is not known"
    return [Text(line, "yellow") for line in _wrap(f"{missing}: {scheduling['why'].rstrip('.')}.", width)]


def cut_sentence(facts: dict[str, Any]) -> str:
    """ "" for a complete trace."""
    if facts["state"] == "cut":
        return (
            "CUT: the tracer ended without finishing this trace (killed?). Its closed segments, "
            f"the first {text.duration(facts['wall_ns'])}, are all here."
        )
    if facts["state"] == "recording":
        return f"NOT FINISHED: still being recorded, or cut just now; the first {text.duration(facts['wall_ns'])} are here."
    return ""


def ended_sentence(facts: dict[str, Any]) -> str:
    """ "" where the recording ended because it was to, or its program had."""
    return f"ENDED EARLY: {facts['ended']}." if facts.get("ended") else ""


def waited_sentence(waited_ns: int) -> str:
    """ "" where the program never waited for the tracer."""
    return f" The program waited {text.duration(waited_ns)} for the tracer to read what it wrote." if waited_ns else ""


def cost_lines(facts: dict[str, Any], calls: int, width: int) -> list[Text]:
    """What the tracing cost the program; where that was much, as a warning with what it means for the figures and what to do."""
    if facts.get("sampled"):
        from pytrace_ebpf.view import sampled

        return [Text(line) for line in _wrap(sampled.cost_sentence(facts["sampling_ns"], facts["wall_ns"]), width)]
    cost = facts.get("cost")
    sentence = (cost_sentence(cost, facts["wall_ns"], calls) if cost else unmeasured(facts)) + waited_sentence(facts.get("waited_ns", 0))
    if not cost or not _is_dear(cost, facts["wall_ns"]):
        return [Text(line) for line in _wrap(sentence, width)]
    bound = [] if facts.get("budget") else ["--budget 5% bounds it when you record"]
    ways = ["--compensate takes it off again", *bound, "--include PATTERN records less"]
    ways += ["--source agent costs less"] if cost["source"] == "usdt" else []
    sentence += (
        f" That is much: functions that are called often look slower than they are, and the order of functions may be distorted. {'; '.join(ways)}."
    )
    return [Text(line, "yellow") for line in _wrap(sentence, width)]


def _is_dear(cost: dict[str, Any], wall_ns: int) -> bool:
    """By the same measure as the line of progress."""
    return bool(cost["total_ns"] > _LITTLE * wall_ns and cost["total_ns"] > _MUCH * (cost["cpu_ns"] or wall_ns))


def left_out_lines(facts: dict[str, Any], width: int) -> list[Text]:
    """Which functions were not recorded for a time to keep to the budget, in one sentence; nothing where all were."""
    out = facts.get("left_out")
    if not out:
        return []
    budget = f"a budget of {facts['budget'] * 100:g} %" if facts.get("budget") else "what tracing may take unasked"
    lines, pauses = [], [row for row in out if row["why"] == INTERVAL]
    for row in pauses:
        of = f"{text.percent(row['left_out_ns'], facts['wall_ns'])} of the time, {text.duration(row['left_out_ns'])} in {plural(row['times'], 'piece')}"
        sentence = f"To keep to {budget}, nothing was recorded {of}; what follows is of the intervals between, in which every call was ({row['calls_per_s']:,} a second)."
        lines += [Text(line, "yellow") for line in _wrap(sentence, width)]
    out = [row for row in out if row not in pauses]
    shown = [
        f"{text.clean(row['qualname'])} {text.percent(row['left_out_ns'], facts['wall_ns'])} of the time ({row['calls_per_s']:,} calls a second)"
        for row in out[:_LEFT_OUT_SHOWN]
    ]
    more = f", and {len(out) - _LEFT_OUT_SHOWN:,} more" if len(out) > _LEFT_OUT_SHOWN else ""
    sentence = (
        f"To keep to {budget}, {plural(len(out), 'function')} called very often {'was' if len(out) == 1 else 'were'} left out for a time: "
        f"{', '.join(shown)}{more}; such calls are not counted, and their time is their callers' own, which have a * below."
    )
    return lines + [Text(line, "yellow") for line in _wrap(sentence, width) if out]


def unmeasured(facts: dict[str, Any]) -> str:
    """Why nothing is known of what the tracing cost, as far as that is known."""
    if facts.get("trigger"):
        return "What tracing cost is measured when a flight recorder ends, and so not known of this trace."
    return "What the tracing cost was not measured."


def cost_sentence(cost: dict[str, Any], wall_ns: int, calls: int) -> str:
    """What the tracing cost the program, in one sentence."""
    native = cost["native_calls"] or 0
    apart = f", and {native:,} native ones x {text.duration(cost['native_ns_per_call'])}" if native else ""
    if cost.get("lines"):
        each = "lines, of which one took less than could be measured" if cost["ns_per_line"] == 0 else f"lines x {text.duration(cost['ns_per_line'])}"
        apart += f", and about {cost['lines']:,} {each}"
    apart += (
        f", and about {text.duration(cost['other_ns'])} by which all other code was slower" if cost["other_ns"] > _LITTLE * cost["total_ns"] else ""
    )
    of_cpu = f"{text.percent(cost['total_ns'], cost['cpu_ns'])} of what the program used and " if cost["cpu_ns"] else ""
    return (
        f"Tracing cost about {text.duration(cost['total_ns'])} of CPU time ({of_cpu}{text.percent(cost['total_ns'], wall_ns)} of a core): "
        f"{calls - native:,} x {text.duration(cost['ns_per_call'])}, as measured with {cost['source']}{apart}."
        + _of_calls(cost)
        + (" What it cost to read values is not in this." if cost.get("values") and not cost.get("timed") else "")
        + (" What it cost to count instructions is not in this." if cost.get("opcodes") else "")
    )


def _of_calls(cost: dict[str, Any]) -> str:
    """Where that is what a call costs."""
    if cost.get("timed"):
        return f" A call costs that in this program, where {plural(cost['timed'], 'event')} were timed; in a small loop {text.duration(cost['loop_ns_per_call'])}."
    if cost["source"] == _AGENT:
        return " A call costs that in a small loop; in a program of many functions it may be several times as much."
    return ""


def _listed(pids: list[str]) -> str:
    return ", ".join(pids[:_PIDS_SHOWN]) + (", ..." if pids[_PIDS_SHOWN:] else "")


def _in_lines(items: Sequence[str], width: int) -> list[str]:
    """Items apart from each other, as many in a line as it holds; one that is longer than a line is broken."""
    lines = [""]
    for item in items:
        joined = f"{lines[-1]}   {item}" if lines[-1] else item
        lines[-1:] = [joined] if len(joined) <= width else [line for line in (lines[-1], item) if line]
    return [part for line in lines for part in _wrap(line, width)]


def _wrap(sentence: str, width: int) -> list[str]:
    return textwrap.wrap(text.clean(sentence), width, break_on_hyphens=False)

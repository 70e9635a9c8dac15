"""The recorders of a recording: those that all have, and those of the streams that are asked for."""

import importlib
from collections.abc import Iterator

from pytrace_ebpf import processors
from pytrace_ebpf.record.cost.cost import Cost
from pytrace_ebpf.record.filters import patterns_of
from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.process.processes import Processes
from pytrace_ebpf.record.recorder import Recorder
from pytrace_ebpf.record.scheduling.external_threads import ExternalThreads
from pytrace_ebpf.record.scheduling.usage import Usage
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.record.source_selection.sources import Sources
from pytrace_ebpf.trace.declared import STREAMS
from pytrace_ebpf.trace.stream import Stream


def recorders(options: Options, recording: Recording, sources: Sources, cost: Cost) -> list[Recorder]:
    """Those that `options` ask for. A process is added to them in this order: its scheduling is recorded before its calls are."""
    processes = recording.processes
    samples = _samples(recording, options) if options.sample else None
    scheduling = _scheduling(options, processes, samples)
    asked = patterns_of(options.filters, options.observed) if not options.lean else []
    if options.flight and not options.value_of("layers") and not options.filters.c_calls:  # else they may be of C functions
        asked += [
            ("--from-call" if condition.begins else "--trigger", condition.pattern) for condition in options.flight.conditions if condition.pattern
        ]
    return [
        processes,
        recording.functions,
        scheduling,
        sources,
        cost,
        *(_recorder_of(stream).of(options, recording, scheduling) for stream in _asked(options) if stream.recorder),
        *([samples] if samples else []),
        *([_fits(recording, asked)] if asked else []),
        *([ExternalThreads(processes)] if options.neighbours and not options.lean else []),
        *([] if options.lean else [Usage(processes)]),
    ]


# What is not asked for is not imported.


def _asked(options: Options) -> Iterator[Stream]:
    return (stream for stream in STREAMS if options.value_of(stream.name))


def _recorder_of(stream: Stream) -> type[Recorder]:
    processors.require(stream.flag)
    module, _, name = stream.recorder.rpartition(".")
    found: type[Recorder] = getattr(importlib.import_module(module), name)
    return found


def _scheduling(options: Options, processes: Processes, samples: Recorder | None) -> Recorder:
    if options.rootless:
        from pytrace_ebpf.record.scheduling.rootless import Rootless

        return Rootless(processes, options.running, options.samples_alone)
    from pytrace_ebpf.record.scheduling.sched import Lives, SchedProbes

    if getattr(samples, "states_known", False):
        return Lives(processes, options.follow)
    rings = {name: size for stream in _asked(options) for name, size in stream.rings.items()}
    return SchedProbes(options.sched_ring_pages, options.follow, processes.ran.take_in, rings)


def _fits(recording: Recording, asked: list[tuple[str, str]]) -> Recorder:
    from pytrace_ebpf.record.pattern_counts import PatternCounts

    return PatternCounts(recording, asked)


def _samples(recording: Recording, options: Options) -> Recorder:
    hz = options.sample or 0.0
    if options.rootless:
        from pytrace_ebpf.record.sampling.rootless import RootlessSamples

        return RootlessSamples(recording, hz, options.follow)
    from pytrace_ebpf.record.sampling.samples import Samples

    return Samples(recording, hz, options.follow, options.lasting, options.samples_alone and not options.switches, options.lean)

"""Sample every Python process of the host, all the time, at a cost that nobody notices; by one configuration file.

    pytrace-ebpf daemon
    pytrace-ebpf daemon --config FILE
    pytrace-ebpf daemon status|reload|stop

Processes are found as they start, and sampled, recorded or ignored as the configuration says. What was sampled is summed by 10 s
and process; pytrace-ebpf report shows it. Without a word the daemon runs in the foreground until SIGTERM or Ctrl-C; SIGHUP lets it
read its configuration again. docs/daemon.md says how to install it and what the configuration may hold.
"""

import argparse
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytrace_ebpf import self_command
from pytrace_ebpf.errors import HostError, UsageError
from pytrace_ebpf.options import recording
from pytrace_ebpf.printable import printable
from pytrace_ebpf.record.process import descriptors
from pytrace_ebpf.record.rights import capabilities
from pytrace_ebpf.trace.sampled import SAMPLES_ALONE
from pytrace_ebpf.units import plural

if TYPE_CHECKING:
    from pytrace_ebpf.daemon.configuration import Configuration
    from pytrace_ebpf.daemon.lock import Running

NAME = "daemon"
_SUDO = ("SUDO_UID", "SUDO_GID", "SUDO_USER")
_PATIENCE_S = 60
_WORTH_S = 1.0
_SILENT_S = 60.0  # it publishes its status every five


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `daemon`."""
    parser.add_argument("word", nargs="?", choices=("status", "reload", "stop"), help="ask the daemon that runs, instead of being one")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the configuration (/etc/pytrace-ebpf/daemon.toml, where that is there)")
    parser.add_argument("--check", action="store_true", help="read the configuration, say whether it is right, and end")
    parser.add_argument("--json", action="store_true", help="status: print JSON")


def run(args: argparse.Namespace) -> int:
    """Be the daemon, or ask it for args.word."""
    if args.json and args.word != "status":
        raise UsageError("--json is of pytrace-ebpf daemon status alone.")
    if args.check or args.word:
        configuration = _loader(args.config)()
        if args.word:
            return _ask(args.word, configuration, args.json)
        print(f"{plural(len(configuration.rules), 'rule')}, and {configuration.otherwise} for all others")
        return 0
    capabilities.keep(capabilities.LOADING)
    descriptors.allow_all()
    recording.prepare(SAMPLES_ALONE)
    for name in _SUDO:  # what it finds is of all users: nobody's but root's, whoever started it
        os.environ.pop(name, None)
    from pytrace_ebpf.daemon.daemon import Daemon

    daemon = Daemon(_loader(args.config), sys.argv, _say, self_command.worker("daemon_recorder"))
    signal.signal(signal.SIGHUP, lambda *_: daemon.reload())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: daemon.stop())
    daemon.run()
    return 0


def _loader(path: Path | None) -> "Callable[[], Configuration]":
    from pytrace_ebpf.daemon.configuration import load

    def read() -> "Configuration":
        configuration = load(path)
        for number, rule in enumerate(configuration.rules, 1):
            _check_options(number, list(rule.options))
        return configuration

    return read


def _check_options(number: int, options: list[str]) -> None:
    """Raises UsageError for what attach would not take."""
    from pytrace_ebpf.cli.main import parser

    try:
        asked = parser(["attach"]).parse_args(["attach", *options])
    except UsageError as error:
        raise UsageError(f"rule {number}: options: {error}") from None
    if asked.output or asked.pids or asked.pid or asked.match:
        raise UsageError(f"rule {number}: options: which process is recorded and where to says the daemon: leave out PID, --match and --output")


def _say(sentence: str) -> None:
    print(printable(sentence), file=sys.stderr, flush=True)


def _ask(word: str, configuration: "Configuration", as_json: bool) -> int:
    from pytrace_ebpf.daemon.lock import Running

    running = Running(configuration.run_directory)
    try:
        if word == "status":
            status = running.status()
            print(json.dumps(status, indent=1) if as_json else "\n".join(_lines(status)))
        elif word == "reload":
            running.reload()
        else:
            running.stop()
            _wait(running)
    finally:
        running.close()
    return 0


def _of_recordings(recordings: dict[str, Any]) -> list[str]:
    """Those of rules: which go on, and what became of others."""
    lines = []
    for pid, place in recordings["going"].items():
        traces = recordings["traces"].get(pid, [])
        so_far = f": {len(traces)} traces so far, the last in {printable(traces[-1])}" if len(traces) > 1 else "" if traces else ", no trace yet"
        lines.append(f"recording process {pid} into {printable(place)}{so_far}")
    if failed := recordings["failed"]:
        lines.append(f"{plural(failed, 'recording')} ended early; what was recorded until then opens")
    if refused := recordings["refused"]:
        lines.append(f"{plural(refused, 'process')} not recorded, since as many were as may be at a time (max_recordings)")
    if recordings["bytes"]:
        lines.append(f"recordings take {recordings['bytes'] / 1e6:,.1f} MB, {recordings['removed']:,} were removed (max_bytes, max_age)")
    return lines


def _lost(by_class: dict[str, int]) -> list[str]:
    """What was lost up to the last window, and what that means."""
    from pytrace_ebpf.trace.losses import LOST
    from pytrace_ebpf.view.head import lost_words

    words = (lost_words(name, count) if name in LOST else (f"{count:,} {name}", "") for name, count in by_class.items())
    return [f"lost: {': '.join(filter(None, each))}" for each in words]


def _of_users(users: list[dict[str, Any]]) -> list[str]:
    """What the processes of each user have cost the daemon to look at and read, where it is worth a line."""
    lines = []
    for each in users:
        if each["cpu_s"] >= _WORTH_S or each["left_alone"] or each.get("too_many"):
            why = ", left alone until that has faded" if each["left_alone"] else ""
            lines.append(
                f"user {each['user']}: {plural(each.get('sampled', 0), 'process')} sampled, {each.get('too_many', 0):,} left out; to look at them took "
                f"{each['cpu_s']:.1f} s of CPU, {each['lately_s']:.1f} s of it lately{why}"
            )
    return lines


def _wait(running: "Running") -> None:
    if not select.select([running.descriptor], [], [], _PATIENCE_S)[0]:
        raise HostError(
            f"the daemon, process {running.pid}, has not ended after {_PATIENCE_S} s; kill -9 {running.pid} does no harm to what it samples"
        )


def _lines(status: dict[str, Any]) -> list[str]:
    from pytrace_ebpf.view.text import duration

    said = {name: printable(str(value)) for name, value in status.items()}
    lines = [
        f"process {said['pid']}, for {duration(status['uptime_s'] * 1e9)}: {plural(status['sampled'], 'process')} sampled, {status['ignored']:,} ignored, "
        f"{len(status['recordings']['going']):,} recorded",
        f"{status['host_percent']:.2f} % of the host's CPU, and {status['started_host_percent']:.2f} % what it started that is over (recordings, helpers); "
        f"{status['rss_bytes'] / 1e6:,.0f} MB of memory",
        f"{said['directory']}: {status['bytes'] / 1e6:,.1f} MB, {plural(status['windows'], 'window')} written, {plural(status['samples'], 'sample')}, "
        f"{plural(status['lost'], 'event')} lost",
    ]
    lines += _lost(status["lost_by_class"])
    if status["silent_s"] > _SILENT_S:
        lines.insert(
            0,
            f"process {said['pid']} has said nothing for {duration(status['silent_s'] * 1e9)}: it is stopped, begins anew, or waits for a core or a disk; before that:",
        )
    if not status["windows"] + status["windows_not_written"]:
        lines.append("nothing was summed yet: a window is written when it is over, where something was sampled in it")
    lines += _of_recordings(status["recordings"])
    if status.get("requests"):
        lines.append(f"{plural(len(status['requests']), 'recording')} for those who asked by pytrace-ebpf request")
    if status["windows_not_written"]:
        now = f", and it goes on: {said['why_not_written']}" if status["why_not_written"] else ""
        lines.append(f"{plural(status['windows_not_written'], 'window')} could not be written{now}")
    if status["too_many"]:
        lines.append(
            f"{plural(status['too_many'], 'process')} {'is' if status['too_many'] == 1 else 'are'} not sampled because there are so many: "
            f"{status['most']:,} at most "
            "(max_processes, or what may be open: ulimit -n)"
        )
    lines += [printable(each) for each in status.get("waiting", ())]
    lines += _of_users(status.get("users", []))
    for each in status.get("push", ()):
        why = f"; the last one was not: {each['why']}" if each["why"] else ""
        lines.append(
            f"{each['kind']} to {printable(each['server'])}: {plural(each['sent'], 'profile')} sent, {each['refused']:,} refused, "
            f"{each['dropped']:,} dropped, {each['waiting']:,} wait{why}"
        )
    return [*lines, *(f"not sampled: {printable(each)}" for each in status["not_sampled"])]

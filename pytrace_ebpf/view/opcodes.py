"""`report --by opcode`: instructions, counted where that was asked for, else of samples."""

from typing import Any

import pandas as pd
from rich.console import RenderableType

from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.view import exact_opcodes, sampled_lines

_NEITHER = "--by opcode is made of samples or of counted instructions, which this trace does not have; --sample and --opcodes exact of run and attach record them."


def found(trace: Any, tree: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """exact_opcodes.found's rows, or sampled_lines.found_opcodes's. Raises UsageError where the trace has neither."""
    if exact_opcodes.are_in(trace):
        return exact_opcodes.found(trace, tree, facts)
    if not trace.manifest.get("sampling"):
        raise UsageError(_NEITHER)
    return sampled_lines.found_opcodes(trace, tree, facts)


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """The rows of found()."""
    shown = exact_opcodes.report if "shares" in facts else sampled_lines.report_opcodes
    return shown(facts, table, width, ascii_only, top)

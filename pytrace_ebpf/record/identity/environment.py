"""What a process says of itself in the environment that it was started with: OpenTelemetry's variables, and none of the others, which may hold secrets.

https://opentelemetry.io/docs/specs/otel/resource/sdk/#specifying-resource-information-via-an-environment-variable
"""

from collections.abc import Mapping
from urllib.parse import unquote

from pytrace_ebpf.printable import printable
from pytrace_ebpf.trace.identity import OF_NAME

NAMES = ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES")
LONGEST = 256  # characters of a value
_MOST_BYTES = 1 << 14  # of a variable


def variables(environment: bytes) -> dict[str, str]:
    """Those of NAMES in the contents of /proc/PID/environ; of one that is there twice the first, as getenv() has it."""
    found: dict[str, str] = {}
    for line in environment.split(b"\0"):
        if line.startswith(b"OTEL_"):
            name, _, value = line.partition(b"=")
            if (text := name.decode("ascii", "replace")) in NAMES:
                found.setdefault(text, value[:_MOST_BYTES].decode("utf-8", "replace"))
    return found


def said(variables: Mapping[str, str]) -> dict[str, str]:
    """The columns of trace.identity that these variables say. OTEL_SERVICE_NAME goes before the attribute; what is no pair is passed over."""
    pairs = (pair.partition("=") for pair in variables.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","))
    attributes = {unquote(key.strip()): unquote(value.strip()) for key, sign, value in pairs if sign}
    return columns(attributes | {"service.name": variables.get("OTEL_SERVICE_NAME") or attributes.get("service.name", "")})


def columns(attributes: Mapping[str, str]) -> dict[str, str]:
    """The same of attributes by name: values are cut, and have no characters that a terminal would not show."""
    found = {}
    for name, column in OF_NAME.items():  # today's name of an attribute is the last of several
        if text := printable(attributes.get(name, "")[:LONGEST]).strip():
            found[column] = text
    return found

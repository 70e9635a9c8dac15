"""The lines of Python that load the agent, for the routes on which the target's interpreter does it."""

from pytrace_ebpf.record.agent.leftovers import FAILURE

# The interpreter's own loader of extension modules opens any library; ours is none, so it says that the function
# PyInit_ is missing, and leaves the library open. Nothing is imported for it and no name is left anywhere.
_SCRIPT = """\
try:
    __import__("_imp").create_dynamic(type("spec", (), {{"name": "pytrace_agent", "origin": {library!r}}}))
except ImportError as error:
    if "does not define" not in str(error):
        with open({failure!r}, "w") as file:
            file.write(str(error))
"""
SCRIPT = "begin.py"  # file in the session's directory


def script(session: str, arenas: str) -> str:
    """A script that loads the agent of the directory `session`, or says why not in `arenas`; to run it again does nothing."""
    return _SCRIPT.format(library=f"{session}/agent.so", failure=f"{arenas}/{FAILURE}")


def one_line(session: str) -> str:
    """An expression that runs the session's script and leaves no name where it is evaluated; short, for room is scarce."""
    path = f"{session}/{SCRIPT}"
    # A pending call that fails ends the program ("error return without exception set"): whatever goes wrong stays here.
    body = f"try:\n with open({path!r})as f:exec(f.read(),{{}})\nexcept:0"
    return f"exec({body!r},{{}})"

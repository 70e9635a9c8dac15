"""The fields of /proc/PID/stat, proc_pid_stat(5): a program's name, which stands in their midst, may hold blanks and brackets."""

STATE, PARENT, FLAGS, START, CPU = 0, 1, 6, 19, 36  # places in fields()
STACK, ARGUMENTS, VARIABLES, VARIABLES_END = 25, 45, 47, 48  # of those that are addresses


def fields(content: bytes) -> list[str]:
    """What follows the name; of an empty file nothing."""
    return content.decode(errors="replace").rpartition(")")[2].split()

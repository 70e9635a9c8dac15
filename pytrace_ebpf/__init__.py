"""Where did the wall time of every Python call go: on a core, in the run queue, waiting for the GIL, or blocked."""

__version__ = "0.1.0"

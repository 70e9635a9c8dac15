"""A C extension reports events of `sys.monitoring` of objects that are no code, as CPython's own tests have one: from 3.13 on."""
import _testcapi

from ready import done, ready


def step():
    pass


def report(event, *arguments):
    for _ in range(20):
        like = _testcapi.CodeLike(1)
        _testcapi.monitoring_enter_scope(like, event)
        getattr(_testcapi, FIRE[event])(like, 0, *arguments)
        _testcapi.monitoring_exit_scope()
        step()


# PY_START, PY_RESUME, PY_RETURN, PY_YIELD
FIRE = {0: "fire_event_py_start", 1: "fire_event_py_resume", 2: "fire_event_py_return", 3: "fire_event_py_yield"}

if __name__ == "__main__":
    ready()
    report(0)
    report(1)
    report(2, 42)
    report(3, 42)
    done(calls={"step": 80})

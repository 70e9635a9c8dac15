"""Imports: of modules, packages, a submodule by name, one that is not there, in a thread, and by importlib."""
import importlib
import sys
import threading

from ready import done, ready

begun = []


def hook(event, arguments):
    # A second argument is a file: the loader's own event.
    if event == "import" and arguments[1] is None:
        begun.append(arguments[0])


def plain():
    import colorsys
    import wave

    import colorsys as again


def nested():
    import xml.dom.minidom
    from xml.etree import ElementTree


def missing():
    try:
        import this_is_not_there
    except ImportError:
        pass


def threaded():
    import cmd


def by_importlib():
    importlib.import_module("sndhdr" if sys.version_info < (3, 13) else "rlcompleter")


def measured():
    sys.addaudithook(hook)
    plain()
    nested()
    missing()
    thread = threading.Thread(target=threaded)
    thread.start()
    thread.join()
    so_far = list(begun)
    by_importlib()
    return so_far


if __name__ == "__main__":
    before = set(sys.modules)
    ready()
    so_far = measured()
    new = sorted(set(sys.modules) - before)
    files = {name: getattr(sys.modules[name], "__file__", None) for name in new}
    done(imports=so_far, modules={name: file for name, file in files.items() if file})

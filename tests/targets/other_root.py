"""Executes programs in another root, in each way that there is: `other_root.py ROOT LIBRARY`. The library is there as it is here, and is preloaded, too."""
import os
import subprocess
import sys

from ready import done, ready, words

SAYS = "echo $LD_PRELOAD; exec true"


def step():
    pass


def enter():
    os.chroot(words()[0])
    os.chdir("/")


def executes():
    os.execv("/bin/sh", ["sh", "-c", SAYS])


def executes_with_a_copy_of_the_environment():
    os.execve("/bin/sh", ["sh", "-c", SAYS], dict(os.environ))


def has_it_run():
    os._exit(os.system(SAYS))


def has_a_child():
    os._exit(subprocess.call(["/bin/sh", "-c", SAYS]))


def inside(what):
    pid = os.fork()
    if not pid:
        try:
            enter()
            step()
            what()
        finally:
            os._exit(77)
    return os.waitpid(pid, 0)[1]


if __name__ == "__main__":
    ready()
    step()
    os.environ["LD_PRELOAD"] = ":".join(filter(None, [os.environ.get("LD_PRELOAD"), words()[1]]))
    failed = sum(inside(what) != 0 for what in (executes, executes_with_a_copy_of_the_environment, has_it_run, has_a_child))
    failed += subprocess.call(["/bin/sh", "-c", "exec true"], preexec_fn=enter) != 0
    failed += subprocess.call(["chroot", words()[0], "/bin/sh", "-c", SAYS]) != 0
    done(failed=failed, calls={"step": 5})

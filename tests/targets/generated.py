"""Functions made by exec and thrown away, so that new ones come to lie where old ones lay."""
import gc

from ready import done, ready, words

SOURCE = """
def made_{number}(n):
    return n if n < 1 else made_{number}(n - 1)
"""


def generation(number):
    names = {}
    exec(compile(SOURCE.format(number=number), "<made>", "exec"), names)
    names["made_%d" % number](number % 5)


def template(number):
    names = {}
    exec(compile("def same():\n    pass\n", "<template %d>" % number, "exec"), names)
    names["same"]()


if __name__ == "__main__":
    count = int(words()[0]) if words() else 1009
    addresses = set()
    ready()
    for number in range(count):
        generation(number)
        if number % 100 == 0:
            gc.collect()
    for number in range(101):
        template(number)
    calls = {"made_%d" % number: number % 5 + 1 for number in range(count)}
    done(calls=dict(calls, generation=count, template=101, same=101))

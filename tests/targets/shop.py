"""Functions of one module, some with a class around them and one with a namesake."""
from ready import done, ready


def free(a):
    return a


class Cart:
    def add(self, b):
        return Cart.inner(b)

    @staticmethod
    def inner(c):
        return [each for each in (c,)]


class Order:
    def add(self, d):
        return d


ready()
for _ in range(50):
    free(1)
    Cart().add(2)
    Order().add(3)
done()

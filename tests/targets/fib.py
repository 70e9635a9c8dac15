"""Plain recursion with a closed formula: fib(n) makes 2 * F(n + 1) - 1 calls."""
from ready import done, ready, words


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def calls(n):
    a, b = 0, 1
    for _ in range(n + 1):
        a, b = b, a + b
    return 2 * a - 1


if __name__ == "__main__":
    n = int(words()[0]) if words() else 15
    expected = calls(n)
    ready()
    value = fib(n)
    done(value=value, calls={"fib": expected})

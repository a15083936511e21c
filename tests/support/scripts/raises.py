import sys


def inner(depth):
    if depth == 0:
        raise ValueError(f"bad value {sys.argv[1:]}")
    inner(depth - 1)


def outer():
    try:
        inner(3)
    except ValueError as error:
        raise RuntimeError("outer failed") from error


outer()

"""Fails under torch's own @record."""

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    raise ValueError("recorded by torch")


main()

import multiprocessing
import sys


class Job:
    def __init__(self, n):
        self.n = n


def square(job):
    return job.n**2, job.__class__.__module__


if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(2) as pool:
        print(pool.map(square, [Job(n) for n in range(4)]))
    child = context.Process(target=sys.exit, args=(5,))
    child.start()
    child.join()
    print(child.exitcode, multiprocessing.current_process().name)

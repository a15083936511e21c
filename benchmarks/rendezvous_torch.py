"""torch's dynamic rendezvous for benchmarks/rendezvous.py: one thread for each agent.

    python rendezvous_torch.py AGENTS

Writes a JSON line when all are connected, and one that says how long they took to get their ranks, and to get
them again.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ftrun.launcher.store_client import import_torch


def main() -> None:
    """Measures twice and prints."""
    count = int(sys.argv[1])
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    import_torch()
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    with ThreadPoolExecutor(64) as pool:
        handlers = list(pool.map(lambda _: make_handler(server.port, count), range(count)))
    print("{}", flush=True)
    times_s = [form(handlers) for _ in range(2)]
    print(json.dumps({"form_s": times_s[0], "reform_s": times_s[1]}), flush=True)
    sys.stdin.readline()


def make_handler(port: int, count: int) -> Any:
    """What torchrun makes for --rdzv-backend c10d --nnodes COUNT."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    endpoint = f"127.0.0.1:{port}"
    parameters = RendezvousParameters(
        "c10d", endpoint, "benchmark", count, count, local_addr="127.0.0.1", is_host="false"
    )
    backend, store = create_backend(parameters)
    return create_handler(store, backend, parameters)


def form(handlers: list[Any]) -> float:
    """Seconds until every agent has its rank."""
    began = time.monotonic()
    threads = [threading.Thread(target=one.next_rendezvous, daemon=True) for one in handlers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - began


if __name__ == "__main__":
    main()

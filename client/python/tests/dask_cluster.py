#!/usr/bin/env python3
"""Clusters on the targets `one` and `two`; FLAGS are of `telexec exec`.

dask_cluster.py PID FLAG...: computes a graph while the agent of `two`, which has this PID, is killed; prints what it saw
dask_cluster.py wait FLAG...: says when a cluster runs, and waits
dask_cluster.py late: a process whose input ends when it has no more of Dask's handlers, as at its exit
"""

import os
import signal
import subprocess
import sys
import tempfile
import time

from dask.distributed import Client
from telexec import dask
from telexec.dask import TelexecCluster

# restores the handlers it found, as the scheduler and the workers do before they exit
LATE = """
import signal, time
found = signal.signal(signal.SIGTERM, lambda *_: None)
signal.signal(signal.SIGTERM, found)
print("restored", flush=True)
time.sleep(600)
"""


def slowly(number):
    time.sleep(0.1)
    return number * number


def until(what, condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.05)


def wait(options):
    with TelexecCluster(["one", "two"], n_workers=2, **options) as cluster, Client(cluster) as client:
        client.wait_for_workers(2, timeout=120)
        print("running", flush=True)
        time.sleep(600)


def compute(pid, options):
    with TelexecCluster(["one", "two"], n_workers=4, **options) as cluster, Client(cluster) as client:
        client.wait_for_workers(4, timeout=120)
        targets = sorted(worker._command.target for worker in cluster.workers.values())
        assert targets == ["one", "two", "two", "two"] or targets == ["one", "one", "two", "two"], targets
        futures = client.map(slowly, range(120))
        total = client.submit(sum, futures)
        until("some of it is done", lambda: sum(future.done() for future in futures) >= 10)
        os.kill(pid, signal.SIGKILL)
        assert total.result(timeout=120) == sum(number * number for number in range(120))
        # those whose agent is gone are replaced where there is one
        on_one = lambda: [worker._command.target for worker in list(cluster.workers.values())] == ["one"] * 4
        until("the lost workers are replaced", on_one)
        client.wait_for_workers(4, timeout=120)
        assert client.gather(client.map(slowly, range(8))) == [number * number for number in range(8)]
        processes = [cluster.scheduler, *cluster.workers.values()]
        cluster.scale(1)
        until("workers are gone", lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == 1)
    # each has ended by itself
    codes = [process._command.ended.result() for process in processes]
    assert codes == [0] * 5, codes
    print("computed, replaced, closed")


def late():
    with tempfile.TemporaryDirectory() as directory:
        with open(f"{directory}/late_module.py", "w") as module:
            module.write(LATE)
        words = [sys.executable, "-c", dask._WATCHED, "late_module"]
        with subprocess.Popen(words, cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"restored\n"
            process.stdin.close()
            code = process.wait(timeout=60)
            assert code == 0, code
    print("ended in order")


def main():
    options = {"python": sys.executable, "reconnect": "1s", "exec_flags": sys.argv[2:]}
    options["worker_flags"] = ["--nthreads", "1", "--memory-limit", "512MiB"]
    if sys.argv[1] == "wait":
        wait(options)
    elif sys.argv[1] == "late":
        late()
    else:
        compute(int(sys.argv[1]), options)


if __name__ == "__main__":
    main()

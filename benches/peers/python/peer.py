"""pottery and redlock-py, told what to do line by line: see ../src/child.rs."""

import os
import sys
import threading
import time

from redis import Redis

TTL = 30
HOLD = 0.005


class Pottery:
    """One object per resource, which keeps threads of its own for its nodes."""

    def __init__(self, urls):
        self.masters = {Redis.from_url(url) for url in urls}
        self.locks = {}

    def lock(self, resource):
        from pottery import Redlock

        if resource not in self.locks:
            self.locks[resource] = Redlock(key=resource, masters=self.masters, auto_release_time=TTL)
        return self.locks[resource]

    def acquire(self, resource, blocking=False):
        lock = self.lock(resource)
        if not lock.acquire(blocking=blocking):
            raise RuntimeError("not acquired")
        return lock.release


class RedlockPy:
    def __init__(self, urls):
        from redlock import Redlock

        self.once = Redlock(urls, retry_count=1, retry_delay=0.001)
        # Its own delay, and no end.
        self.patient = Redlock(urls, retry_count=1_000_000)

    def acquire(self, resource, blocking=False):
        manager = self.patient if blocking else self.once
        lock = manager.lock(resource, TTL * 1000)
        if not lock:
            raise RuntimeError("not acquired")
        return lambda: manager.unlock(lock)


def pair(client, resource):
    started = time.monotonic_ns()
    release = client.acquire(resource)
    acquired = time.monotonic_ns()
    release()
    return f"ok {acquired - started} {time.monotonic_ns() - acquired}"


def many(client, callers, millis):
    started, cpu = time.monotonic_ns(), time.process_time_ns()
    end = time.monotonic() + int(millis) / 1000
    pairs, failed = [0] * int(callers), []

    def work(caller):
        try:
            while time.monotonic() < end:
                client.acquire(f"many-{os.getpid()}-{caller}")()
                pairs[caller] += 1
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(caller,)) for caller in range(int(callers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return f"ok {sum(pairs)} {time.monotonic_ns() - started} {time.process_time_ns() - cpu}"


def turns(client, resource, millis):
    end = time.monotonic() + int(millis) / 1000
    holds = []
    while time.monotonic() < end:
        release = client.acquire(resource, blocking=True)
        start = time.monotonic_ns()
        time.sleep(HOLD)
        stop = time.monotonic_ns()
        release()
        holds.append(f"{start} {stop}\n")
    return "".join(holds) + "ok"


def main():
    kind, urls = sys.argv[1], sys.argv[2].split(",")
    client = {"pottery": Pottery, "redlock-py": RedlockPy}[kind](urls)
    print("ready", flush=True)
    for line in sys.stdin:
        verb, *rest = line.split()
        try:
            answer = {"pair": pair, "many": many, "turns": turns}[verb](client, *rest)
        except Exception as error:
            answer = f"failed {type(error).__name__}: {error}".replace("\n", " ")
        print(answer, flush=True)


main()

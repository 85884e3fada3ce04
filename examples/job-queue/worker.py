"""A worker: takes the lock of a stock, does the first job of its queue, and gives the lock back; over and over.

    python worker.py --redis URL --store FILE --name NAME --lease SECONDS --work SECONDS STOCK...

app.py starts it. It uses the helper in clients/python as any application would: nothing in it is for the page.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import redis

# In a checkout; a package that is installed comes first.
sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "clients" / "python"))

from redis_lock_client import Lock, LockError
from store import Store, TooLate


def lock_of(stock: str) -> str:
    """The key of the lock. The braces keep it in one cluster slot with the queue."""
    return f"example:{{{stock}}}:lock"


def jobs_of(stock: str) -> str:
    """The key of the queue of jobs: a list."""
    return f"example:{{{stock}}}:jobs"


def do_one_job(client: redis.Redis, store: Store, stock: str, name: str, *, lease: float, seconds: float) -> bool:
    """Waits for the lock, and does the first job. Whatever goes wrong, the job stays in the queue until it is done.

    False if there was no job.
    """
    with Lock(client, lock_of(stock), lease, note=name) as lock:
        job = lock.guard("LINDEX", jobs_of(stock), 0)
        if job is None:
            return False
        # The former holder may have died after its write, before it removed the job.
        if not store.has_done(job):
            amount = store.read(stock, lock.fence)
            # The work. The helper renews the lock meanwhile. A long loop would look at `lock.lost` and stop sooner.
            # This worker relies on the fence alone, so that the page can show what the fence is for.
            time.sleep(seconds * random.uniform(0.7, 1.3))
            store.write(stock, amount + 1, lock.fence, job, name)
        # In one step with the check that the lock is still held.
        lock.guard("LREM", jobs_of(stock), 1, job)
        return True


def end_with_parent() -> None:
    """Ends this process when app.py is gone: its end of the pipe is closed then."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(description="a worker of the example: app.py starts it")
    parser.add_argument("--redis", required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--lease", type=float, required=True)
    parser.add_argument("--work", type=float, required=True)
    parser.add_argument("stocks", nargs="+")
    args = parser.parse_args()

    # Ctrl-C at the terminal is for app.py, which then ends the workers. SystemExit lets `with` give the lock back.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    threading.Thread(target=end_with_parent, daemon=True).start()

    client = redis.Redis.from_url(args.redis, decode_responses=True)
    store = Store(args.store)
    for stock in itertools.cycle(args.stocks):
        try:
            if not do_one_job(client, store, stock, args.name, lease=args.lease, seconds=args.work):
                time.sleep(0.5)
        except TooLate as late:
            print(f"{args.name}: refused by the store: {late}", flush=True)
        except LockError as error:
            # LockLost too: the job stays in the queue, for the holder after this one.
            print(f"{args.name}: {error}", flush=True)
        except redis.RedisError as error:
            print(f"{args.name}: the lock server: {error}", flush=True)
            time.sleep(1)


if __name__ == "__main__":
    main()

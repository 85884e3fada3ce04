"""Clients for Python as they come: python traps.py LIBRARY PORT MODE. tests/guide/traps.rs says what the modes are."""

import asyncio
import importlib
import importlib.metadata
import sys
import threading

library, port, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
WAIT = ["LOCK.ACQUIRE", "traps", "client", "PX", "600000", "BLOCK", "600000"]
NULL, ERROR = ["LOCK.ACQUIRE", "traps", "other"], ["LOCK.ACQUIRE", "traps", "other", "PX", "0"]


def say(*words):
    # In one write: another thread may say something, too.
    print(" ".join(map(str, words)) + "\n", end="", flush=True)


def say_version():
    packages = {"redis-asyncio": "redis", "glide": "valkey-glide", "glide-sync": "valkey-glide-sync"}
    say("version", importlib.metadata.version(packages.get(library, library)))


def name(error):
    return f"{type(error).__module__.split('.')[0]}.{type(error).__name__}"


def in_threads(send):
    def wait():
        try:
            say("reply", repr(send(*WAIT)))
        except Exception as error:
            say("error", name(error), error)

    if mode == "wait":
        wait()
    elif mode == "shared":
        waiting = threading.Thread(target=wait)
        waiting.start()
        sys.stdin.readline()
        say("get sent")
        try:
            send("GET", "traps:other")
            say("get answered")
        except Exception:
            say("get failed")
        waiting.join()
    else:
        say_version()
        say("null", repr(send(*NULL)))
        try:
            send(*ERROR)
        except Exception as error:
            say("error", name(error), error)


async def in_tasks(send):
    async def wait():
        try:
            say("reply", repr(await send(*WAIT)))
        except Exception as error:
            say("error", name(error), error)

    if mode == "wait":
        await wait()
    elif mode == "shared":
        waiting = asyncio.create_task(wait())
        await asyncio.to_thread(sys.stdin.readline)
        say("get sent")
        try:
            await send("GET", "traps:other")
            say("get answered")
        except Exception:
            say("get failed")
        await waiting
    else:
        say_version()
        say("null", repr(await send(*NULL)))
        try:
            await send(*ERROR)
        except Exception as error:
            say("error", name(error), error)


async def asynchronous(module):
    client = importlib.import_module(f"{module}.asyncio").Redis(port=port)
    await in_tasks(client.execute_command)
    await client.aclose()


async def glide():
    from glide import GlideClient, GlideClientConfiguration, NodeAddress

    client = await GlideClient.create(GlideClientConfiguration([NodeAddress("127.0.0.1", port)]))
    await in_tasks(lambda *words: client.custom_command(list(words)))
    await client.close()


def glide_sync():
    from glide_sync import GlideClient, GlideClientConfiguration, NodeAddress

    client = GlideClient.create(GlideClientConfiguration([NodeAddress("127.0.0.1", port)]))
    in_threads(lambda *words: client.custom_command(list(words)))
    client.close()


match library:
    case "redis" | "valkey":
        client = getattr(importlib.import_module(library), library.capitalize())(port=port)
        in_threads(client.execute_command)
    case "redis-asyncio":
        asyncio.run(asynchronous("redis"))
    case "glide":
        asyncio.run(glide())
    case "glide-sync":
        glide_sync()

"""A gateway at work: publishes turns at a steady pace until its standard input ends, then says what became of them.

Usage: captures.py RUNTIME_DIR EVENTS_PER_SECOND SEED
"""

from __future__ import annotations

import asyncio
import json
import sys
from itertools import count
from pathlib import Path

# as in bench.py
sys.path[0] = str(Path(__file__).parents[1])

from bench.texts import Texts, turn_events  # noqa: E402
from recalld_client import Client  # noqa: E402

SESSIONS = 10


async def publish(runtime_dir: str, rate: float, seed: int) -> None:
    texts = Texts(seed)
    loop = asyncio.get_running_loop()
    ended = loop.run_in_executor(None, sys.stdin.read)
    sent = 0
    async with Client("captures", runtime_dir) as client:
        assert await client.ready(10)
        print("ready", flush=True)
        start = loop.time()
        for number in count():
            for type, event, ctx in turn_events(texts.exchange(), f"capture-{number % SESSIONS}", f"c{seed}-{number}"):
                await asyncio.sleep(max(0.0, start + sent / rate - loop.time()))
                client.emit(type, event, ctx)
                sent += 1
            if ended.done():
                break
        seconds = loop.time() - start
        await client.flush(10)
        print(json.dumps({"sent": sent, "unacknowledged": client.pending + client.lost, "rate": sent / seconds}))


if __name__ == "__main__":
    asyncio.run(publish(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))

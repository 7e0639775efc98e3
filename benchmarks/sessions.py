"""How much memory the explorer takes over many hours: sessions that each open one design after another, on all pages.

    python -m benchmarks.sessions [--sessions 50] [--runs 12000] [--pages answer,why,trust]

Each session is told to a server as a browser tells it, without the browser; all of them leave and come anew ten times.
12,000 runs are eight hours of fifty readers who change something every two minutes, one after the other: in eight hours
more than a few hardly ever do so in one second. Needs websockets.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from benchmarks.explorer import serve

PAGES = ("answer", "size", "why", "answer", "trust")
MODELS = ("llama3.1-8b", "qwen3-32b", "llama3.1-70b", "gpt-oss-120b", "deepseek-v3", "gemma3-12b")
DEVICES = ("h100", "h200", "a100-80gb", "l40s", "b200", "oaken-lpddr")
FORMATS = ("fp16", "fp8", "int4_per_token_head", "kivi", "oaken")
#: times that memory is told
LOOKS = 24
#: runs at once, of all sessions together
AT_ONCE = 3


def address(choice: random.Random) -> str:
    """The query of a design and a workload drawn at random."""
    drawn = {"model": MODELS, "device": DEVICES, "quantizer": FORMATS}
    asked = {name: choice.choice(values) for name, values in drawn.items()}
    numbers = {
        "batch": choice.randint(1, 200),
        "input": choice.randint(128, 16_000),
        "output": choice.randint(64, 2000),
    }
    return urlencode({**asked, **numbers})


async def run(socket: ClientConnection, page: str, query: str) -> None:
    """Open a page in a session, until its script has ended."""
    asked = BackMsg()
    asked.rerun_script.query_string = query
    asked.rerun_script.page_name = page
    await socket.send(asked.SerializeToString())
    async for content in socket:
        message = ForwardMsg.FromString(content)  # type: ignore[arg-type]
        if (
            message.WhichOneof("type") == "script_finished"
            and message.script_finished != ForwardMsg.FINISHED_EARLY_FOR_RERUN
        ):
            return


async def reader(
    server: str, seed: int, n_runs: int, pages: Sequence[str], places: asyncio.Semaphore, done: list[int]
) -> None:
    """Sessions of one reader, one after another, ten rounds in all."""
    choice = random.Random(seed)
    stream = server.replace("http", "ws") + "/_stcore/stream"
    opened = partial(connect, stream, origin=Origin(server), subprotocols=[Subprotocol("streamlit")])
    for _ in range(10):
        async with opened(max_size=None, open_timeout=600) as socket:
            for i in range(max(n_runs // 10, 1)):
                async with places:
                    await run(socket, pages[(seed + i) % len(pages)], address(choice))
                done.append(1)


def resident_mb(pid: int) -> float:
    """Memory of a process and of all that it has begun, in MB."""
    found = 0.0
    for one in (pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())):
        status = Path(f"/proc/{one}/status").read_text()
        found += int(status.partition("VmRSS:")[2].split()[0]) * 1024 / 1e6
    return found


async def watched(server: str, pid: int, sessions: int, n_runs: int, pages: Sequence[str]) -> None:
    """All readers, and the memory as they go on."""
    done: list[int] = []
    start, places = time.monotonic(), asyncio.Semaphore(AT_ONCE)
    share = n_runs // sessions
    readers = asyncio.gather(*(reader(server, seed, share, pages, places, done) for seed in range(sessions)))
    told = 0
    while not readers.done():
        await asyncio.sleep(1)
        if len(done) >= told * n_runs / LOOKS:
            hours, taken_s = 8 * len(done) / 12_000 * 50 / sessions, time.monotonic() - start
            print(f"{len(done):>7,} runs, as {hours:4.1f} h: {resident_mb(pid):6,.0f} MB {taken_s:6,.0f} s", flush=True)
            told += 1
    await readers
    print(f"{len(done):>7,} runs: {resident_mb(pid):,.0f} MB at the end")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--runs", type=int, default=12_000, help="of all sessions together")
    parser.add_argument("--pages", default=",".join(PAGES), help="in turn; a search on Size takes most of the time")
    given = parser.parse_args()
    process, server = serve("dse", "app", "--")
    try:
        asyncio.run(watched(server, process.pid, given.sessions, given.runs, given.pages.split(",")))
    finally:
        process.terminate()


if __name__ == "__main__":
    main()

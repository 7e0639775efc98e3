"""A sweep on a Dask cluster: the same parts, the same directory, the same bytes as on one machine.

Workers evaluate parts and send back their files as bytes (`dse.sweep.worker`); this process alone puts them into the
directory, as a local run does: written, synced, renamed. So no file system is shared, one lock is enough, and whatever
happens to workers or scheduler, what is in the directory is good. A part is asked for only when there is a thread to
take it, and fetched one at a time: memory here stays flat. `dask.delayed` would ask for all parts at once, hold their
bytes here, and fail as a whole.
"""

import asyncio
import contextlib
import ipaddress
import logging
import queue
import re
import signal
import tempfile
import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from dse.core import interrupt
from dse.core.errors import ClusterError, DseError, InputError, OutputError, clean, install, show
from dse.sweep import parts, run, store, worker
from dse.sweep.reading import StoredSweep
from dse.sweep.run import LOOK_S, check_limits, check_threads
from dse.sweep.spec import Sweep
from dse.sweep.store import Manifest, Part

INSTALL = install("cluster")
#: seconds until a scheduler must have answered, until it must have a first worker, and that it may be without any
CONNECT_S, FIRST_WORKER_S, NO_WORKER_S = 5.0, 10.0, 60.0
#: parts asked for, of each thread of the workers: one in work, one to go on with
PARTS_PER_THREAD = 2
#: seconds between two looks at how many threads there are, and until a part must have come over
WORKERS_LOOK_S, FETCH_S = 2.0, 60.0
#: failed parts that are named
MAX_NAMED = 10
_ADDRESS = re.compile(r"(tcp|tls)://(\[[0-9a-fA-F:.%]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")

Progress = Callable[[int, int], None]


def check_scheduler(scheduler: str, insecure: bool = False) -> int:
    """The workers that `local` or `local:WORKERS` starts, 0 for the address of a scheduler.

    Raises InputError for anything else, and for an address beyond this machine that is neither encrypted nor allowed
    by `insecure`: whoever reaches a scheduler, or answers in its place, runs code on workers and here.
    """
    prefix = f"scheduler = {show(scheduler)}"
    kind, colon, rest = str(scheduler).partition(":")
    if kind == "local":
        if not colon:
            return check_threads(None)
        if not re.fullmatch("[0-9]{1,9}", rest, re.ASCII) or not 1 <= int(rest) <= run.MAX_THREADS:
            raise InputError(f"{prefix}: workers must be a whole number from 1 to {run.MAX_THREADS:,}")
        return int(rest)
    match = _ADDRESS.fullmatch(str(scheduler))
    if not match or not 1 <= int(match[3]) <= 65535:
        raise InputError(f"{prefix}: must be local, local:WORKERS, tcp://HOST:PORT or tls://HOST:PORT")
    if match[1] == "tcp" and not insecure and not _is_here(match[2].strip("[]")):
        raise InputError(f"{prefix}: is not encrypted: use tls://, or --insecure-scheduler on a network you trust")
    return 0


def _is_here(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def to_directory(
    sweep: Sweep,
    out: str | Path,
    scheduler: str,
    insecure: bool = False,
    limits: bool = True,
    progress: Progress = lambda done, of: None,
    say: Callable[[str], None] = lambda line: None,
    ready: Callable[[], None] = lambda: None,
) -> StoredSweep:
    """`dse.sweep.run.to_directory` by the workers of a cluster.

    `scheduler` is the address of one, tcp://HOST:PORT or tls://HOST:PORT, or `local:WORKERS` for processes that are
    started here and end with the run. Raises what the local run raises; InputError where dask is missing, no scheduler
    answers, or a worker would write other bytes; ClusterError where parts failed or the cluster was lost: what is
    finished stays, and the same call goes on.
    """
    n_workers = check_scheduler(scheduler, insecure)
    try:
        import distributed  # noqa: F401

        if n_workers:
            import cryptography  # noqa: F401  makes the keys of workers that are started here
    except ImportError:
        raise InputError(f"scheduler = {show(scheduler)}: needs dask and cryptography: {INSTALL}") from None
    if limits:
        check_limits(sweep, out)
    if store.is_folder(out):
        store.check(Path(out), sweep)
    with _quiet(), _connected(scheduler, n_workers) as client:
        _check_workers(client)

        def write(folder: Path, sweep: Sweep, manifest: Manifest, todo: Sequence[int], progress: Progress) -> None:
            write_parts(client, folder, sweep, manifest, todo, progress)

        return run.to_directory(sweep, out, None, False, progress, say, ready, write)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Say nothing of lost workers and connections: they are expected, and what matters of them is said here."""
    families = ("distributed", "tornado", "asyncio")
    known = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if name.startswith(families)]
    audible = [logger for logger in known if not logger.disabled]
    for logger in audible:
        logger.disabled = True
    try:
        yield
    finally:
        for logger in audible:
            logger.disabled = False


@contextlib.contextmanager
def _connected(scheduler: str, n_workers: int) -> Iterator[Any]:
    """A client of the scheduler, or of a cluster of `n_workers` processes that lives as long."""
    from distributed import Client

    with contextlib.ExitStack() as stack:
        try:
            target = stack.enter_context(_local_cluster(n_workers)) if n_workers else _answering(scheduler)
            with warnings.catch_warnings():  # of other versions: `_check_workers` has the say
                warnings.simplefilter("ignore")
                client = stack.enter_context(Client(target, timeout=CONNECT_S, set_as_default=False))
        except Exception as error:  # of many kinds: no route, a port of something else, another version, no certificate
            if n_workers:
                raise ClusterError([f"workers could not be started ({_reason(error)}): try again"]) from error
            reason = f"nothing in {CONNECT_S:g} s" if isinstance(error, TimeoutError) else _reason(error)
            raise InputError(
                f"scheduler = {show(scheduler)}: no Dask scheduler answers there ({reason}): start one, see "
                "docs/reference/sweeps.md, On a cluster"
            ) from error
        try:
            client.wait_for_workers(1, timeout=FIRST_WORKER_S)
        except TimeoutError:
            raise InputError(
                f"scheduler = {show(scheduler)}: has no workers: start `dask worker {scheduler}`"
            ) from None
        yield client


def _answering(scheduler: str) -> str:
    """The address again, once something there speaks Dask's protocol: a client would wait for ever for the first word.

    Raises OSError or TimeoutError, in time.
    """
    from distributed import Security
    from distributed.comm import connect

    async def greet() -> None:
        options = Security().get_connection_args("client")
        comm = await asyncio.wait_for(connect(scheduler, timeout=CONNECT_S, **options), CONNECT_S)
        comm.abort()

    with ThreadPoolExecutor(1) as pool:  # this thread may run a loop already, as a notebook does
        pool.submit(asyncio.run, greet()).result()
    return scheduler


@contextlib.contextmanager
def _local_cluster(n_workers: int) -> Iterator[Any]:
    """Processes of one thread, reached through 127.0.0.1 alone, without a dashboard or any other page.

    Other users of this machine reach 127.0.0.1 as well, and a scheduler runs the code of whoever connects: keys that
    are made here and that only this run and its workers hold let nobody else in.
    They do not see the Ctrl-C that a terminal sends to all: SIGINT is blocked in the thread that starts them, now and
    after a loss, and they inherit that.
    """
    import dask
    from distributed import LocalCluster, Security

    with contextlib.ExitStack() as stack:
        routes: dict[str, list[str]] = {f"distributed.{kind}.http.routes": [] for kind in ("scheduler", "worker")}
        stack.enter_context(dask.config.set(routes))
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="dse-", ignore_cleanup_errors=True))
        resource_tracker.ensure_running()  # of multiprocessing: starting it later would unblock the signal
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            cluster = stack.enter_context(
                LocalCluster(
                    n_workers=n_workers,
                    threads_per_worker=1,
                    host="127.0.0.1",
                    security=Security.temporary(),
                    dashboard_address=None,
                    scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
                    memory_limit=0,
                    local_directory=scratch,
                    silence_logs=logging.CRITICAL,
                )
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if n_workers:  # a worker that is killed while it starts is replaced by nobody else
            cluster.adapt(minimum=n_workers, maximum=n_workers)
        yield cluster


def _check_workers(client: Any) -> None:
    """Raises InputError where a worker would write other bytes than this process."""
    wanted = worker.versions()
    for address, versions in sorted(client.run(worker.versions, on_error="return").items()):
        if isinstance(versions, Exception):
            raise _refused(address, _reason(versions))
        if text := worker.differences(versions, wanted):
            raise _refused(address, text)


def _refused(address: str, text: str) -> InputError:
    return InputError(f"worker {clean(address, 60)} has {text}: install there what runs here, or stop it")


def _reason(error: BaseException) -> str:
    from distributed.scheduler import KilledWorker

    if isinstance(error, KilledWorker):
        return "its workers were killed, or ran out of memory"
    return worker.in_words(error)


def write_parts(
    client: Any,
    folder: Path,
    sweep: Sweep,
    manifest: Manifest,
    todo: Sequence[int],
    progress: Progress = lambda done, of: None,
) -> None:
    """Have the parts of `todo` made by workers, and write them, and the manifest beside them.

    A part that fails is tried again at the end, alone, so that no other is blamed for the workers it kills.
    """
    try:
        failed = _round(client, folder, sweep, manifest, todo, progress)
        for number in sorted(failed):
            if not _round(client, folder, sweep, manifest, [number], progress):
                del failed[number]
    except BaseException as error:
        with contextlib.suppress(DseError):
            manifest.write(folder)
        if isinstance(error, OutputError):
            raise run.unwritable(error, manifest) from error
        if isinstance(error, OSError):
            raise ClusterError([f"{error}: {_so_far(manifest)}: the same command goes on"]) from error
        raise
    manifest.write(folder)
    if failed:
        lines = [f"{_points(sweep, number)} failed each time: {text}" for number, text in sorted(failed.items())]
        more = [f"and {len(lines) - MAX_NAMED:,} more parts"] if len(lines) > MAX_NAMED else []
        raise ClusterError([*lines[:MAX_NAMED], *more, f"{_so_far(manifest)}: the same command tries the rest again"])


def _points(sweep: Sweep, number: int) -> str:
    first = number * sweep.part_points
    last = min(first + sweep.part_points, sweep.n_points) - 1
    return f"{store.part_name(number)} (points {first:,} to {last:,})"


def _so_far(manifest: Manifest) -> str:
    return f"{len(manifest.parts):,} of {manifest.n_parts:,} parts are done"


class _FailedError(Exception):
    """A part that its worker could not make."""


class _Threads:
    """The threads of all workers, looked up now and then."""

    def __init__(self, client: Any) -> None:
        self.client, self.n_threads = client, 0
        self.looked_at, self.seen_at = float("-inf"), time.monotonic()

    def count(self) -> int:
        """Threads of the cluster's workers. Raises ConnectionError when the scheduler or the last worker is gone."""
        now = time.monotonic()
        if self.client.status != "running":
            raise ConnectionError("the connection to the scheduler was lost")
        if now - self.looked_at > WORKERS_LOOK_S:
            cores = self.client.sync(self.client.scheduler.ncores, callback_timeout=CONNECT_S)
            self.n_threads, self.looked_at = sum(cores.values()), now
        if self.n_threads:
            self.seen_at = now
        elif now - self.seen_at > NO_WORKER_S:
            raise ConnectionError("all workers are gone")
        return self.n_threads


def _round(
    client: Any, folder: Path, sweep: Sweep, manifest: Manifest, numbers: Sequence[int], progress: Progress
) -> dict[int, str]:
    """Try each part once; the reasons of those that failed. Raises OSError where the cluster is lost."""
    packed, wanted = worker.pack(sweep), worker.versions()
    name = f"dse-{sweep.sha256[:12]}-{uuid.uuid4().hex[:12]}"
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    running: dict[int, Any] = {}
    failed: dict[int, str] = {}
    waiting, threads, written_at = deque(numbers), _Threads(client), time.monotonic()
    try:
        while waiting or running:
            most = PARTS_PER_THREAD * threads.count()
            while waiting and len(running) < most:
                number = waiting.popleft()
                running[number] = client.submit(
                    worker.make_part, packed, number, wanted, key=f"{name}-{number}", pure=False
                )
                running[number].add_done_callback(lambda future, number=number: ended.put(number))
            interrupt.look()
            progress(sum(part.last - part.first for part in manifest.parts.values()), sweep.n_points)
            try:
                number = ended.get(timeout=LOOK_S)
            except queue.Empty:
                continue
            try:
                part, content = _fetched(running[number])
                if not worker.is_intact(part, content, sweep, number):
                    raise _FailedError("it arrived damaged")
                parts.publish(folder, part, content)
                manifest.parts[number] = part
                del content
            except TimeoutError:  # its worker is gone, and it is being made again
                ended.put(number)
                continue
            except _FailedError as error:
                failed[number] = str(error)
            del running[number]
            if running and time.monotonic() - written_at > run.MANIFEST_S:
                manifest.write(folder)
                written_at = time.monotonic()
        progress(sum(part.last - part.first for part in manifest.parts.values()), sweep.n_points)
        return failed
    finally:
        if running:
            with contextlib.suppress(Exception):
                client.cancel(list(running.values()))


def _fetched(future: Any) -> tuple[Part, bytes]:
    """Result of a task. Raises _FailedError where it failed, TimeoutError where its result has not arrived,
    ConnectionError where the scheduler is lost, InputError where its worker is of another version, or where the sweep
    itself is refused, as a local run would."""
    problem: BaseException | None = None
    try:
        made: worker.Made = future.result(timeout=FETCH_S)
    except (Exception, CancelledError) as error:
        if future.status in ("cancelled", "lost"):
            raise ConnectionError("the connection to the scheduler was lost") from error
        if isinstance(error, TimeoutError) and future.status != "error":
            raise
        problem = error
    if problem is not None:
        raise _FailedError(_reason(problem))
    if made.mismatch:
        raise _refused("of this cluster", made.mismatch)
    if made.refusal:
        raise InputError(made.refusal)
    if made.part is None:
        raise _FailedError(made.failure)
    return made.part, made.content

"""A sweep on a Dask cluster: the bytes of a local run, whatever happens to workers and scheduler."""

import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import dask
import distributed
import psutil
import pytest

import dse
from dse.core.errors import ClusterError, InputError, OutputError
from dse.sweep import cluster as sweep_cluster
from dse.sweep import front as sweep_front
from dse.sweep import parts as sweep_parts
from dse.sweep import points as sweep_points
from dse.sweep import run as sweep_run
from dse.sweep import spec as sweep_spec
from dse.sweep import store as sweep_store
from dse.sweep import worker as sweep_worker
from dse.sweep.pareto import limits as pareto_limits
from factories import SMALL_SWEEP, fast_points, files_of

#: what every worker of these tests runs first: eight points a part, results that cost nothing, and faults as `faults`
#: asks for: parts that raise, parts that kill their worker, seconds that each takes
PRELOAD = """
import json, os, signal, time
from pathlib import Path
from dse.sweep import parts as sweep_parts, points as sweep_points, spec as sweep_spec
from factories import fast_points

sweep_spec.MIN_PART_POINTS = 8
sweep_points.evaluate_points = fast_points
sweep_parts.real = getattr(sweep_parts, "real", sweep_parts.make_part)  # this may run twice

def with_holes(sweep, digits, check=None):
    columns = fast_points(sweep, digits, check)
    columns["throughput_tokens_per_s"][:] = float("nan")
    return columns

def make_part(sweep, number):
    faults = json.loads(Path({faults!r}).read_text())
    time.sleep(faults.get("seconds", 0))
    if number in faults.get("kill", []):
        os.kill(os.getpid(), signal.SIGKILL)
    if number in faults.get("raise", []):
        raise ValueError("no such luck\\nat all")
    sweep_points.evaluate_points = with_holes if faults.get("missing") else fast_points
    return sweep_parts.real(sweep, number)

sweep_parts.make_part = make_part
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two processes as `--scheduler local:2` starts them, but open to all, as a scheduler with an address; and a file
    of faults.
    """
    folder = tmp_path_factory.mktemp("cluster")
    preload, faults = folder / "preload.py", folder / "faults.json"
    preload.write_text(PRELOAD.format(faults=str(faults)))
    faults.write_text("{}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed.Security, "temporary", distributed.Security)
        with dask.config.set({"distributed.worker.preload": [str(preload)]}), sweep_cluster._local_cluster(2) as found:
            patch.undo()
            yield found, faults


@pytest.fixture
def small(monkeypatch):
    """Eight points a part, a manifest after each."""
    monkeypatch.setattr(sweep_spec, "MIN_PART_POINTS", 8)
    monkeypatch.setattr(sweep_run, "MANIFEST_S", 0.0)
    monkeypatch.setattr(sweep_cluster, "FIRST_WORKER_S", 60.0)  # on a busy machine those that were killed are long away
    monkeypatch.setattr(sweep_points, "evaluate_points", fast_points)
    return sweep_spec.from_dict(SMALL_SWEEP)


@pytest.fixture
def whole(small, tmp_path):
    """The files of a local run; 160 points in 20 parts."""
    dse.sweep(small, tmp_path / "whole", threads=1)
    return files_of(tmp_path / "whole")


@pytest.fixture
def ask(cluster):
    """Set the faults of the workers; none afterwards."""
    yield lambda **faults: cluster[1].write_text(json.dumps(faults))
    cluster[1].write_text("{}")


@pytest.mark.slow
def test_the_same_bytes_and_nothing_beyond_this_machine(cluster, small, whole, tmp_path):
    seen, open_at = [], set()

    def progress(done, of):
        seen.append(done)
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        open_at.update(c.laddr.ip for p in processes for c in p.net_connections() if c.status == "LISTEN")

    done = sweep_cluster.to_directory(small, tmp_path / "out", cluster[0].scheduler_address, progress=progress)
    assert files_of(done.folder) == whole
    assert seen == sorted(seen)
    assert (seen[0], seen[-1], done.n_written) == (0, small.n_points, 20)
    assert open_at == {"127.0.0.1"}
    again = dse.sweep(small, tmp_path / "out", scheduler=cluster[0].scheduler_address)
    assert again.n_written == 0


@pytest.mark.slow
def test_workers_are_killed(cluster, ask, small, whole, tmp_path):
    """One of two, with parts in work and parts done but not fetched: whatever it had is made again."""
    ask(seconds=0.02)
    before = _workers(cluster)

    def kill():
        while not list((tmp_path / "out").glob("part-*")):
            time.sleep(0.01)
        os.kill(max(before), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    done = dse.sweep(small, tmp_path / "out", scheduler=cluster[0].scheduler_address)
    killer.join()
    assert done.n_written == 20
    assert files_of(done.folder) == whole
    assert max(before) not in _workers(cluster)
    for pid in _workers(cluster):  # the Ctrl-C of a terminal reaches every process: all of them leave it to this one
        status = Path(f"/proc/{pid}/status")
        if status.exists():
            blocked = int(status.read_text().split("SigBlk:")[1].split()[0], 16)
            assert blocked >> (signal.SIGINT - 1) & 1


def _workers(cluster):
    return {nanny.pid for nanny in cluster[0].workers.values() if nanny.pid}


@pytest.mark.slow
def test_parts_that_always_fail_are_named_and_the_rest_finishes(cluster, ask, small, whole, tmp_path, monkeypatch, run):
    monkeypatch.setattr(cluster[0].scheduler, "allowed_failures", 0)
    monkeypatch.chdir(tmp_path)
    Path("spec.json").write_text(json.dumps(SMALL_SWEEP))
    ask(**{"raise": [3], "kill": [11]})
    command = ("sweep", "spec.json", "--out", "out", "--scheduler", cluster[0].scheduler_address)
    status, out, err = run(*command)
    assert status == 4
    assert "sweep: out" not in out
    assert err.splitlines() == [
        "error: part-000003.parquet (points 24 to 31) failed each time: ValueError: no such luck",
        "error: part-000011.parquet (points 88 to 95) failed each time: its workers were killed, or ran out of memory",
        "error: 18 of 20 parts are done: the same command tries the rest again",
    ]
    parts = set(whole) - {"part-000003.parquet", "part-000011.parquet", "_manifest.json"}
    assert {name: whole[name] for name in parts} == {
        name: content for name, content in files_of("out").items() if name != "_manifest.json"
    }
    ask()
    status, out, err = run(*command, "--json")
    assert (status, err, json.loads(out)["n_parts_written"]) == (0, "", 2)
    assert files_of("out") == whole


@pytest.mark.slow
def test_ctrl_c(cluster, small, whole, tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    Path("spec.json").write_text(json.dumps(SMALL_SWEEP))
    address = cluster[0].scheduler_address

    @contextlib.contextmanager
    def interrupting(console, n_points):
        def progress(done, of):
            if done >= 24:
                raise KeyboardInterrupt

        yield progress

    from dse.operations import sweeps

    with monkeypatch.context() as patch:
        patch.setattr(sweeps, "_bar", interrupting)
        status, _, err = run("sweep", "spec.json", "--out", "out", "--scheduler", address)
    assert status == 130
    assert err == f"stopped: finished parts are kept: `dse sweep spec.json --out out --scheduler {address}` goes on\n"
    _, manifest = sweep_store.manifest_of(Path("out"))
    assert len(manifest.parts) == 3
    assert dse.sweep(small, "out").n_written == 17  # a local run goes on as well
    assert files_of("out") == whole


@pytest.mark.slow
def test_a_disk_that_is_full(cluster, small, whole, tmp_path, monkeypatch):
    real, calls = os.replace, []

    def failing(*args, **options):
        calls.append(1)
        if len(calls) > 9:
            raise OSError(28, "No space left on device")
        return real(*args, **options)

    address = cluster[0].scheduler_address
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        with pytest.raises(OutputError, match=r"no space left on device: \d of 20 parts are done: free space"):
            dse.sweep(small, tmp_path / "out", scheduler=address)
    assert dse.sweep(small, tmp_path / "out", scheduler=address).n_written > 10
    assert files_of(tmp_path / "out") == whole


@pytest.fixture
def newer(monkeypatch):
    """This process has other versions than the workers."""
    monkeypatch.setattr(sweep_worker, "VERSION", "9.9")
    monkeypatch.setattr(sweep_worker, "_formulas", lambda: "0" * 64)
    sweep_worker.versions.cache_clear()
    yield
    sweep_worker.versions.cache_clear()


@pytest.mark.slow
def test_workers_of_another_version(cluster, newer, small, tmp_path, monkeypatch):
    address, text = (
        cluster[0].scheduler_address,
        "has dse [0-9.]+ instead of 9.9, formulas [0-9a-f]{12} instead of 0000",
    )
    with pytest.raises(InputError, match=rf"worker tcp://127.0.0.1:\d+ {text}"):
        dse.sweep(small, tmp_path / "out", scheduler=address)
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(sweep_cluster, "_check_workers", lambda client: None)  # one that joins later
    with pytest.raises(InputError, match=f"worker of this cluster {text}"):
        dse.sweep(small, tmp_path / "out", scheduler=address)


@pytest.mark.slow
def test_a_scheduler_that_goes_away_and_one_without_workers(cluster, small, whole, tmp_path, monkeypatch):
    import dask
    from distributed import LocalCluster

    def progress(done, of):
        if done >= 24:
            other.close()

    options = {"processes": False, "host": "127.0.0.1", "protocol": "tcp", "dashboard_address": "127.0.0.1:0"}
    with (
        dask.config.set({"distributed.worker.preload": []}),
        LocalCluster(n_workers=1, threads_per_worker=1, **options) as other,
    ):
        address = other.scheduler_address
        with pytest.raises(ClusterError, match=r"scheduler was lost: 3 of 20 parts are done: the same command goes on"):
            sweep_cluster.to_directory(small, tmp_path / "out", address, progress=progress)
    assert dse.sweep(small, tmp_path / "out").n_written == 17
    assert files_of(tmp_path / "out") == whole
    monkeypatch.setattr(sweep_cluster, "FIRST_WORKER_S", 0.1)
    with (
        LocalCluster(n_workers=0, **options) as empty,
        pytest.raises(InputError, match="has no workers: start `dask w"),
    ):
        dse.sweep(small, tmp_path / "new", scheduler=empty.scheduler_address)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("listens", [False, True])
def test_no_scheduler(small, tmp_path, monkeypatch, run, listens):
    monkeypatch.setattr(sweep_cluster, "CONNECT_S", 0.3)
    monkeypatch.chdir(tmp_path)
    Path("spec.json").write_text(json.dumps(SMALL_SWEEP))
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        if listens:
            mute.listen()
        address = f"tcp://127.0.0.1:{mute.getsockname()[1]}"
        status, out, err = run("sweep", "spec.json", "--out", "out", "--scheduler", address)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: scheduler = '{address}': no Dask scheduler answers there")
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["local:0"], "workers must be a whole number from 1 to 1,024"),
        (["local:many"], "workers must be a whole number"),
        (["localhost:8786"], "must be local, local:WORKERS, tcp://HOST:PORT or tls://HOST:PORT"),
        (["tcp://10.0.0.5"], "must be local, local:WORKERS"),
        (["tcp://10.0.0.5:99999"], "must be local, local:WORKERS"),
        (["http://10.0.0.5:80"], "must be local, local:WORKERS"),
        (["tcp://user@10.0.0.5:8786"], "must be local, local:WORKERS"),
        (["tcp://10.0.0.5:8786"], "is not encrypted: use tls://, or --insecure-scheduler on a network you trust"),
        (["tcp://cluster.example:8786"], "is not encrypted"),
        (["local:2", "--threads", "2"], "threads: are those of the workers"),
    ],
)
def test_bad_arguments(tmp_path, monkeypatch, run, args, text):
    monkeypatch.chdir(tmp_path)
    Path("spec.json").write_text(json.dumps(SMALL_SWEEP))
    status, out, err = run("sweep", "spec.json", "--out", "out", "--scheduler", *args)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert text in err
    assert not Path("out").exists()


@pytest.mark.slow
def test_workers_started_here_obey_nobody_without_the_keys_of_the_run():
    """127.0.0.1 is open to every user of a machine, and whoever a scheduler or worker listens to runs code there."""
    with sweep_cluster._local_cluster(1) as found:
        assert_closed(found)
        with distributed.Client(found, set_as_default=False) as own:
            assert own.submit(abs, -1).result(timeout=60) == 1


def assert_closed(found):
    scheduler = found.scheduler
    ports = {worker.process.worker_address for worker in found.workers.values()}
    addresses = {scheduler.address, *(nanny.address for nanny in found.workers.values()), *ports}
    assert {address.partition("://")[0] for address in addresses} == {"tls"}
    security = distributed.Security.temporary()  # another run's
    for address in addresses:
        plain = address.replace("tls://", "tcp://")
        for target, keys in ((plain, None), (address, security)):
            with pytest.raises((OSError, TimeoutError)):
                distributed.Client(target, timeout=3, security=keys, set_as_default=False)
    own = psutil.Process()
    listening = {
        connection.laddr
        for process in (own, *own.children(recursive=True))
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert {place.ip for place in listening} == {"127.0.0.1"}
    for place in listening:
        try:
            with socket.create_connection(place, timeout=3) as raw:
                raw.settimeout(3)
                raw.sendall(b"GET /info/main/workers.html HTTP/1.0\r\n\r\n")
                answer = raw.recv(100)
        except OSError:
            continue
        assert not answer.startswith(b"HTTP/1.1 200"), place


@pytest.mark.parametrize("address", ["tcp://127.0.0.9:1", "tcp://[::1]:1", "tcp://localhost:1", "tls://10.0.0.5:1"])
def test_addresses_that_need_no_permission(address):
    assert sweep_cluster.check_scheduler(address) == 0
    assert sweep_cluster.check_scheduler("tcp://10.0.0.5:1", insecure=True) == 0


def test_without_dask(small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"needs dask and cryptography: pip install 'kv-dse\[cluster\]'"):
        dse.sweep(small, tmp_path / "out", scheduler="local:1")
    with pytest.raises(InputError, match="need a directory `out`"):
        dse.sweep(small, scheduler="local:1")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("bits", ["closed", "measured"])
def test_a_sweep_that_was_sent_is_the_same(bits):
    """Every kind of axis and item crosses; what was built on the way here does not."""
    found = sweep_spec.from_dict(
        {
            "axes": {
                "device": ["h100", "oaken-lpddr"],
                "memory_bandwidth": ["2 TB/s", "3 TB/s"],
                "model": ["llama2-7b", "mixtral-8x7b-oaken"],
                "key_quantizer": ["fp16", "oaken", "oaken:outer=0.02"],
                "value_quantizer": ["kivi", "fp16"],
                "oaken.outer": [0.01, 0.05],
                "tokens": ["full", "window:tokens=512"],
                "admission": ["reserve", "paged"],
                "batch": [1, 64],
            },
            "where": ["batch * memory_bandwidth < 1e14", "key_quantizer != 'fp16' or batch == 1"],
            "keep": "all",
            "bits": bits,
            "title": "All",
        }
    )
    found.designs, found.case  # noqa: B018
    sent = sweep_worker.unpack(sweep_worker.pack(found))
    assert sent.sha256 == found.sha256
    assert (sent.n_points, sent.title) == (found.n_points, "All")
    few = slice(0, found.n_points, 7)
    digits = {name: column[few] for name, column in sweep_points.kept_digits(found, 0, found.n_points).items()}
    ours, theirs = (sweep_points.evaluate_rows(one, digits) for one in (found, sent))
    assert repr(ours) == repr(theirs)


def test_a_worker_makes_the_front_that_was_asked_for(small):
    limits = pareto_limits.parse(["batch=16"], ["stored_bits=3"])
    found = sweep_front.asked(small, ["throughput_tokens_per_s"], ["kv_bytes"], ["model"], True, limits)
    sent = sweep_worker.unpack(sweep_worker.pack(found))
    assert (sent.front, sent.sha256) == (found.front, found.sha256)
    for number in (0, 3):
        part, content = sweep_parts.make_part(found, number)
        made = sweep_worker.make_part(sweep_worker.pack(found), number, sweep_worker.versions())
        assert (made.part, made.content, made.failure) == (part, content.to_pybytes(), "")
        assert sweep_worker.is_intact(made.part, made.content, found, number)
        assert not sweep_worker.is_intact(made.part, made.content, small, number)


@pytest.mark.slow
def test_what_is_wrong_with_the_sweep_ends_it_as_on_one_machine(small, cluster, ask, tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    Path("spec.json").write_text(json.dumps(SMALL_SWEEP))
    ask(missing=True)
    front = ("--keep", "front", "--maximize", "throughput_tokens_per_s")
    command = ("sweep", "spec.json", "--out", "out", *front, "--scheduler", cluster[0].scheduler_address)
    status, _, err = run(*command)
    assert status == 2
    assert re.fullmatch(
        r"error: point [\d,]+: throughput_tokens_per_s is missing: leave such points out with --drop-missing, "
        r"or choose another objective\n",
        err,
    )
    assert not Path("out/front.parquet").exists()


def test_what_came_back_is_looked_at(small):
    part, content = sweep_parts.make_part(small, 3)
    content = content.to_pybytes()
    assert sweep_worker.is_intact(part, content, small, 3)
    assert not sweep_worker.is_intact(part, content, small, 4)
    assert not sweep_worker.is_intact(part, content[:-1] + b"?", small, 3)

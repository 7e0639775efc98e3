"""Where a config.json comes from: paths, the cache of the Hugging Face libraries, and a hub that may do anything."""

import http.server
import json
import os
import socket
import threading
import time

import pytest

from cases import each
from dse.core import specfile
from dse.core.errors import InputError
from dse.specs import catalog, hub

COMMIT, OTHER = "0123456789" * 4, "ab" * 20
CONFIG = json.dumps(
    {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 100,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }
).encode()
ASKED = "/org/tiny/resolve/main/config.json"


class Hub(http.server.ThreadingHTTPServer):
    """A hub of one answer, which notes what it is asked."""

    daemon_threads = True
    status = 200
    headers: tuple[tuple[str, str], ...] = (("X-Repo-Commit", COMMIT),)
    body = CONFIG
    #: the length it says, where that is not the body's; None: it says none
    length: int | str | None = ""
    seconds_a_byte = 0.0
    chunked = False

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str | None]] = []
        #: path -> status and address
        self.redirects: dict[str, tuple[int, str]] = {}

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """A reader that has gone is what some tests are about."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *args):
        pass

    def do_GET(self):
        it = self.server
        it.asked.append((self.path, self.headers.get("Authorization")))
        self.close_connection = True
        if self.path in it.redirects:
            status, to = it.redirects[self.path]
            self.send_response(status)
            self.send_header("Location", to)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(it.status)
        for name, value in it.headers:
            self.send_header(name, value)
        if it.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif it.length is not None:
            self.send_header("Content-Length", str(len(it.body) if it.length == "" else it.length))
        self.end_headers()
        if it.chunked:
            for start in range(0, len(it.body), 65_536):
                part = it.body[start : start + 65_536]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
            return
        parts = [it.body[i : i + 1] for i in range(len(it.body))] if it.seconds_a_byte else [it.body]
        for part in parts:
            self.wfile.write(part)
            time.sleep(it.seconds_a_byte)


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """No settings of who runs the tests, an empty cache, and no proxy before the local hub."""
    for name in ("HF_TOKEN", "HF_ENDPOINT", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture
def server():
    found = Hub()
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()
    thread.join()


def fetch(server, name="org/tiny", seconds=10.0, **asked):
    return hub.find(name, from_hub=True, hub=server.address, seconds=seconds, **asked)


def refused(*args, **asked):
    with pytest.raises(InputError) as error:
        fetch(*args, **asked)
    (line,) = error.value.lines()
    assert len(line) < 300
    return line


def test_one_file_is_fetched(server):
    found = fetch(server)
    assert server.asked == [(ASKED, None)]
    assert (found.name, found.revision) == ("tiny", COMMIT)
    assert found.source == "config.json of org/tiny (from 127.0.0.1)"
    assert catalog.model_from(found.document).n_layers == 2


def test_the_hub_is_that_of_the_environment_and_only_where_asked(server, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", server.address + "/mirror/")
    with pytest.raises(InputError, match="--from-hub fetches its"):
        hub.find("org/tiny")
    assert not server.asked
    hub.find("org/tiny", revision="refs/pr/1", from_hub=True)
    assert server.asked == [("/mirror/org/tiny/resolve/refs%2Fpr%2F1/config.json", None)]


def test_a_name_without_an_organisation_and_a_hub_without_commits(server):
    server.headers = ()
    found = fetch(server, "tiny", revision="v1.0")
    assert server.asked == [("/tiny/resolve/v1.0/config.json", None)]
    assert found.revision == "v1.0"


@pytest.mark.parametrize(
    ("status", "parts"),
    [
        (401, ["HTTP 401", "gated, private or misspelt", "set HF_TOKEN"]),
        (403, ["HTTP 403", "set HF_TOKEN"]),
        (404, ["HTTP 404", "not there at revision main", "--revision"]),
        (429, ["HTTP 429", "wait"]),
        (503, ["HTTP 503", "try again later"]),
        (418, ["HTTP 418", "check the name"]),
        (204, ["HTTP 204", "--hub"]),
        (304, ["HTTP 304"]),
    ],
)
def test_what_a_hub_refuses(server, status, parts):
    server.status = status
    line = refused(server)
    assert line.startswith("org/tiny/config.json: ")
    assert all(part in line for part in parts), line


def test_the_token_is_sent_to_the_hub_alone_and_never_shown(server, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    other = Hub()
    threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    server.redirects = {ASKED: (307, "/there"), "/there": (302, f"{other.address}/elsewhere")}
    assert fetch(server).name == "tiny"
    other.shutdown()
    other.server_close()
    assert server.asked == [(ASKED, "Bearer hf_secret"), ("/there", "Bearer hf_secret")]
    assert other.asked == [("/elsewhere", None)]
    server.redirects, server.status = {}, 401
    line = refused(server)
    assert "that HF_TOKEN has access" in line
    assert "secret" not in line
    for bad in ("hf_secret\nX-More: 1", "hf_sécret", "hf_secret hf"):
        monkeypatch.setenv("HF_TOKEN", bad)
        line = refused(server)
        assert "HF_TOKEN: holds characters" in line
        assert "cret" not in line


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed(server, status):
    server.redirects = {ASKED: (status, "/org/renamed/resolve/main/config.json")}
    assert fetch(server).revision == COMMIT


def test_redirects_end(server):
    server.redirects = {ASKED: (302, ASKED)}
    assert "redirects more than 5 times" in refused(server)
    assert len(server.asked) == 6


@pytest.mark.parametrize(
    "to",
    [
        "file:///etc/passwd",
        "http://example.com/config.json",
        "ftp://127.0.0.1/config.json",
        "data:text/plain,{}",
        "//example.com/config.json",
        "http://127.0.0.1.example.com/",
        "http://[::1",
        "gopher://127.0.0.1/",
    ],
)
def test_redirects_elsewhere_are_refused(server, to):
    server.redirects = {ASKED: (302, to)}
    assert "redirect = " in refused(server)
    assert len(server.asked) == 1


def test_redirects_with_a_password_are_refused_and_not_shown(server):
    server.redirects = {ASKED: (302, "https://me:secret@example.com/")}
    line = refused(server)
    assert "user name" in line
    assert "secret" not in line


@pytest.mark.parametrize(
    ("address", "part"),
    [
        ("http://example.com", "must be an https address"),
        ("file:///etc", "must be an https address"),
        ("huggingface.co", "must be an https address"),
        ("https://", "must be an https address"),
        ("https://[::1", "is no web address"),
        ("https://example.com:99999", "is no web address"),
        ("https://example.com/?a=1", "has a ? or #"),
        ("https://me:secret@example.com", "has a user name"),
        ("http://127.0.0.1:1/a b", "gave no answer to read"),
    ],
)
def test_addresses_of_hubs(address, part):
    with pytest.raises(InputError, match=r"hub|config\.json") as error:
        hub.find("org/tiny", from_hub=True, hub=address, seconds=5)
    assert part in str(error.value)
    assert "secret" not in str(error.value)


def test_no_network(server):
    address = server.address
    server.shutdown()
    server.server_close()
    with pytest.raises(InputError, match="cannot be reached: connection refused: check the network"):
        hub.find("org/tiny", from_hub=True, hub=address, seconds=5)


@pytest.mark.parametrize("said", ["", None, 10**12, "chunked", 2**70])
def test_too_large_whatever_is_said(server, said):
    server.body = b" " * (specfile.MAX_JSON_BYTES + 1)
    server.chunked, server.length = said == "chunked", said
    assert f"has more than {specfile.MAX_JSON_BYTES:,} bytes" in refused(server)


def test_what_ends_early_is_refused(server):
    server.length = len(CONFIG) + 5
    assert f"ended after {len(CONFIG)} of {len(CONFIG) + 5} bytes" in refused(server)
    server.length = 20  # the rest is not read: what is there is no JSON
    assert "is not valid JSON" in refused(server)


@pytest.mark.parametrize("seconds_a_byte", [0.05, 30])
def test_slow_answers_end(server, seconds_a_byte):
    """Each byte comes in time in the first case, the answer in none."""
    server.seconds_a_byte = seconds_a_byte
    began = time.monotonic()
    assert "gave no whole answer in 0.5 s" in refused(server, seconds=0.5)
    assert time.monotonic() - began < 5
    server.seconds_a_byte = 0


@each(
    ("body", "part"),
    [
        (b"<!doctype html><p>Log in", "gave a web page, no JSON"),
        (b"", "gave an empty file"),
        (b"{", "config.json:1: is not valid JSON"),
        (b"[]", "holds a list: a JSON object is expected"),
        (b"null", "a JSON object is expected"),
        (b'{"model_type": "llama",\n"model_type": "opt"}', "'model_type' is given twice"),
        (b'{"model_type": NaN}', "NaN is not a number JSON knows"),
        (b'{"a":' * 100 + b"1" + b"}" * 100, "nests more than"),
        (b'{"a": 1}', "is no configuration of a model"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b'{"model_type": "\0"}', "NUL"),
        (b"version https://git-lfs.github.com/spec/v1", "is not valid JSON"),
    ],
)
def test_what_is_no_config(server, body, part):
    server.body = body
    assert part in refused(server)


def test_what_was_compressed_unasked_is_refused(server):
    server.headers = (("Content-Encoding", "gzip"),)
    assert "compressed" in refused(server)


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        (b"", "127.0.0.1"),
        (b"\x16\x03\x01\x00\xff", "gave no answer to read"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: " + b"a" * 70_000 + b"\r\n\r\n", "gave no answer to read"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 200 + b"\r\n", "gave no answer to read"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}", "gave no answer to read"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{}", "gave no answer to read"),
        (b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", "HTTP 302"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}", "is no configuration"),
    ],
)
def test_what_is_no_answer(answer, part):
    """Bytes that no server of the standard library would send."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            connection, _ = listening.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(InputError) as error:
            hub.find("org/tiny", from_hub=True, hub=f"http://127.0.0.1:{listening.getsockname()[1]}", seconds=5)
        thread.join()
    assert part in str(error.value)


def test_a_commit_that_is_none_is_not_written(server):
    server.headers = (("X-Repo-Commit", 'x" # \x1b[31m'),)
    assert fetch(server).revision == "main"


def cached(tmp_path, repository="org/tiny", commit=COMMIT, ref="main", text=CONFIG):
    """A repository as the Hugging Face libraries keep it: references, snapshots that link to contents."""
    folder = tmp_path / "cache" / f"models--{repository.replace('/', '--')}"
    content, snapshot = folder / "blobs" / commit[:12], folder / "snapshots" / commit
    for one in (content, folder / "refs" / ref):
        one.parent.mkdir(parents=True, exist_ok=True)
    snapshot.mkdir(parents=True)
    content.write_bytes(text)
    os.symlink(f"../../blobs/{content.name}", snapshot / "config.json")
    (folder / "refs" / ref).write_text(commit + "\n")
    return folder


def test_the_cache(tmp_path):
    cached(tmp_path)
    folder = cached(tmp_path, commit=OTHER, ref="refs/pr/1")
    for revision, commit in [(None, COMMIT), ("main", COMMIT), ("refs/pr/1", OTHER), (OTHER, OTHER)]:
        found = hub.find("org/tiny", revision)
        assert (found.name, found.revision) == ("tiny", commit)
        assert found.source == "config.json of org/tiny (Hugging Face cache)"
    assert hub.find(str(folder / "snapshots" / OTHER)) == hub.find(str(folder / "snapshots" / OTHER / "config.json"))
    assert hub.find(str(folder / "snapshots" / OTHER)).source == "config.json of org/tiny (Hugging Face cache)"
    for revision in ("v2", "c" * 40):
        with pytest.raises(InputError, match=f"revision {revision} is not in the Hugging Face cache"):
            hub.find("org/tiny", revision)


def test_the_cache_goes_before_the_hub(server, tmp_path):
    cached(tmp_path)
    assert fetch(server).source == "config.json of org/tiny (Hugging Face cache)"
    assert fetch(server, revision=OTHER).source == "config.json of org/tiny (from 127.0.0.1)"


@pytest.mark.parametrize(
    ("variable", "below"),
    [("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub"), ("HOME", ".cache/huggingface/hub")],
)
def test_where_the_cache_lies(tmp_path, monkeypatch, variable, below):
    cached(tmp_path)
    home = tmp_path / "elsewhere" / below
    home.parent.mkdir(parents=True)
    (tmp_path / "cache").rename(home)
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    assert hub.find("org/tiny").revision == COMMIT


def test_caches_that_are_not_whole(tmp_path):
    folder = cached(tmp_path)
    (folder / "blobs" / COMMIT[:12]).unlink()
    with pytest.raises(InputError, match="--from-hub"):
        hub.find("org/tiny")
    for commit in ("../../../../secret", "", "main"):
        (folder / "refs" / "main").write_text(commit)
        with pytest.raises(InputError, match="refs/main"):
            hub.find("org/tiny")


def test_paths(tmp_path):
    (tmp_path / "my model").mkdir()
    config = tmp_path / "my model" / "config.json"
    config.write_bytes(CONFIG)
    for path in (config.parent, config):
        found = hub.find(str(path))
        assert (found.name, found.source) == ("my-model", "config.json of the local directory my model")
    (tmp_path / "tiny.json").write_bytes(CONFIG)
    assert hub.find(str(tmp_path / "tiny.json")).source == "local file tiny.json"
    with pytest.raises(InputError, match="revision = 'v1': has no effect on a local file"):
        hub.find(str(config), "v1")


def test_a_folder_of_the_repositorys_name_goes_first_where_it_has_a_config(tmp_path, server):
    folder = tmp_path / "work" / "org" / "tiny"
    folder.mkdir(parents=True)
    assert "127.0.0.1" in fetch(server).source
    (folder / "config.json").write_bytes(CONFIG)
    assert fetch(server).source == "config.json of the local directory tiny"


@each(
    "name",
    [
        "",
        "a/b/c",
        "../x",
        "/no/such",
        "~no-such-user/x",
        "org/",
        "/org",
        "org/a..b",
        "org/a--b",
        "o rg/x",
        "org/x\n",
        "org/x\0",
        "org/.x",
        "-x/y",
        "https://huggingface.co/org/tiny",
        "org/tiny.json",
        "x.toml",
        "org\\tiny",
        "ö/x",
        "a" * 5000,
    ],
)
def test_names_that_no_repository_has(server, name):
    line = refused(server, name)
    assert "no name on the hub" in line or "cannot be read" in line
    assert not server.asked


@each("revision", ["../x", "a/../b", "/x", "a//b", "a/", "a b", "x" * 65, "a?b", "-x", "a%2fb"])
def test_revisions_that_lead_elsewhere(server, revision):
    assert "must be a branch, a tag or a commit hash" in refused(server, revision=revision)
    assert not server.asked


def test_files_that_are_no_config(tmp_path):
    for name, text, part in [
        ("a.json", b"{}", "is no configuration of a model"),
        ("b.json", b" " * (specfile.MAX_JSON_BYTES + 1), "at most"),
        ("c.json", b"", "is empty: download it again"),
        ("d.toml", b"", "give it to --model"),
        ("e.json", b'{"model_type": "a", "model_type": "b"}', "given twice"),
    ]:
        (tmp_path / name).write_bytes(text)
        with pytest.raises(InputError, match=part):
            hub.find(str(tmp_path / name))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"holds no config\.json"):
        hub.find(str(tmp_path / "empty"))
    os.mkfifo(tmp_path / "pipe.json")
    os.symlink("loop.json", tmp_path / "loop.json")
    os.symlink("gone", tmp_path / "broken.json")
    for name in ("pipe", "loop", "broken"):
        with pytest.raises(InputError, match=r"regular file|cannot be read"):
            hub.find(str(tmp_path / f"{name}.json"))

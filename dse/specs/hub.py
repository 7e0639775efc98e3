"""Find the config.json of a model: at a path, in the cache of the Hugging Face libraries, or on a hub where asked.

A hub gives one JSON file, which is read as plain data: its size, its time and its redirects are limited, and nothing
in it is run.

`huggingface_hub` would not do: it bounds neither the size of an answer nor the time of a whole one, and follows
redirects unseen.
"""

import http.client
import os
import queue
import re
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dse.core import files, specfile
from dse.core.errors import InputError, show
from dse.specs.huggingface import config, released

CONFIG = "config.json"
HUB = "https://huggingface.co"
#: for the whole answer, redirects and name look-up included
MAX_SECONDS = 30.0
MAX_REDIRECTS = 5
_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}"
_REPOSITORY = re.compile(rf"(?:{_PART}/)?{_PART}")
#: branches, tags, `refs/pr/1` and hashes
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,63}")
_HASH = re.compile(r"[0-9a-f]{40}")
_SNAPSHOT = re.compile(r"/models--([^/]+)/snapshots/([0-9a-f]{40})/config\.json")
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class NotThereError(InputError):
    """A name that is neither a path nor in the cache, where no hub was to be asked."""


@dataclass(frozen=True)
class Config:
    """A config.json: its data, a name for its model, and where it comes from."""

    document: specfile.Document
    name: str
    source: str
    revision: str = ""


def find(
    asked: str,
    revision: str | None = None,
    from_hub: bool = False,
    hub: str | None = None,
    seconds: float = MAX_SECONDS,
) -> Config:
    """The config.json of ORG/NAME, of a directory, or the file itself.

    A local path wins, then the cache, then, only with `from_hub`, the hub (at `hub`, else HF_ENDPOINT, else
    huggingface.co), which may take `seconds`. Raises InputError.
    """
    if path := _local(asked):
        if revision:
            raise InputError(f"revision = {show(revision)}: has no effect on a local file: leave it out")
        return _of_path(path)
    if not is_repository(asked):
        raise InputError(
            f"{show(asked)}: is no directory with a {CONFIG}, no file, and no name on the hub: "
            "give ORG/NAME of letters, digits and ._- or a path"
        )
    revision = revision or "main"
    if not _REVISION.fullmatch(revision) or ".." in revision or "//" in revision or revision.endswith("/"):
        raise InputError(f"revision = {show(revision)}: must be a branch, a tag or a commit hash")
    if cached := _cached(asked, revision):
        return cached
    if from_hub:
        return _of_hub(asked, revision, hub or os.environ.get("HF_ENDPOINT") or HUB, seconds)
    raise NotThereError(
        f"{asked}: is no directory or file, and revision {revision} is not in the Hugging Face cache: "
        f"--from-hub fetches its {CONFIG}, or give the path of one"
    )


def is_repository(name: str) -> bool:
    """Whether a name can be that of a repository: ORG/NAME, or NAME alone as old ones have it."""
    if ".." in name or "--" in name or name.lower().endswith((".git", ".json", ".toml")):
        return False
    return bool(_REPOSITORY.fullmatch(name))


def _document(path: str, text: str) -> specfile.Document:
    document = specfile.parse(path, text, is_json=True)
    if not config.looks_like_config(document.data):
        raise InputError(f"{path}: is no configuration of a model: it has no {', no '.join(config.MARKS[:4])}")
    return document


def _local(source: str) -> Path | None:
    """The file that a path means; None where there is none, and `source` may be a name."""
    if not source or "\0" in source:
        return None
    path = Path(os.path.expanduser(source))
    try:
        if not path.is_dir():
            return path if os.path.lexists(path) else None
        if (path / CONFIG).exists():
            return path / CONFIG
    except OSError as error:
        raise InputError(f"{show(source)}: cannot be read: {(error.strerror or 'unknown').lower()}") from error
    if is_repository(source):  # a folder of checkpoints that happens to have the name of its repository
        return None
    raise InputError(f"{show(source)}: holds no {CONFIG}: give the directory or the file that does")


def _of_path(path: Path) -> Config:
    if path.suffix.lower() == ".toml":
        raise InputError(f"{path}: is no {CONFIG}: a model file needs no adding, give it to --model as it is")
    give = f"a directory with a {CONFIG}, or the file"
    content = files.read_bytes(path, specfile.MAX_JSON_BYTES, CONFIG, give, "download it again")
    document = released.with_quantized(_document(str(path), specfile.decoded(str(path), content)), path)
    absolute = path.absolute()
    if snapshot := _SNAPSHOT.search(absolute.as_posix()):
        repository = snapshot[1].replace("--", "/")
        return Config(document, _named(repository), _source(repository, "Hugging Face cache"), snapshot[2])
    # the last parts of the path alone: files are shared, and home directories have names
    if path.name == CONFIG:
        return Config(document, _named(absolute.parent.name), f"{CONFIG} of the local directory {absolute.parent.name}")
    return Config(document, _named(path.stem), f"local file {path.name}")


def _named(word: str) -> str:
    """A name that a model file may have."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", word.rpartition("/")[2]).lstrip("._+-")[:64] or "model"


def _source(repository: str, place: str) -> str:
    return f"{CONFIG} of {repository} ({place})"


def cache_folder() -> Path:
    """Where the Hugging Face libraries keep what they download."""
    environment = os.environ
    if folder := environment.get("HF_HUB_CACHE"):
        return Path(os.path.expanduser(folder))
    if home := environment.get("HF_HOME"):
        return Path(os.path.expanduser(home)) / "hub"
    return Path(os.path.expanduser(environment.get("XDG_CACHE_HOME") or "~/.cache")) / "huggingface" / "hub"


def _cached(repository: str, revision: str) -> Config | None:
    folder = cache_folder() / f"models--{repository.replace('/', '--')}"
    commit = revision
    if not _HASH.fullmatch(revision):
        ref = folder / "refs" / revision
        if not ref.is_file():
            return None
        commit = files.read_bytes(ref, 100, "reference to a commit").decode("ascii", "replace").strip()
        if not _HASH.fullmatch(commit):  # a path would lead out of the cache
            raise InputError(f"{ref}: holds {show(commit)}: must be a commit hash: delete the file")
    path = folder / "snapshots" / commit / CONFIG
    if not path.exists():  # only other files of it were downloaded, or the link to its content is broken
        return None
    content = files.read_bytes(path, specfile.MAX_JSON_BYTES, CONFIG, f"the path of a {CONFIG}", "download it again")
    document = released.with_quantized(_document(str(path), specfile.decoded(str(path), content)), path)
    return Config(document, _named(repository), _source(repository, "Hugging Face cache"), commit)


class _Answer(NamedTuple):
    content: bytes
    commit: str


def _of_hub(repository: str, revision: str, hub: str, seconds: float) -> Config:
    endpoint = _checked(hub.rstrip("/"), "hub", local=True)
    host = endpoint.hostname or ""
    quoted = urllib.parse.quote(revision, safe="")
    url = f"{endpoint.geturl()}/{repository}/resolve/{quoted}/{CONFIG}"
    what = f"{repository}/{CONFIG}"
    try:
        answer = _within(seconds, lambda: _get(url, what, revision, seconds))
    except TimeoutError:
        raise InputError(f"{what}: {host} gave no whole answer in {seconds:g} s: try again later") from None
    except urllib.error.URLError as error:
        raise InputError(f"{what}: {host} cannot be reached: {_reason(error.reason)}: {_OFFLINE}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise InputError(f"{what}: {host} gave no answer to read: {_reason(error)}: {_OFFLINE}") from error
    if not answer.content.strip():
        raise InputError(f"{what}: {host} gave an empty file: try again later")
    if answer.content.lstrip()[:1] == b"<":
        raise InputError(f"{what}: {host} gave a web page, no JSON: check --hub, and whether a proxy asks for a login")
    place = "Hugging Face hub" if host == urllib.parse.urlsplit(HUB).hostname else f"from {host}"
    commit = answer.commit if _HASH.fullmatch(answer.commit) else revision
    document = _document(what, specfile.decoded(what, answer.content))
    return Config(document, _named(repository), _source(repository, place), commit)


_OFFLINE = f"check the network, or give the path of a {CONFIG}"


def _reason(error: Any) -> str:
    if isinstance(error, ssl.SSLError):
        return f"its certificate or encryption failed ({error.reason or 'unknown'})"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return show(text.lower())[1:-1]


def _within(seconds: float, work: Callable[[], _Answer]) -> _Answer:
    """Run `work` within a time limit. Raises TimeoutError, and whatever `work` raises.

    A socket's own time-out starts anew with each byte, and looking up a host has none.
    """
    done: queue.SimpleQueue[_Answer | BaseException] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put(work())
        except BaseException as error:
            done.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        answer = done.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(answer, urllib.error.URLError) and isinstance(answer.reason, TimeoutError):
        raise answer.reason
    if isinstance(answer, BaseException):
        raise answer
    return answer


class _Stay(urllib.request.HTTPRedirectHandler):
    """Redirects are answers here: each is checked before it is followed."""

    def http_error_302(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing, so that the opener raises HTTPError."""

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _checked(url: str, what: str, local: bool, base: str = "") -> urllib.parse.SplitResult:
    """The parts of an address that may be asked: https, or, where `local`, http on this machine."""
    try:
        parts = urllib.parse.urlsplit(urllib.parse.urljoin(base, url))
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise InputError(f"{what} = {show(url)}: is no web address: give one such as {HUB}") from None
    if "@" in parts.netloc:  # not shown: it holds a password
        raise InputError(f"{what}: has a user name in its address: leave it out, HF_TOKEN is for that")
    shown = show(f"{parts.scheme}://{parts.netloc}" if parts.scheme else url)  # what follows may be signed
    if not host or not (parts.scheme == "https" or (local and parts.scheme == "http" and host in _LOCAL_HOSTS)):
        raise InputError(f"{what} = {shown}: must be an https address (http on this machine alone), such as {HUB}")
    if parts.query or parts.fragment:
        if what == "hub":
            raise InputError(f"{what} = {shown}: has a ? or # behind: leave it out")
        parts = parts._replace(fragment="")
    return parts


def _get(url: str, what: str, revision: str, seconds: float) -> _Answer:
    first = urllib.parse.urlsplit(url)
    is_local = first.hostname in _LOCAL_HOSTS
    token = os.environ.get("HF_TOKEN", "").strip()
    if not re.fullmatch(r"[\x21-\x7e]{0,1000}", token):
        raise InputError("HF_TOKEN: holds characters that no token has: set it again")
    opener = urllib.request.build_opener(_Stay)
    commit = ""
    for _ in range(MAX_REDIRECTS + 1):
        parts = urllib.parse.urlsplit(url)
        request = urllib.request.Request(url, headers={"User-Agent": "dse", "Accept": "application/json"})
        if token and (parts.scheme, parts.netloc) == (first.scheme, first.netloc):  # no other host sees it
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        try:
            with opener.open(request, timeout=seconds) as response:
                return _Answer(_body(response, what), response.headers.get("X-Repo-Commit") or commit)
        except urllib.error.HTTPError as error:
            with error:
                to = error.headers.get("Location")
                commit = error.headers.get("X-Repo-Commit") or commit
                if error.code not in (301, 302, 303, 307, 308) or not to:
                    raise _refused(error, what, revision, bool(token)) from None
        url = _checked(to, "redirect", is_local, url).geturl()
    raise InputError(
        f"{what}: {first.hostname} redirects more than {MAX_REDIRECTS} times: check --hub, try again later"
    )


def _refused(error: urllib.error.HTTPError, what: str, revision: str, has_token: bool) -> InputError:
    code = error.code
    if code in (401, 403):
        token = "that HF_TOKEN has access" if has_token else "set HF_TOKEN, whose account has accepted its terms"
        return InputError(f"{what}: HTTP {code}: is gated, private or misspelt: check the name, and {token}")
    if code == 404:
        return InputError(f"{what}: HTTP 404: not there at revision {revision}: check the name and --revision")
    if code == 429:
        return InputError(f"{what}: HTTP 429: too many requests: wait, or set HF_TOKEN")
    if code >= 500:
        return InputError(f"{what}: HTTP {code}: the hub has a fault: try again later")
    return InputError(f"{what}: HTTP {code}: refused: check the name, --revision and --hub")


def _body(response: Any, what: str) -> bytes:
    """The whole content, of at most as many bytes as a JSON file of the user may have."""
    limit = specfile.MAX_JSON_BYTES
    too_large = InputError(f"{what}: has more than {limit:,} bytes: no {CONFIG} of a model has")
    if response.status != 200:
        raise InputError(f"{what}: HTTP {response.status}: holds no file: check --hub")
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise InputError(f"{what}: is compressed, which was not asked for: check --hub")
    said = response.headers.get("Content-Length", "")
    length = int(said) if re.fullmatch(r"[0-9]{1,18}", said) else None
    if length is not None and length > limit:
        raise too_large
    content: bytes = response.read(limit + 1)  # whatever was said
    if len(content) > limit:
        raise too_large
    if length is not None and len(content) < length:
        raise InputError(f"{what}: ended after {len(content):,} of {length:,} bytes: try again")
    return content

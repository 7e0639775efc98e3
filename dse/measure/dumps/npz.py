"""The .npz format: a zip archive of .npy members. The directory is checked before `zipfile` reads it.

Format: PKWARE APPNOTE 6.3, as numpy.savez and numpy.savez_compressed write it.
"""

import re
import struct
import zipfile
import zlib
from collections.abc import Iterator

from dse.core.errors import show
from dse.measure.dumps import npy
from dse.measure.dumps.safetensors import parse_json
from dse.measure.dumps.source import BLOCK_BYTES, DumpSource, SourceFile
from dse.measure.dumps.stored import DumpLimits, StoredTensor, check_name, check_total

MAX_MEMBERS = 65_535
MAX_DIRECTORY = 32 * 2**20
#: the member that holds metadata: uint8, UTF-8 JSON that maps names to text; what is in front of its values, its size
META = "meta.npy"
_META = re.compile(
    rb"\x93NUMPY[\1-\3]\0.{2,4}?"
    rb"\{'descr': '\|u1', 'fortran_order': (?:True|False), 'shape': \(([0-9]{1,6}),\), *\} *\n",
    re.DOTALL,
)
MAX_META = 2**16
_END, _END64, _LOCATOR64 = b"PK\5\6", b"PK\6\6", b"PK\6\7"
_END_BYTES, _END64_BYTES, _LOCATOR64_BYTES = 22, 56, 20
#: what `zipfile` raises for archives that are damaged or ask for what it does not know
_ZIP_ERRORS = (zipfile.BadZipFile, OSError, RuntimeError, ValueError, EOFError, OverflowError, struct.error, zlib.error)
_AGAIN = "copy the file or write it again"


def stored(source: DumpSource, limits: DumpLimits) -> list[StoredTensor]:
    """The tensors of a .npz file in the order of its directory. Raises InputError and LimitError."""
    n_members = _check_directory(source)
    try:
        archive = zipfile.ZipFile(SourceFile(source))
    except _ZIP_ERRORS as error:
        raise source.error(f"is a damaged zip archive: {show(str(error))}: {_AGAIN}") from error
    members = archive.infolist()
    if len(members) != n_members:
        raise source.error(f"lists {len(members):,} members, its end says {n_members:,}: {_AGAIN}")
    seen: set[str] = set()
    for member in members:
        _check_member(source, member, limits)
        if member.filename in seen:
            raise source.error("is there twice: keep one of them", _name(member))
        seen.add(member.filename)
    check_total(source, sum(member.file_size for member in members), limits)
    source.metadata = next((_metadata(source, archive, m) for m in members if m.filename == META), {})
    return [_tensor(source, archive, member) for member in members if member.filename != META]


def _metadata(source: DumpSource, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> dict[str, str]:
    """Read the member `meta`: names to text. Raises InputError and LimitError."""
    name = _name(member)
    if member.file_size > MAX_META:
        raise source.limit(f"{member.file_size:,} bytes of metadata: at most {MAX_META:,} are read: shorten it", name)
    try:
        with archive.open(member) as file:
            content = file.read(MAX_META + 1)
    except _ZIP_ERRORS as error:
        raise _damaged(source, name, error) from error
    start = _META.match(content)
    if not start or len(content) - start.end() != int(start[1]):
        raise source.error('must hold metadata: save np.frombuffer(json.dumps({"model": "..."}).encode(), "u1")', name)
    try:
        metadata = parse_json(content[start.end() :].decode("utf-8"))
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("it must map names to text")
    except (ValueError, RecursionError) as error:
        raise source.error(f"is not valid JSON: {show(str(error))}: write it again", name) from error
    return metadata


def _check_directory(source: DumpSource) -> int:
    """The number of members, once the end of the archive says where its directory lies and how large it is.

    `zipfile` reads the whole directory at once and believes its size; what it does not look at (the count, bytes
    before and behind) is looked at here.
    """
    if source.size < _END_BYTES:
        raise source.error(f"has {source.size:,} bytes, too few for a zip archive: write it with numpy.savez")
    at = source.size - _END_BYTES
    sign, disk, first, here, n_members, size, start, comment = struct.unpack("<4s4H2LH", source.read(at, _END_BYTES))
    if sign != _END or comment:
        raise source.error(f"does not end as a zip archive does: it may be truncated: {_AGAIN}")
    if at >= _LOCATOR64_BYTES + _END64_BYTES:
        locator = struct.unpack("<4sLQL", source.read(at - _LOCATOR64_BYTES, _LOCATOR64_BYTES))
        if locator[0] == _LOCATOR64:
            at -= _LOCATOR64_BYTES + _END64_BYTES
            end = struct.unpack("<4sQ2H2L4Q", source.read(at, _END64_BYTES))
            if end[0] != _END64 or locator[2] != at:
                raise source.error(f"is a damaged zip archive: its 64-bit end is not where it should be: {_AGAIN}")
            disk, first, here, n_members, size, start = end[4:]
    if n_members > MAX_MEMBERS or size > MAX_DIRECTORY:
        text = f"has {n_members:,} members listed in {size:,} bytes"
        raise source.limit(f"{text}: at most {MAX_MEMBERS:,} in {MAX_DIRECTORY:,} are read: split it")
    if disk or first or here != n_members or start + size != at:
        raise source.error(f"is a damaged zip archive: its directory is not where its end says: {_AGAIN}")
    return n_members


def _name(member: zipfile.ZipInfo) -> str:
    return member.filename.removesuffix(".npy")


def _check_member(source: DumpSource, member: zipfile.ZipInfo, limits: DumpLimits) -> None:
    name = _name(member)
    if not member.filename.endswith(".npy") or member.orig_filename != member.filename:
        text = f"member {show(member.orig_filename)}: all members must be .npy arrays: take it out"
        raise source.error(text)
    check_name(source, name)
    if member.flag_bits & 1:
        raise source.error("is encrypted: save it without a password", name)
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        text = f"compression method {member.compress_type}: must be stored (0) or deflated (8)"
        raise source.error(f"{text}: write it with numpy.savez", name)
    if member.file_size > limits.max_ratio * max(member.compress_size, 1):
        text = f"{member.compress_size:,} bytes unpack to {member.file_size:,}"
        raise source.limit(
            f"{text}: at most {limits.max_ratio} times as many are read: raise max_ratio, or write it with numpy.savez",
            name,
        )


def _tensor(source: DumpSource, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> StoredTensor:
    name = _name(member)
    try:
        with archive.open(member) as file:
            header = npy.read_header(source, name, file.read)
    except _ZIP_ERRORS as error:
        raise _damaged(source, name, error) from error
    tensor = header.tensor(name)
    npy.check_length(source, tensor, member.file_size - header.n_bytes)

    def blocks() -> Iterator[bytes]:
        left = tensor.stored_bytes
        try:
            with archive.open(member) as file:
                file.read(header.n_bytes)
                while left:
                    block = file.read(min(left, BLOCK_BYTES))
                    if len(block) < min(left, BLOCK_BYTES):
                        raise EOFError(f"it ends {left - len(block):,} bytes early")
                    left -= len(block)
                    yield block
                if file.read(1):  # reading the end also checks the CRC
                    raise EOFError("it goes on behind its last value")
        except _ZIP_ERRORS as error:
            raise _damaged(source, name, error) from error

    return StoredTensor(tensor, blocks, header.big_endian, header.fortran_order)


def _damaged(source: DumpSource, name: str, error: Exception) -> Exception:
    return source.error(f"is damaged: {show(str(error))}: {_AGAIN}", name)

"""MUNGE credentials, with which ``munged`` attests a process's user across a cluster.

libmunge is installed together with ``munged``, and is called through ctypes, so no Python
package is needed. ``socket`` is the path of ``munged``'s socket, by default libmunge's.
Each function raises :class:`InputError` if libmunge is not installed, and :class:`QpuError`
if ``munged`` does not answer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from sf_quantum.errors import InputError, QpuError

# Constants of munge.h; their values are part of its ABI.
_SUCCESS = 0
_OPT_SOCKET = 8
# codes for a faulty credential: format, version, cipher, MAC, compression, realm, invalid,
# expired, rewound, replayed, not authorized
_FIRST_OF_CREDENTIAL, _LAST_OF_CREDENTIAL = 8, 18


class CredentialRefused(Exception):
    """A credential is not valid: expired, rewound, replayed, forged, or missing."""


def encode(socket: str | None = None) -> str:
    """Create a credential of this process, with an empty payload; it can be decoded once."""
    library = _library()
    credential = ctypes.c_char_p()
    with _context(library, socket) as context:
        code = library.munge_encode(ctypes.byref(credential), context, None, 0)
        try:
            if code != _SUCCESS or credential.value is None:
                raise QpuError(f"munge: {_reason(library, code, context)}")
            return credential.value.decode()
        finally:
            library.free(credential)


def decode(credential: str, socket: str | None = None) -> int:
    """Return the uid of the process that created a credential; the call blocks.

    :raises CredentialRefused: if the credential is invalid, or was used before
    """
    if not credential:
        raise CredentialRefused("empty credential")
    library = _library()
    payload, length = ctypes.c_void_p(), ctypes.c_int()
    uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
    # libmunge accepts ASCII only; anything else becomes an invalid credential
    text = credential.encode("ascii", "replace").replace(b"\0", b"?")
    with _context(library, socket) as context:
        results = map(ctypes.byref, (payload, length, uid, gid))
        code = library.munge_decode(text, context, *results)
        # allocated even if the credential is refused as expired or replayed
        library.free(payload)
        if _FIRST_OF_CREDENTIAL <= code <= _LAST_OF_CREDENTIAL:
            raise CredentialRefused(_reason(library, code))
        if code != _SUCCESS:
            raise QpuError(f"munge: {_reason(library, code, context)}")
    return uid.value


def check(socket: str | None = None) -> None:
    """Check that credentials can be created and decoded on this host."""
    decode(encode(socket), socket)


@contextmanager
def _context(library: ctypes.CDLL, socket: str | None) -> Iterator[ctypes.c_void_p]:
    """Yield a context of libmunge, for the socket of the daemon."""
    context = ctypes.c_void_p(library.munge_ctx_create())
    if not context:
        raise MemoryError("munge_ctx_create")
    try:
        if socket is not None:
            path = ctypes.c_char_p(socket.encode())
            code = library.munge_ctx_set(context, _OPT_SOCKET, path)
            if code != _SUCCESS:
                raise InputError(f"{socket}: {_reason(library, code, context)}")
        yield context
    finally:
        library.munge_ctx_destroy(context)


@cache
def _library() -> ctypes.CDLL:
    """Load libmunge.

    :raises InputError: if it is not installed
    """
    try:
        library = ctypes.CDLL("libmunge.so.2")
    except OSError as error:
        raise InputError(
            "libmunge.so.2 is not installed (Debian: libmunge2, Red Hat: munge-libs)"
        ) from error
    # free() is also looked up through libmunge, so it is from the C library that allocated
    # the memory.
    library.munge_ctx_create.restype = ctypes.c_void_p
    library.munge_ctx_strerror.restype = ctypes.c_char_p
    library.munge_strerror.restype = ctypes.c_char_p
    return library


def _reason(
    library: ctypes.CDLL, code: int, context: ctypes.c_void_p | None = None
) -> str:
    detailed = library.munge_ctx_strerror(context) if context else None
    words: str = (detailed or library.munge_strerror(code)).decode("utf-8", "replace")
    return words[:1].lower() + words[1:]

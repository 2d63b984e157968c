"""Sessions of ``requests`` for vendors' SDKs: with bounded answers, without redirects.

By itself, ``requests`` follows any redirect with all headers but ``Authorization``, reads
answers of any size, before and after decompression, and applies its time limit to each read.
"""

from __future__ import annotations

import io
from collections.abc import Mapping

from requests import PreparedRequest, RequestException, Response, Session
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, ProxyManager, Retry
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from sf_quantum.net import bounded_answers

# Numbers of retries: of a connection, with pauses of 20 s in total, and of a request without
# an answer.
RETRIES, READ_RETRIES = 10, 2


class _Connection(bounded_answers.Timed, HTTPConnection):
    """A connection without TLS."""


class _TlsConnection(bounded_answers.Timed, HTTPSConnection):
    """A connection with TLS."""


class _Pool(HTTPConnectionPool):
    """A pool of connections without TLS."""

    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    """A pool of connections with TLS."""

    ConnectionCls = _TlsConnection


_POOLS = {"http": _Pool, "https": _TlsPool}


class _Adapter(HTTPAdapter):
    """Sends requests within a time limit, and reads answers up to a size limit."""

    def __init__(self, seconds: float, retries: Retry, most_bytes: int) -> None:
        self._seconds = seconds
        self._most_bytes = most_bytes
        super().__init__(max_retries=retries)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, proxy: str, **options: str) -> ProxyManager:
        manager: ProxyManager = super().proxy_manager_for(proxy, **options)
        manager.pool_classes_by_scheme = _POOLS
        return manager

    def send(
        self,
        request: PreparedRequest,
        stream: bool = False,
        timeout: float | tuple[float, float] | tuple[float, None] | None = None,
        verify: bool | str = True,
        cert: bytes | str | tuple[bytes | str, bytes | str] | None = None,
        proxies: Mapping[str, str] | None = None,
    ) -> Response:
        """Send a request, and read its answer within the limits; decompress the answer.

        :raises RequestException: if the answer is too large, too late or a redirect
        """
        answer = super().send(request, True, self._seconds, verify, cert, proxies)
        read = None
        try:
            if answer.status_code in bounded_answers.REDIRECTS:
                why = bounded_answers.elsewhere(answer.headers.get("Location"))
                raise RequestException(why, request=request, response=answer)
            read = self._read(answer)
        finally:
            if read is None:
                answer.close()
            # The decompressed bytes replace the stream.
            answer.raw = io.BytesIO(read or b"")
        return answer

    def _read(self, answer: Response) -> bytes:
        """Read an answer's content.

        :raises RequestException: if the content is too large, or cannot be read
        """
        most = self._most_bytes
        length = bounded_answers.content_length(answer.headers.get("Content-Length"))
        if length is not None and length > most:
            raise RequestException(str(bounded_answers.too_large(most)))
        parts = answer.raw.stream(bounded_answers.PART_BYTES, decode_content=True)
        try:
            return bounded_answers.whole(parts, most)
        except (HTTPError, bounded_answers.TooLarge) as error:
            raise RequestException(str(error)) from error


def guard(
    session: Session, most_bytes: int, seconds: float, *, repeated: bool = False
) -> None:
    """Make a session reject redirects, and bound the time and size of its answers.

    :param most_bytes: largest answer in bytes, before and after decompression
    :param seconds: time limit for sending a request, and then for receiving the whole
        answer
    :param repeated: whether to retry requests that change nothing at the service
    """
    retries = Retry(RETRIES, read=READ_RETRIES, backoff_factor=0.01)
    for scheme in ("http://", "https://"):
        adapter = _Adapter(seconds, retries if repeated else Retry(0), most_bytes)
        session.mount(scheme, adapter)

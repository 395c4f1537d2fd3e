"""What a request may be: small, and no upload."""

from typing import Any

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 256 * 1024
"""Bytes of a request. The page sends texts of a few kilobytes."""


class Limits:
    """Refuses uploads, for which the page has no use, and requests that are too large."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        if scope["path"].rstrip("/").endswith("/upload"):
            return await PlainTextResponse("This page takes no files.", 403)(scope, receive, send)
        if _too_large(dict(scope["headers"]).get(b"content-length", b"0")):
            return await PlainTextResponse("This request is too large.", 413)(scope, receive, send)
        read = 0

        async def counted() -> Message:
            nonlocal read
            message: Any = await receive()
            read += len(message.get("body", b""))
            return {"type": "http.disconnect"} if read > MAX_BODY else message

        return await self.app(scope, counted, send)


def _too_large(length: bytes) -> bool:
    return not length.isdigit() or int(length) > MAX_BODY

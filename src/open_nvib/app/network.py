"""Guard of the page's server: which hosts and origins it answers, how large requests are, how much one client asks."""

import contextlib
import ipaddress
import logging
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

import gradio as gr
from gradio.server_messages import ProcessCompletedMessage
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_QUEUE = 64
"""Requests that may wait; a request to a full queue is refused."""
MAX_PER_CLIENT = MAX_QUEUE // 2
"""Requests of one client that may wait."""
MAX_OPEN_PER_CLIENT = 256
"""Requests of one client that may be open, the two streams of each of its pages among them."""
MAX_UNREAD_MESSAGES = 512
"""Messages, answers among them, that are held for clients that do not fetch them."""
MAX_SESSIONS = 1000
"""Sessions whose state is held."""
MAX_BODY_BYTES = 256 * 1024
"""Size of a request. The page sends texts of a few kilobytes."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
HOST = re.compile(r"(\[[\da-f:.]+\]|[\w.-]+)(:\d+)?", re.ASCII | re.IGNORECASE)
"""Form of a Host header: user names, schemes and paths have no place in it."""
HOST_HEADERS = (b"host", b"x-forwarded-host", b"x-gradio-server")
"""Headers from which gradio takes the address that the page sends its requests to."""
API = ("app_id", "cancel", "info", "queue/data", "queue/join", "reset", "run/predict", "startup-events")
PATHS = {"/", "/config", "/favicon.ico", "/manifest.json", "/robots.txt", "/theme.css"} | {
    f"/gradio_api/{name}" for name in API
}
FOLDERS = ("/assets/", "/static/", "/gradio_api/heartbeat/")
"""With PATHS all that the page asks for. Gradio has more, such as uploads, and links that it keeps on disk."""

log = logging.getLogger(__name__)


def guard(blocks: gr.Blocks, host: str, allowed_hosts: Iterable[str]) -> Callable[[Any], Any]:
    """Return a lifespan that puts a Guard around all of the server, gradio's own answers to other origins included."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        app.middleware_stack = Guard(app.middleware_stack, blocks, host, allowed_hosts)
        yield

    return lifespan


class Guard:
    """Answers requests to the hosts that the page is served at, from pages of the same origin, within bounds."""

    def __init__(self, app: ASGIApp, blocks: gr.Blocks, host: str, allowed_hosts: Iterable[str]) -> None:
        self.app, self.blocks = app, blocks
        self.allowed = {host_name(name) for name in (*allowed_hosts, *os.environ.get("SPACE_HOST", "").split(","))} - {
            ""
        }
        self.served_at = {*LOOPBACK, host.lower()} | self.allowed
        self.open: Counter[str] = Counter()
        self.posts: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        if refusal := self.refusal(scope):
            return await refusal(scope, receive, send)
        client = client_name((scope.get("client") or ("",))[0])
        posts = scope["method"] == "POST"
        read = 0

        async def counted() -> Message:
            nonlocal read
            message: Any = await receive()
            read += len(message.get("body", b""))
            return {"type": "http.disconnect"} if read > MAX_BODY_BYTES else message

        if posts:
            self.drop_unread()
        self.open[client] += 1
        self.posts[client] += posts
        try:
            await self.app(scope, counted, send)
        except Exception as error:  # answered already, by status 500
            log.warning("a request to %.200r failed: %.200r", scope["path"], error)
        finally:
            self.open[client] -= 1
            self.posts[client] -= posts
            self.open, self.posts = +self.open, +self.posts  # without clients that wait for nothing

    def refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that is refused; None if it is not."""
        headers = [(name, value.decode("latin-1")) for name, value in scope["headers"]]
        named = [value for name, value in headers if name in HOST_HEADERS]
        hosts = [host.strip() for value in named for host in value.split(",")]
        here = self.served_at | {(scope.get("server") or ("",))[0]}
        if not hosts or any(not HOST.fullmatch(host) or host_name(host) not in here for host in hosts):
            return PlainTextResponse("This page is not served at this host; --allowed-hosts adds names.", 403)
        for origin in (value for name, value in headers if name == b"origin"):
            scheme, _, place = origin.partition("://")
            if scheme not in ("http", "https") or not (place in hosts or host_name(place) in self.allowed):
                return PlainTextResponse("This page takes no requests from pages of another origin.", 403)
        if scope["path"] not in PATHS and not scope["path"].startswith(FOLDERS):
            return PlainTextResponse("There is nothing at this address.", 404)
        lengths = [value for name, value in headers if name == b"content-length"]
        if any(not length.isdecimal() or int(length) > MAX_BODY_BYTES for length in lengths):
            return PlainTextResponse("This request is too large.", 413)
        client = client_name((scope.get("client") or ("",))[0])
        for count, most, state in (
            (self.open[client], MAX_OPEN_PER_CLIENT, "open"),
            (self.waiting(client) if scope["method"] == "POST" else 0, MAX_PER_CLIENT, "waiting"),
        ):
            if count >= most:
                said = f"{most} requests of your address are {state} already. Wait for their answers."
                return JSONResponse({"detail": said}, 429)
        return None

    def waiting(self, client: str) -> int:
        """Requests of a client that are in the queue, or still being read."""
        queues = self.blocks._queue.event_queue_per_concurrency_id.values()
        queued = (event.request.client for queue in queues for event in queue.queue)
        return self.posts[client] + sum(client_name(address.host) == client for address in queued if address)

    def drop_unread(self) -> None:
        """Drop messages that nobody fetched, of the sessions with most of them first, where there are too many."""
        queue = self.blocks._queue
        held, unfinished = queue.pending_messages_per_session, queue.pending_event_ids_session
        unread = sum(messages.qsize() for messages in held.values())
        for session, messages in sorted(held.items(), key=lambda item: -item[1].qsize()):
            if unread <= MAX_UNREAD_MESSAGES:
                break
            unread -= messages.qsize()
            while not messages.empty():
                if isinstance(message := messages.get_nowait(), ProcessCompletedMessage):
                    unfinished.get(session, set()).discard(message.event_id or "")
        for session in unfinished.keys() - held.keys():
            del unfinished[session]


def client_name(address: str) -> str:
    """The client that an address belongs to: this machine for loopback, the network of 64 bits for IPv6.

    One client can send from all addresses of either.
    """
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(address)
        found = getattr(found, "ipv4_mapped", None) or found
        if found.is_loopback:
            return "this machine"
        return str(ipaddress.ip_network((found, 64), strict=False)) if found.version == 6 else str(found)
    return address


def host_name(host: str) -> str:
    """The name or address in a Host or Origin header or an option, without scheme and port; "" if there is none."""
    with contextlib.suppress(ValueError):
        return urlsplit(host if "://" in host else f"//{host}").hostname or ""
    return ""

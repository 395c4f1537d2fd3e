"""The page and its server: on this machine alone unless told otherwise, and without asking anything of another."""

import os
import socket
import threading
import time
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from typing import Any

import gradio as gr
import uvicorn
from fastapi import FastAPI
from gradio import themes
from starlette.middleware import Middleware
from starlette.middleware.body_limit import RequestBodyLimitMiddleware

from open_nvib.app.handlers import Page, PageBlocks
from open_nvib.app.network import Guard
from open_nvib.app.runs import example_pairs, example_texts
from open_nvib.app.tabs import TABS
from open_nvib.store.files import InputError
from open_nvib.text.using.run import Run

MAX_BODY_BYTES = 256 * 1024
"""Size of a request. The page sends texts of a few kilobytes."""
MAX_SESSIONS = 1000  # sessions whose state is held
MODELS_AT_ONCE = 2  # requests that are computed at a time; others wait
FONTS = {
    "font": ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica", "Arial", "sans-serif"],
    "font_mono": ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"],
}


def make_app(runs: dict[str, Run]) -> gr.Blocks:
    """A page for these runs, by name. `serve` puts it on the network."""
    names = list(runs)
    with PageBlocks(title="open_nvib: look into the latent", analytics_enabled=False) as blocks:
        gr.Markdown("# open_nvib\nA text autoencoder whose latent is a set of weighted vectors. Look at what it keeps.")
        run = gr.Dropdown(names, value=names[0], label="Run", visible=len(names) > 1, elem_id="run")
        page = Page(blocks, runs, run, example_texts(runs[names[0]]), example_pairs(runs))
        with gr.Tabs():
            for name, add_content in TABS.items():
                with gr.Tab(name) as tab:
                    add_content(page, tab)
    blocks.max_threads, blocks.state_session_capacity = MODELS_AT_ONCE, MAX_SESSIONS
    return blocks


def serve(
    blocks: gr.Blocks,
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    allowed_hosts: Sequence[str] = (),
    open_browser: bool = False,
) -> None:
    """Serve the page until interrupted.

    Requests are answered at this host, on loopback, and at `allowed_hosts`: names that a proxy or a DNS gives it.
    """
    with serving(blocks, host=host, port=port, allowed_hosts=allowed_hosts) as address, suppress(KeyboardInterrupt):
        print(f"The page is at {address} (Ctrl+C stops it)", flush=True)
        if open_browser:
            webbrowser.open(address)
        threading.Event().wait()


@contextmanager
def serving(blocks: gr.Blocks, *, host: str, port: int, allowed_hosts: Sequence[str] = ()) -> Iterator[str]:
    """Serve the page in the background while in the context, whose value is its address."""
    listener = _listen(host, port)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    origins = [*allowed_hosts, *os.environ.get("SPACE_HOST", "").split(",")]
    guards = [Middleware(Guard, [host], origins), Middleware(RequestBodyLimitMiddleware, MAX_BODY_BYTES)]
    app = FastAPI(openapi_url=None, middleware=guards)
    gr.mount_gradio_app(app, blocks, "/", **mount_settings())
    config = uvicorn.Config(
        app,
        log_level="warning",
        # whose X-Forwarded-For is believed: of proxies alone
        forwarded_allow_ips=os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1,::1" if allowed_hosts else ""),
        timeout_graceful_shutdown=1,  # each page has a stream open, which does not end by itself
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while thread.is_alive() and not server.started:
        time.sleep(0.01)
    try:
        shown = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{port}/"
    finally:
        server.should_exit = True
        thread.join()


def mount_settings() -> dict[str, Any]:
    """Arguments of `mount_gradio_app`: nothing from elsewhere, no uploads, no history."""
    theme = themes.Default(primary_hue="sky", **FONTS).set(  # pyright: ignore[reportArgumentType]
        block_info_text_color="*neutral_600",  # small print dark enough to read
        block_info_text_color_dark="*neutral_300",
        block_label_text_color="*neutral_700",
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_300",
    )
    return {
        "theme": theme,
        "css": (files("open_nvib.app") / "page.css").read_text(encoding="utf-8"),
        "app_kwargs": {"docs_url": None, "redoc_url": None, "openapi_url": None},
        "ssr_mode": False,
        "mcp_server": False,
        "run_history": False,
        "enable_monitoring": False,
        "footer_links": [],
        "max_file_size": "1b",
    }


def _listen(host: str, port: int) -> socket.socket:
    if not 1 <= port <= 65535:
        raise InputError(f"port is {port}, expected 1 to 65535.")
    try:
        family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(where[:2], family=family)
    except OSError as error:
        raise InputError(
            f"host {host}, port {port}: cannot be served from here ({error.strerror}). Give another --port or --host."
        ) from error

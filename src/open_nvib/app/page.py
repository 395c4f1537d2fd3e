"""The page and its server: on this machine alone unless told otherwise, and without asking anything of another."""

import errno
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import gradio as gr
from gradio import themes

from open_nvib.app.handlers import Page, PageBlocks
from open_nvib.app.network import MAX_QUEUE, MAX_SESSIONS, guard
from open_nvib.app.runs import example_pairs, example_texts
from open_nvib.app.tabs import TABS
from open_nvib.store.files import InputError
from open_nvib.text.using.run import Run

FONTS = {
    "font": ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica", "Arial", "sans-serif"],
    "font_mono": ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"],
}

PROXIES = "FORWARDED_ALLOW_IPS"
"""Environment variable from which uvicorn takes the addresses of trusted proxies; its default is this machine."""


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
    blocks.queue(max_size=MAX_QUEUE, api_open=False)
    return blocks


def serve(
    blocks: gr.Blocks,
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    allowed_hosts: Sequence[str] = (),
    open_browser: bool = False,
    wait: bool = True,
) -> str:
    """Serve the page until interrupted, or in the background with `wait` False. Returns its address.

    Requests are answered at this host, on loopback, and at `allowed_hosts`: names that a proxy or a DNS gives it.
    """
    _check_free(host, port)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    settings = launch_settings()
    settings["app_kwargs"]["lifespan"] = guard(blocks, host, allowed_hosts)
    with _trusted_proxies("127.0.0.1,::1" if allowed_hosts else ""):
        _, address, _ = blocks.launch(server_name=host, server_port=port, inbrowser=open_browser, **settings)
    if wait:
        print(f"The page is at {address} (Ctrl+C stops it)", flush=True)
        blocks.block_thread()
    return address


@contextmanager
def _trusted_proxies(addresses: str) -> Iterator[None]:
    """Name the proxies whose X-Forwarded-For a server that starts now believes, unless the environment names them."""
    given = PROXIES in os.environ
    os.environ.setdefault(PROXIES, addresses)
    try:
        yield
    finally:
        if not given:
            del os.environ[PROXIES]


def launch_settings() -> dict[str, Any]:
    """Arguments of `launch`, wherever the page is served: nothing from elsewhere, no uploads, no history."""
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
        "share": False,
        "ssr_mode": False,
        "mcp_server": False,
        "run_history": False,
        "enable_monitoring": False,
        "footer_links": [],
        "max_file_size": "1b",
        "state_session_capacity": MAX_SESSIONS,
        "prevent_thread_lock": True,
        "quiet": True,
    }


def _check_free(host: str, port: int) -> None:
    if not 1 <= port <= 65535:
        raise InputError(f"port is {port}, expected 1 to 65535.")
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"port {port} of {host} is in use. Give another: --port {port + 1}.") from error
        raise InputError(f"host {host}, port {port}: cannot be served from here ({error}).") from error

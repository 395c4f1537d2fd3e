"""What the HTML pages of a folder refer to, and which of it is not there."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src"), ("audio", "src")}
LOADED_RELATIONS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload"}


@dataclass
class Page(HTMLParser):
    """The anchors of a page, where its links lead, and what a browser loads for it."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and set(values.get("rel", "").split()) & LOADED_RELATIONS:
            self.loads.append(values["href"])
        self.loads += [value for name, value in values.items() if (tag, name) in LOADS]


def read_page(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def problems(site: Path) -> list[str]:
    """Each link, anchor or file that is not there, and each that a browser would load from another host."""
    pages = {path.resolve(): read_page(path) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        if name.name == "404.html":  # served at any path, it names its files from the root of a server
            continue
        found += [f"{name}: loads {target} from another host" for target in page.loads if urlsplit(target).netloc]
        for target in {*page.links, *page.loads}:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = _file(site, path, unquote(parts.path))
            if not file.is_file():
                found.append(f"{name}: {target} is not there")
            elif parts.fragment and file in pages and unquote(parts.fragment) not in pages[file].anchors:
                found.append(f"{name}: {target} has no such anchor")
    return sorted(found)


def _file(site: Path, page: Path, path: str) -> Path:
    """The file that a server of the folder sends."""
    if not path:
        return page
    file = (site / path.lstrip("/") if path.startswith("/") else page.parent / path).resolve()
    return file / "index.html" if file.is_dir() else file

"""The server around the page: what it takes, and what it does not give."""

import contextlib
import json
import select
import socket
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import gradio as gr
import httpx
import pytest
from app.conftest import free_port

from open_nvib.app import serve
from open_nvib.app.handlers import PageBlocks, on, shown
from open_nvib.app.network import MAX_OPEN_PER_CLIENT, MAX_POSTS, MAX_POSTS_PER_CLIENT
from open_nvib.app.page import MAX_BODY_BYTES, serving
from open_nvib.app.tabs import length_range, verdict
from open_nvib.store.files import InputError


def call(client, handler: str, values: list) -> dict:
    """Press a button as the page's script does. Returns the answer: "data", or "error" for a refusal of gradio's."""
    return post(client, handler, values, session=uuid.uuid4().hex).json()


def post(client, handler: str, values: list, *, session: str = "x", **options) -> httpx.Response:
    body = {"data": values, "fn_index": handlers(client)[handler], "session_hash": session}
    headers = {"content-type": "application/json"} | options.pop("headers", {})
    return client.post("/gradio_api/run/predict", content=json.dumps(body), headers=headers, **options)


def handlers(client) -> dict[str, int]:
    """The index of the first event of each tab's handler, by the element it writes to."""
    config = client.get("/config").json()
    names = {part["id"]: part["props"].get("elem_id") for part in config["components"]}
    found: dict[str, int] = {}
    for dependency in config["dependencies"]:
        for output in dependency["outputs"]:
            found.setdefault(names.get(output) or "", dependency["id"])
    return found


@pytest.fixture
def client(address):
    with httpx.Client(base_url=address, timeout=60.0) as opened:
        yield opened


def test_a_handler_answers(client, known):
    slider, notes, strip, reconstruction, heat, table = call(client, "inspect-strip", ["nvae", known[0]])["data"]
    assert slider["maximum"] >= slider["value"]
    assert "0.5 for each token" in slider["info"]
    assert notes == ""
    assert "vectors for" in strip
    assert "word for word" in reconstruction
    assert "<table" in table
    assert "(prior)" in heat or "<table" in heat


@pytest.mark.parametrize(
    ("handler", "values", "name"),
    [
        ("inspect-strip", ["nvae", "   "], "sentence"),
        ("inspect-strip", ["nvae", None], "sentence"),
        ("inspect-strip", ["nvae", "word " * 300], "tokens"),
        ("inspect-strip", ["nvae", "x" * 5000], "sentence"),
        ("inspect-strip", ["nvae", "half \ud83d of it"], "character"),
        ("inspect-strip", ["/etc", "a sentence"], "not in the list"),
        ("generate-texts", ["nvae", 10_000, 0, True, 12, 0.3, False], "greater than maximum"),
        ("generate-texts", ["nvae", 5, -1, True, 12, 0.3, False], "seed"),
        ("generate-texts", ["nvae", 5, 0, False, 10**9, 0.3, False], "greater than maximum"),
        ("generate-texts", ["nvae", 5, 0, True, 12, -3, False], "less than minimum"),
        ("compare-cards", [[], "a sentence", ""], "run"),
        ("compare-cards", [["nvae"], " ", "another"], "sentence"),
    ],
)
def test_a_bad_input_is_a_message_and_not_a_traceback(client, handler, values, name):
    said = json.dumps(call(client, handler, values), ensure_ascii=False)
    assert name in said
    assert "Invalid input" in said
    assert "Traceback" not in said
    assert ".py" not in said


def test_a_mistake_clears_old_results(client):
    slider, message, *results = call(client, "inspect-strip", ["nvae", ""])["data"]
    assert slider == {"__type__": "update"}
    assert "Invalid input" in message
    assert results == [""] * 4


def test_a_length_never_seen_in_training_is_warned_about(client, known, runs):
    long = " ".join(known[:4])
    assert "trained with" in call(client, "inspect-strip", ["nvae", long])["data"][1]
    assert "trained with" in call(client, "edit-decoded", ["nvae", long])["data"][3]
    assert "trained with" in call(client, "interpolate-point", ["nvae", known[0], long, 0.5])["data"][0]
    assert "less than minimum" in json.dumps(call(client, "generate-texts", ["nvae", 5, 0, False, 0, 0.3, False]))
    found = length_range(runs["nvae"])
    assert (found["minimum"], found["maximum"]) == runs["nvae"].trained_lengths


def test_a_text_with_unknown_characters_is_never_the_same(runs):
    run = runs["nvae"]
    ids = run.tokenize(["the 漢 council"])[0]
    assert run.tokenizer.unk_token_id in ids
    assert "does not know" in verdict(run, "the 漢 council", ids, ids)
    (known,) = run.tokenize(["the council"])
    assert verdict(run, "the council", known, known) == "the same, word for word"
    assert "word for word" not in verdict(run, "The Council", known, known)


def test_markup_in_a_text_is_shown_as_text(client):
    event = call(client, "inspect-strip", ["nvae", "<img src=x onerror=alert(1)> the council"])
    assert "<img" not in json.dumps(event["data"])


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=/etc/passwd",
        "/file=/etc/passwd",
        "/gradio_api/file=../../../../etc/passwd",
        "/static/../../../../etc/passwd",
        "/static/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/assets/..%2f..%2f..%2f..%2fetc/passwd",
        "/gradio_api/proxy=http://127.0.0.1:22/",
        "/docs",
        "/openapi.json",
    ],
)
def test_files_of_the_machine_stay_there(client, path):
    response = client.get(path)
    assert "root:" not in response.text
    assert response.status_code >= 400


def test_files_of_the_run_stay_there_too(client, trained):
    for path in (trained.path / "config.yaml", trained.path / "model" / "model.safetensors"):
        assert client.get(f"/gradio_api/file={path}").status_code >= 400


def test_a_report_names_no_directory(client, runs):
    """Neither that of the run, which its file names, nor that of its data; and not where the files are gone."""
    path = runs["paper"].path
    made = call(client, "report-frame", ["paper"])
    path.rename(path.with_name("elsewhere"))
    gone = call(client, "report-frame", ["paper"])
    path.with_name("elsewhere").rename(path)
    assert "iframe" in made["data"][0]
    assert "Invalid input" in gone["data"][0]
    assert str(path.parent) not in json.dumps([made, gone])


def test_a_report_is_that_of_the_run_on_the_page(client, runs):
    assert "iframe" in call(client, "report-frame", ["vts"])["data"][0]
    config = runs["vts"].path / "config.yaml"
    before = config.read_text()
    config.write_text(before.replace("seed: 0", "seed: 7"))
    again = call(client, "report-frame", ["vts"])
    config.write_text(before)
    assert "other settings" in again["data"][0]


def test_nothing_can_be_uploaded(client):
    response = client.post("/gradio_api/upload", files={"files": ("a.txt", b"hello")})
    assert response.status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "deep_link?session_hash=x",
        "dev/reload",
        "component_server",
        "custom_component/1/x.js",
        "queue/data",
        "queue/join",
    ],
)
def test_gradio_answers_only_what_the_page_asks_for(client, path):
    """A deep link is a file on disk, the reload a stream without end."""
    assert client.get(f"/gradio_api/{path}").status_code == 404


def test_large_requests_are_refused(client):
    body = b"x" * (MAX_BODY_BYTES + 1)
    assert client.post("/gradio_api/run/predict", content=body).status_code == 413
    pieces = (body[start : start + 65536] for start in range(0, len(body), 65536))  # without a length in the header
    with contextlib.suppress(httpx.HTTPError):  # hung up on: as good
        assert client.post("/gradio_api/run/predict", content=pieces).status_code >= 400


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example", "origin": "http://evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "localhost@evil.example"},
        {"host": "evil@localhost"},
        {"host": "localhost/evil.example"},
        {"host": "http://localhost"},
        {"host": "localhost:x"},
        {"host": "[::1"},
        {"host": ""},
        {"x-forwarded-host": "evil.example"},
        {"x-forwarded-host": "localhost/evil.example"},
        {"x-gradio-server": "http://evil.example"},
        {"origin": "http://evil.example"},
        {"origin": "http://localhost:1"},
        {"host": "localhost", "origin": "file://localhost"},
        {"origin": "null"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "OPTIONS", "POST"])
def test_other_hosts_and_origins_are_refused(client, headers, method):
    preflight = {"access-control-request-method": "POST"} if method == "OPTIONS" else {}
    response = client.request(
        method, "/gradio_api/run/predict" if method == "POST" else "/config", headers=headers | preflight
    )
    assert response.status_code == 403
    assert len(response.text.splitlines()) == 1
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_the_hosts_that_the_page_is_served_at_are_answered(monkeypatch):
    monkeypatch.setenv("SPACE_HOST", "me-space.hf.space")
    with gr.Blocks() as blocks:
        gr.Markdown("a page")
    port = free_port()
    with (
        serving(blocks, host="0.0.0.0", port=port, allowed_hosts=["latent.example"]),
        httpx.Client(timeout=60.0) as client,
    ):
        for host in ("localhost", "127.0.0.1", "127.0.0.9", "latent.example", "me-space.hf.space:443"):
            where = "127.0.0.9" if host == "127.0.0.9" else "127.0.0.1"
            own = {"host": host, "origin": f"https://{host}"}
            assert client.get(f"http://{where}:{port}/config", headers=own).status_code == 200, host
        proxied = {"host": f"127.0.0.1:{port}", "origin": "https://latent.example"}
        assert client.get(f"http://127.0.0.1:{port}/config", headers=proxied).status_code == 200
        assert client.get(f"http://127.0.0.1:{port}/config", headers={"host": "10.1.2.3"}).status_code == 403


def from_address(address: str, own: str) -> httpx.Client:
    return httpx.Client(base_url=address, timeout=60.0, transport=httpx.HTTPTransport(local_address=own))


class Waiting:
    """Requests that wait until they are let go, instead of a model that computes."""

    def __init__(self) -> None:
        self.release, self.entered = threading.Event(), threading.Event()

    def __call__(self, text: str) -> str:
        self.entered.set()
        assert text != "wait" or self.release.wait(60)
        return text


@pytest.fixture(scope="module", params=["", "latent.example"], ids=["direct", "proxied"])
def waiting(request):
    """A small page whose requests wait, where it is served, and whether it is told of a proxy on this machine."""
    wait = Waiting()
    with PageBlocks() as blocks:
        box = gr.Textbox(elem_id="box")
        on([box.submit], wait, [box], [shown("answer")])
    blocks.max_threads = 2
    proxies = [request.param] if request.param else []
    with serving(blocks, host="127.0.0.1", port=free_port(), allowed_hosts=proxies) as address:
        yield wait, address, bool(proxies)


def test_an_answer_that_was_overtaken_changes_nothing(waiting):
    """A text that takes long, then another: the page would show the first again when it is done."""
    wait, address, _ = waiting
    wait.release.clear()
    wait.entered.clear()
    with httpx.Client(base_url=address, timeout=60.0) as client, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(post, client, "answer", ["wait"], session="one")
        assert wait.entered.wait(60)
        assert post(client, "answer", ["short"], session="one").json()["data"] == ["short"]
        assert post(client, "answer", ["other"], session="two").json()["data"] == ["other"]
        wait.release.set()
        (overtaken,) = slow.result().json()["data"]
        assert overtaken["__type__"] == "update"
        assert "value" not in overtaken


def fill(waiting, own: list[str], pose_as: str, count: int) -> Counter[int]:
    """Ask for more than is taken, from these addresses in turn and as a numbered one. Returns the status codes."""
    wait, address, _ = waiting
    wait.release.clear()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(from_address(address, each)) for each in own]
        pool = stack.enter_context(ThreadPoolExecutor(count))

        def ask(number: int) -> int:
            headers = {"x-forwarded-for": pose_as.format(number)}
            return post(clients[number % len(clients)], "answer", ["wait"], headers=headers).status_code

        asked = [pool.submit(ask, number) for number in range(count)]
        ends = time.monotonic() + 60
        while sum(one.done() for one in asked) < count - MAX_POSTS and time.monotonic() < ends:
            time.sleep(0.05)
        wait.release.set()
        return Counter(one.result() for one in asked)


@pytest.mark.parametrize("own", [["127.0.0.1"], ["127.0.0.2", "127.0.0.3", "127.0.0.4"]])
def test_one_client_cannot_take_all_places(waiting, own):
    """Without a proxy nobody is believed to be one, loopback is one machine, and a network of 64 bits is one client."""
    codes = fill(waiting, own, "2001:db8::{:x}" if waiting[2] else "192.0.2.{}", MAX_POSTS + 8)
    assert set(codes) == {200, 429}
    assert codes[200] >= MAX_POSTS_PER_CLIENT


def test_many_clients_are_told_that_the_page_is_full(waiting):
    proxied = waiting[2]
    codes = fill(waiting, ["127.0.0.1"], "192.0.2.{}", MAX_POSTS + 8)
    assert set(codes) == ({200, 503} if proxied else {200, 429})


def test_others_are_answered_while_one_client_has_its_places_full(waiting):
    _, address, proxied = waiting
    if not proxied:
        pytest.skip("without a proxy all come from this machine")
    opened = open_requests(address, "POST /gradio_api/run/predict", "192.0.2.6", MAX_POSTS_PER_CLIENT)
    with httpx.Client(base_url=address, timeout=60.0, headers={"x-forwarded-for": "192.0.2.7"}) as other:
        assert post(other, "answer", ["hello"]).json()["data"] == ["hello"]
    for one in opened:
        one.close()


def open_requests(address: str, line: str, client: str, count: int) -> list[socket.socket]:
    """Send the heads of requests of a client behind a proxy, and leave the connections open."""
    where = httpx.URL(address)
    opened = [socket.create_connection((where.host, where.port or 80), 10) for _ in range(count)]
    head = f"{line} HTTP/1.1\r\nHost: {where.host}\r\nX-Forwarded-For: {client}\r\nContent-Length: 5\r\n\r\n"
    for one in opened:
        one.sendall(head.encode())
    return opened


def test_requests_that_are_still_read_count(waiting):
    """A client that sends the ends of many requests at once gets no more of them into the queue."""
    opened = open_requests(waiting[1], "POST /gradio_api/run/predict", "192.0.2.4", MAX_POSTS_PER_CLIENT + 8)
    ends, answered = time.monotonic() + 30, []
    while len(answered) < 8 and time.monotonic() < ends:
        time.sleep(0.1)
        answered = select.select(opened, [], [], 0)[0]
    codes = [one.recv(100).split()[1] for one in answered]
    for one in opened:
        one.close()
    assert codes == [b"429"] * 8


def test_one_client_cannot_take_all_connections(waiting):
    opened = open_requests(waiting[1], "GET /gradio_api/heartbeat/x", "192.0.2.5", MAX_OPEN_PER_CLIENT + 8)
    codes = Counter(one.recv(100).split()[1] for one in opened)
    if waiting[2]:
        assert httpx.get(f"{waiting[1]}config", timeout=60.0).status_code == 200
    for one in opened:
        one.close()
    assert codes == {b"200": MAX_OPEN_PER_CLIENT, b"429": 8}


WRONG = [{"a": [1]}, [[]], 3, True, "x", None, {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # gradio uses pandas so; as an error it would be logged
def test_wrong_types_log_no_traceback(client, capfd, caplog):
    for handler, index in handlers(client).items():
        count = len(client.get("/config").json()["dependencies"][index]["inputs"])
        for values in (*([wrong] * count for wrong in WRONG), ["nvae", *[{}] * (count - 1)], []):
            call(client, handler, values)
    for body in (
        {"data": [], "fn_index": 10**6, "session_hash": "x"},
        {"data": [], "fn_index": -1},
        {"data": 1},
        [1],
        "x",
    ):
        assert client.post("/gradio_api/run/predict", json=body).status_code >= 400
    said = "".join(capfd.readouterr()) + caplog.text
    assert "Traceback" not in said


def test_a_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port}"):
            serve(gr.Blocks(), port=port)


@pytest.mark.parametrize("port", [0, -1, 70_000])
def test_a_port_that_is_none_is_an_error(port):
    with pytest.raises(InputError, match=f"port is {port}"):
        serve(gr.Blocks(), port=port)


def test_a_host_that_is_not_ours_is_an_error():
    with pytest.raises(InputError, match=r"192\.0\.2\.1"):
        serve(gr.Blocks(), host="192.0.2.1", port=7861)


@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.slow)])
def test_twenty_people_at_once(address, known, seconds):
    ends = time.monotonic() + seconds
    requests = [
        ("inspect-strip", ["nvae", known[0]]),
        ("generate-texts", ["nvae", 4, 1, True, 12, 0.3, False]),
        ("compare-cards", [["nvae", "vts"], known[1], known[0]]),
        ("interpolate-point", ["nvae", known[0], known[1], 0.5]),
    ]
    done, failed = [], []

    def person(number: int) -> None:
        with httpx.Client(base_url=address, timeout=60.0) as client:
            turn = number
            while time.monotonic() < ends:
                handler, values = requests[turn % len(requests)]
                try:
                    event = call(client, handler, values)
                    (done if "Invalid" not in json.dumps(event) else failed).append(handler)
                except Exception as error:
                    failed.append(f"{handler}: {error!r}")
                turn += 1

    people = [threading.Thread(target=person, args=(number,)) for number in range(20)]
    for one in people:
        one.start()
    for one in people:
        one.join()
    assert failed == []
    assert len(done) >= 20

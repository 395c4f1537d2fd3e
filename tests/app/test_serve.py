"""The server around the page: what it takes, and what it does not give."""

import contextlib
import json
import select
import socket
import threading
import time
import uuid
from collections import Counter

import gradio as gr
import httpx
import pytest
from app.conftest import free_port

from open_nvib.app import make_app, network, serve
from open_nvib.app.network import MAX_BODY_BYTES, MAX_OPEN_PER_CLIENT, MAX_PER_CLIENT, MAX_QUEUE
from open_nvib.store.files import InputError


def call(client, handler: str, values: list, *, timeout: float = 60.0) -> dict:
    """Press a button as the page's script does: join the queue, then read until the result is there."""
    session = uuid.uuid4().hex
    index = handlers(client)[handler]
    body = {"data": values, "fn_index": index, "session_hash": session, "event_data": None, "trigger_id": None}
    headers = {"content-type": "application/json"}
    client.post("/gradio_api/queue/join", content=json.dumps(body), headers=headers).raise_for_status()
    with client.stream("GET", f"/gradio_api/queue/data?session_hash={session}", timeout=timeout) as events:
        events.raise_for_status()
        for line in events.iter_lines():
            if line.startswith("data:"):
                event = json.loads(line[5:])
                if event["msg"] == "process_completed":
                    return event
    raise AssertionError(f"{handler}: the server hung up before the result")


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
    event = call(client, "inspect-strip", ["nvae", known[0]])
    assert event["success"]
    _, slider, strip, reconstruction, back, table, heat = event["output"]["data"]
    assert slider["maximum"] >= slider["value"]
    assert "comes back" in back
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
        ("inspect-strip", ["nvae", "half \ud83d of it"], "sentence"),
        ("inspect-strip", ["/etc", "a sentence"], "not in the list"),
        ("generate-texts", ["nvae", 10_000, 0, True, 5, 0.3], "greater than maximum"),
        ("generate-texts", ["nvae", 5, -1, True, 5, 0.3], "seed"),
        ("generate-texts", ["nvae", 5, 0, False, 10**9, 0.3], "greater than maximum"),
        ("generate-texts", ["nvae", 5, 0, True, 5, -3], "less than minimum"),
        ("compare-cards", [[], "a sentence", ""], "run"),
        ("compare-cards", [["nvae"], " ", "another"], "sentence"),
    ],
)
def test_a_bad_input_is_a_message_and_not_a_traceback(client, handler, values, name):
    event = call(client, handler, values)
    assert not event["success"]
    said = json.dumps(event["output"], ensure_ascii=False)
    assert name in said
    assert "Traceback" not in said
    assert ".py" not in said


def test_a_mistake_is_called_one(client):
    assert call(client, "inspect-strip", ["nvae", ""])["output"]["title"] == "Invalid input"


def test_markup_in_a_text_is_shown_as_text(client):
    event = call(client, "inspect-strip", ["nvae", "<img src=x onerror=alert(1)> the council"])
    assert "<img" not in json.dumps(event["output"]["data"])


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
    assert made["success"]
    assert not gone["success"]
    assert str(path.parent) not in json.dumps([made, gone])


def test_a_report_is_that_of_the_run_on_the_page(client, runs):
    assert call(client, "report-frame", ["vts"])["success"]
    config = runs["vts"].path / "config.yaml"
    before = config.read_text()
    config.write_text(before.replace("seed: 0", "seed: 7"))
    again = call(client, "report-frame", ["vts"])
    config.write_text(before)
    assert not again["success"]
    assert "other settings" in again["output"]["error"]


def test_nothing_can_be_uploaded(client):
    response = client.post("/gradio_api/upload", files={"files": ("a.txt", b"hello")})
    assert response.status_code == 404


@pytest.mark.parametrize(
    "path", ["deep_link?session_hash=x", "dev/reload", "component_server", "custom_component/1/client/component/x.js"]
)
def test_gradio_answers_only_what_the_page_asks_for(client, path):
    """A deep link is a file on disk, the reload a stream without end."""
    assert client.get(f"/gradio_api/{path}").status_code == 404


def test_large_requests_are_refused(client):
    body = b"x" * (MAX_BODY_BYTES + 1)
    assert client.post("/gradio_api/queue/join", content=body).status_code == 413
    pieces = (body[start : start + 65536] for start in range(0, len(body), 65536))  # without a length in the header
    with contextlib.suppress(httpx.HTTPError):  # hung up on: as good
        assert client.post("/gradio_api/queue/join", content=pieces).status_code >= 400


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
        method, "/gradio_api/queue/join" if method == "POST" else "/config", headers=headers | preflight
    )
    assert response.status_code == 403
    assert len(response.text.splitlines()) == 1
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_the_hosts_that_the_page_is_served_at_are_answered(runs, monkeypatch):
    monkeypatch.setenv("SPACE_HOST", "me-space.hf.space")
    blocks, port = make_app({"nvae": runs["nvae"]}), free_port()
    try:
        serve(blocks, host="0.0.0.0", port=port, allowed_hosts=["latent.example"], wait=False)
        with httpx.Client() as client:
            for host in ("localhost", "127.0.0.1", "127.0.0.9", "latent.example", "me-space.hf.space:443"):
                where = "127.0.0.9" if host == "127.0.0.9" else "127.0.0.1"
                own = {"host": host, "origin": f"https://{host}"}
                assert client.get(f"http://{where}:{port}/config", headers=own).status_code == 200, host
            proxied = {"host": f"127.0.0.1:{port}", "origin": "https://latent.example"}
            assert client.get(f"http://127.0.0.1:{port}/config", headers=proxied).status_code == 200
            assert client.get(f"http://127.0.0.1:{port}/config", headers={"host": "10.1.2.3"}).status_code == 403
    finally:
        blocks.close()


def from_address(address: str, own: str) -> httpx.Client:
    return httpx.Client(base_url=address, timeout=60.0, transport=httpx.HTTPTransport(local_address=own))


@pytest.fixture(scope="module")
def proxied_address(runs):
    """Where a page is served that is told of a proxy on this machine."""
    blocks = make_app({"nvae": runs["nvae"]})
    yield serve(blocks, port=free_port(), allowed_hosts=["latent.example"], wait=False)
    blocks.close()


def fill_queue(address: str, own: list[str], pose_as: str) -> Counter[int]:
    """Ask for more than the queue takes, from these addresses in turn and as a numbered one. Returns the codes."""
    codes: Counter[int] = Counter()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(from_address(address, each)) for each in own]
        body = {"data": ["nvae", 20, 0, True, 5, 10], "fn_index": handlers(clients[0])["generate-texts"]}
        for number in range(2 * MAX_QUEUE):
            client, headers = clients[number % len(clients)], {"x-forwarded-for": pose_as.format(number)}
            answer = client.post("/gradio_api/queue/join", json=body | {"session_hash": "greedy"}, headers=headers)
            codes[answer.status_code] += 1
    return codes


def test_one_client_cannot_fill_the_queue(proxied_address, known):
    assert set(fill_queue(proxied_address, ["127.0.0.1"], "2001:db8::{:x}")) == {200, 429}
    with httpx.Client(base_url=proxied_address, timeout=60.0, headers={"x-forwarded-for": "192.0.2.1"}) as other:
        assert call(other, "inspect-strip", ["nvae", known[0]])["success"]


@pytest.mark.parametrize("own", [["127.0.0.1"], ["127.0.0.2", "127.0.0.3", "127.0.0.4"]])
def test_one_client_cannot_pose_as_many(address, app_blocks, own):
    """Without a proxy nobody is believed to be one, and loopback is one machine: no answer is 503, of a full queue."""
    assert set(fill_queue(address, own, "192.0.2.{}")) == {200, 429}
    while len(app_blocks._queue):  # other tests use it too
        time.sleep(0.1)


def open_requests(address: str, line: str, client: str, count: int) -> list[socket.socket]:
    """Send the heads of requests of a client behind a proxy, and leave the connections open."""
    where = httpx.URL(address)
    opened = [socket.create_connection((where.host, where.port or 80), 10) for _ in range(count)]
    head = f"{line} HTTP/1.1\r\nHost: {where.host}\r\nX-Forwarded-For: {client}\r\nContent-Length: 5\r\n\r\n"
    for one in opened:
        one.sendall(head.encode())
    return opened


def test_requests_that_are_still_read_count(proxied_address):
    """A client that sends the ends of many requests at once gets no more of them into the queue."""
    opened = open_requests(proxied_address, "POST /gradio_api/queue/join", "192.0.2.4", MAX_PER_CLIENT + 8)
    ends, answered = time.monotonic() + 30, []
    while len(answered) < 8 and time.monotonic() < ends:
        time.sleep(0.1)
        answered = select.select(opened, [], [], 0)[0]
    codes = [one.recv(100).split()[1] for one in answered]
    for one in opened:
        one.close()
    assert codes == [b"429"] * 8


def test_one_client_cannot_take_all_connections(proxied_address):
    opened = open_requests(proxied_address, "GET /gradio_api/heartbeat/x", "192.0.2.5", MAX_OPEN_PER_CLIENT + 8)
    codes = Counter(one.recv(100).split()[1] for one in opened)
    with httpx.Client(base_url=proxied_address, timeout=60.0) as other:
        assert other.get("/config").status_code == 200
    for one in opened:
        one.close()
    assert codes == {b"200": MAX_OPEN_PER_CLIENT, b"429": 8}


def test_answers_that_nobody_fetches_do_not_pile_up(address, app_blocks, known, monkeypatch):
    monkeypatch.setattr(network, "MAX_UNREAD_MESSAGES", 20)
    with from_address(address, "127.0.0.5") as client:
        index = handlers(client)["inspect-strip"]
        for number in range(30):
            body = {"data": ["nvae", known[0]], "fn_index": index, "session_hash": f"deaf-{number % 3}"}
            assert client.post("/gradio_api/queue/join", json=body).status_code == 200
            while len(app_blocks._queue) or app_blocks._queue.get_active_worker_count():
                time.sleep(0.01)
        queue = app_blocks._queue
        assert sum(messages.qsize() for messages in queue.pending_messages_per_session.values()) < 40
        assert sum(len(queue.pending_event_ids_session.get(f"deaf-{number}", ())) for number in range(3)) < 20
        assert call(client, "inspect-strip", ["nvae", known[0]])["success"]


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
        assert client.post("/gradio_api/queue/join", json=body).status_code >= 400
    said = "".join(capfd.readouterr()) + caplog.text
    assert "Traceback" not in said


def test_a_port_in_use_is_named(runs):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port}"):
            serve(make_app({"nvae": runs["nvae"]}), port=port, wait=False)


@pytest.mark.parametrize("port", [0, -1, 70_000])
def test_a_port_that_is_none_is_an_error(port):
    with pytest.raises(InputError, match=f"port is {port}"):
        serve(gr.Blocks(), port=port, wait=False)


def test_a_host_that_is_not_ours_is_an_error():
    with pytest.raises(InputError, match=r"192\.0\.2\.1"):
        serve(gr.Blocks(), host="192.0.2.1", port=7861, wait=False)


@pytest.mark.parametrize("seconds", [5, pytest.param(60, marks=pytest.mark.slow)])
def test_twenty_people_at_once(address, known, seconds):
    ends = time.monotonic() + seconds
    requests = [
        ("inspect-strip", ["nvae", known[0]]),
        ("generate-texts", ["nvae", 4, 1, True, 5, 0.3]),
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
                    (done if event["success"] else failed).append(handler)
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

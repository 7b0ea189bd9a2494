# SPDX-License-Identifier: Apache-2.0
"""The exporter, the files in docs/monitoring against a real Prometheus, and `neutracer top`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import termios
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from compiled import needs_selftest, selftest
from made_up_monitor import MadeUpMonitor
from places import ROOT
from waiting import PATIENCE

import neutracer
from neutracer.cli import top as cli_top
from neutracer.cli.main import main
from neutracer.cli.top import top_lines
from neutracer.monitor.exporter import Application, Server
from neutracer.monitor.memory_monitor import MemoryMonitor
from neutracer.recording import sidecar
from neutracer.render.text import curve_lines

prometheus = pytest.importorskip("prometheus_client")

MIB = 1 << 20

DOCS = ROOT / "docs" / "monitoring"

needs_prometheus = pytest.mark.skipif(
    not shutil.which("prometheus") or not shutil.which("promtool"),
    reason="needs Debian's package prometheus, which is not installed here",
)


@pytest.fixture
def monitor() -> Iterator[MemoryMonitor]:
    selftest.sampler_set(0, 600 * MIB, 800 * MIB, 900 * MIB, 1000 * MIB, 0, 0)
    with MadeUpMonitor(0.01, 0.65, actions=()) as made:
        made.mark("step 1")
        yield made
    selftest.sampler_set(0, 0, 0, 0, 0, 1, 0)


@pytest.fixture
def server(monitor: MemoryMonitor) -> Iterator[neutracer.reports.MetricsServer]:
    with neutracer.serve_metrics(monitor, port=0, rank=3, garbage_interval=None) as made:
        yield made


def fetch(url: str, host: str | None = None) -> str:
    request = urllib.request.Request(url, headers={} if host is None else {"Host": host})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(request, timeout=PATIENCE).read().decode()


def samples(text: str) -> dict[str, float]:
    """The samples of an exposition by name and labels; those of one device without labels."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name.replace('{device="cuda:0",rank="3"}', "")] = float(value)
    return found


# ---- the exporter ----------------------------------------------------------------------


@needs_selftest
def test_metrics_have_base_units_and_labels(server: neutracer.reports.MetricsServer) -> None:
    found = samples(fetch(server.url + "/metrics"))
    assert found["neutracer_allocated_bytes"] == 600 * MIB
    assert found["neutracer_reserved_bytes"] == 800 * MIB
    assert found["neutracer_non_torch_bytes"] == 100 * MIB
    assert found["neutracer_device_size_bytes"] == 1000 * MIB
    assert found["neutracer_unused_ratio"] == 0.25
    assert found["neutracer_used_ratio"] == 0.7
    assert found["neutracer_ooms_total"] == 0
    assert found['neutracer_alert_active{device="cuda:0",kind="threshold",rank="3"}'] == 1
    assert found['neutracer_alerts_total{device="cuda:0",kind="threshold",rank="3"}'] == 1
    assert "neutracer_allocated_growth_bytes_per_second" not in found


@needs_selftest
def test_page_in_docs_lists_every_metric(server: neutracer.reports.MetricsServer) -> None:
    families = re.findall(r"^# TYPE (\w+)", fetch(server.url + "/metrics"), re.M)
    rows = [line for line in (DOCS / "monitoring.md").read_text().splitlines() if "| `" in line]
    listed = " ".join(rows)
    missing = [
        name for name in families if f"`{name}`" not in listed and f"`{name[9:]}`" not in listed
    ]
    assert missing == []


@needs_selftest
def test_collector_fits_a_registry(monitor: MemoryMonitor) -> None:
    registry = prometheus.CollectorRegistry()
    registry.register(neutracer.MetricsCollector(monitor, rank="7", garbage_interval=None))
    labels = {"device": "cuda:0", "rank": "7"}
    assert registry.get_sample_value("neutracer_allocated_bytes", labels) == 600 * MIB


@needs_selftest
def test_metrics_can_be_asked_by_name(server: neutracer.reports.MetricsServer) -> None:
    text = fetch(server.url + "/metrics?name[]=neutracer_allocated_bytes")
    assert re.findall(r"^# TYPE (\w+)", text, re.M) == ["neutracer_allocated_bytes"]
    assert 'neutracer_allocated_bytes{device="cuda:0"' in text


@needs_selftest
def test_server_listens_on_loopback_only(server: neutracer.reports.MetricsServer) -> None:
    assert server.url.startswith("http://127.0.0.1:")
    assert "/metrics" in fetch(server.url, "localhost:1")
    wrong = [
        ("/metrics", "evil.example:9435", 403),
        ("/secrets", None, 404),
        ("/top.json?seconds=soon", None, 400),
    ]
    for path, host, code in wrong:
        with pytest.raises(urllib.error.HTTPError, match=str(code)) as answer:
            fetch(server.url + path, *([host] if host else []))
        answer.value.close()


@needs_selftest
def test_server_gives_its_port_back(monitor: MemoryMonitor) -> None:
    for _ in range(5):
        server = neutracer.serve_metrics(monitor, port=0)
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(OSError):
            neutracer.serve_metrics(monitor, port=port)
        server.stop()
        server.stop()
        assert monitor.running
        try:
            again = neutracer.serve_metrics(monitor, port=port)
        except OSError:
            continue  # another process may have been quicker, and not five times
        with again:
            assert again.url == server.url
        return
    pytest.fail("the port is still taken")


def test_rank_is_that_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar, "_of_group", {})
    monkeypatch.delenv("RANK", raising=False)
    registry = prometheus.CollectorRegistry()
    registry.register(neutracer.MetricsCollector(MemoryMonitor()))
    assert 'neutracer_monitor_cpu_seconds_total{rank="0"}' in exposition(registry)
    # As a process of torch.multiprocessing.spawn, which has no RANK, and joins its group later.
    group = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 2,
        get_world_size=lambda: 4,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    assert 'neutracer_monitor_cpu_seconds_total{rank="2"}' in exposition(registry)
    group.is_initialized = lambda: False
    assert 'neutracer_monitor_cpu_seconds_total{rank="2"}' in exposition(registry)


def exposition(registry: Any) -> str:
    text: str = prometheus.generate_latest(registry).decode()
    return text


def test_port_of_another_rank_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1 port {port}; each process needs its own"):
            neutracer.serve_metrics(MemoryMonitor(), port=port)


def test_unstarted_monitor_has_no_devices() -> None:
    registry = prometheus.CollectorRegistry()
    registry.register(neutracer.MetricsCollector(MemoryMonitor(), rank=0))
    text = prometheus.generate_latest(registry).decode()
    assert "neutracer_allocated_bytes{" not in text
    assert "neutracer_monitor_info{" in text


# ---- docs/monitoring against a real Prometheus -------------------------------------------


def dashboard_queries() -> list[str]:
    plain = json.loads((DOCS / "grafana-dashboard.json").read_text())
    found = [target["expr"] for panel in plain["panels"] for target in panel["targets"]]
    words = {"$__rate_interval": "1m", "$__range": "1m", "$job": ".*", "$rank": ".*"}
    for word, value in {**words, "$device": ".*"}.items():
        found = [query.replace(word, value) for query in found]
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def scraping(server: neutracer.reports.MetricsServer, tmp_path: Path) -> Iterator[str]:
    """The address of a Prometheus that scrapes the exporter twice a second."""
    target = server.url.removeprefix("http://")
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}\n"
        f"rule_files: ['{DOCS / 'prometheus-rules.yml'}']\n"
        "scrape_configs:\n- job_name: training\n"
        f"  static_configs: [{{targets: ['{target}']}}]\n"
    )
    for attempt in range(5):
        base = f"127.0.0.1:{free_port()}"
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path / f'data{attempt}'}",
                f"--web.listen-address={base}",
                "--log.level=error",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            if has_started(process, f"http://{base}"):
                yield f"http://{base}"
                return
        finally:
            process.terminate()
            process.wait(PATIENCE)
    pytest.fail("Prometheus does not start")


def has_started(process: subprocess.Popen[bytes], base: str) -> bool:
    """Whether it answers; False where it ended, because another process took its port."""
    end = time.monotonic() + 2 * PATIENCE
    while process.poll() is None:
        try:
            fetch(f"{base}/-/ready")
        except OSError:
            assert time.monotonic() < end, "Prometheus does not answer"
            time.sleep(0.1)
        else:
            return True
    return False


def ask(base: str, query: str) -> list[Any]:
    url = f"{base}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    answer = json.loads(fetch(url))
    assert answer["status"] == "success", query
    return list(answer["data"]["result"])


def wait_for_query(base: str, query: str) -> list[Any]:
    """Asks until there is an answer: a scrape that comes too late leaves none for a while."""
    end = time.monotonic() + PATIENCE
    while not (found := ask(base, query)) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def rules_of(base: str) -> list[dict[str, Any]]:
    """The rules, once each has been evaluated."""
    end = time.monotonic() + PATIENCE
    while True:
        groups = json.loads(fetch(f"{base}/api/v1/rules"))["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        if all(rule["health"] != "unknown" for rule in rules) or time.monotonic() > end:
            return rules
        time.sleep(0.1)


@needs_selftest
@needs_prometheus
def test_prometheus_reads_dashboard_and_rules(scraping: str) -> None:
    counted = "count_over_time(neutracer_allocated_bytes[1m]) > 5"
    assert wait_for_query(scraping, counted), "Prometheus scraped nothing"
    (sample,) = wait_for_query(scraping, "neutracer_allocated_bytes")
    assert sample["metric"]["job"] == "training"
    assert (sample["metric"]["device"], sample["metric"]["rank"]) == ("cuda:0", "3")
    assert float(sample["value"][1]) == 600 * MIB
    unknown_here = ("growth_bytes_per_second", "largest_free", "garbage")
    silent = [
        query
        for query in dashboard_queries()
        if not any(name in query for name in unknown_here) and not wait_for_query(scraping, query)
    ]
    assert silent == []
    for query in dashboard_queries():
        ask(scraping, query)
    rules = rules_of(scraping)
    assert len(rules) == 9
    assert [rule for rule in rules if rule["health"] != "ok" or rule.get("lastError")] == []


RULE_TESTS = """
rule_files: ['{rules}']
evaluation_interval: 1m
tests:
- interval: 1m
  input_series:
  - series: 'neutracer_used_ratio{{device="cuda:0",rank="0"}}'
    values: '0.5x5 0.95x10'
  - series: 'neutracer_allocated_bytes{{device="cuda:0",rank="0"}}'
    values: '1e9+2e8x60'
  - series: 'neutracer_allocated_bytes{{device="cuda:1",rank="0"}}'
    values: '1e9 9e9 1e9 9e9 1e9 9e9 1e9 9e9 1e9x52'
  - series: 'neutracer_reserved_bytes{{device="cuda:0",rank="0"}}'
    values: '9e9x60'
  - series: 'neutracer_unused_ratio{{device="cuda:0",rank="0"}}'
    values: '0.5x60'
  - series: 'neutracer_ooms_total{{device="cuda:0",rank="0"}}'
    values: '0x10 1x5'
  - series: 'neutracer_monitor_info{{rank="0",road="direct",torch="2.13.0",pid="7"}}'
    values: '1x10 0x10'
  - series: 'neutracer_monitor_info{{rank="1",road="direct",torch="2.13.0",pid="8"}}'
    values: '1x20'
  alert_rule_test:
  - {{alertname: GpuMemoryNearlyFull, eval_time: 4m, exp_alerts: []}}
  - alertname: GpuMemoryNearlyFull
    eval_time: 9m
    exp_alerts:
    - exp_labels: {{severity: warning, device: "cuda:0", rank: "0"}}
      exp_annotations:
        summary: "rank 0, cuda:0: 95% of the device is taken"
        description: "{full}"
  - {{alertname: GpuMemoryFragmented, eval_time: 4m, exp_alerts: []}}
  - alertname: GpuMemoryFragmented
    eval_time: 8m
    exp_alerts:
    - exp_labels: {{severity: warning, device: "cuda:0", rank: "0"}}
      exp_annotations:
        summary: "rank 0, cuda:0: 50% of the reserved memory is unused"
        description: "{holes}"
  - {{alertname: GpuOutOfMemory, eval_time: 9m, exp_alerts: []}}
  - {{alertname: GpuMonitorStopped, eval_time: 12m, exp_alerts: []}}
  - alertname: GpuMonitorStopped
    eval_time: 14m
    exp_alerts:
    - exp_labels: {{severity: warning, rank: "0", road: direct, torch: "2.13.0", pid: "7"}}
      exp_annotations:
        summary: "rank 0: the monitor of process 7 has stopped"
        description: "{stopped}"
  promql_expr_test:
  - expr: count(ALERTS{{alertname="GpuOutOfMemory",alertstate="firing"}})
    eval_time: 13m
    exp_samples: [{{labels: '{{}}', value: 1}}]
  - expr: count(ALERTS{{alertname="GpuMemoryGrows",alertstate="firing"}}) by (device)
    eval_time: 50m
    exp_samples: [{{labels: '{{device="cuda:0"}}', value: 1}}]
"""


@needs_prometheus
def test_alert_rules_fire_when_they_should(tmp_path: Path) -> None:
    rules = DOCS / "prometheus-rules.yml"
    said = dict(re.findall(r"alert: (\w+).*?description: \"(.*?)\"\n", rules.read_text(), re.S))
    file = tmp_path / "tests.yml"
    file.write_text(
        RULE_TESTS.format(
            rules=rules,
            full=said["GpuMemoryNearlyFull"],
            holes=said["GpuMemoryFragmented"],
            stopped=said["GpuMonitorStopped"],
        )
    )
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    checked = subprocess.run(["promtool", "check", "rules", rules], capture_output=True, text=True)
    assert "9 rules found" in checked.stdout


@needs_selftest
@needs_prometheus
def test_promtool_finds_no_fault_in_metrics(server: neutracer.reports.MetricsServer) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=fetch(server.url + "/metrics"),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_dashboard_uses_only_told_metrics() -> None:
    text = (DOCS / "monitoring.md").read_text()
    names = {name for query in dashboard_queries() for name in re.findall(r"neutracer_\w+", query)}
    unknown = [name for name in names if name not in text and name[9:] not in text]
    assert unknown == []
    plain = json.loads((DOCS / "grafana-dashboard.json").read_text())
    assert len({panel["id"] for panel in plain["panels"]}) == len(plain["panels"])


# ---- neutracer top -----------------------------------------------------------------------


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_top, "_PATIENCE_S", PATIENCE)


@needs_selftest
def test_top_shows_a_running_job(
    server: neutracer.reports.MetricsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    end = time.monotonic() + PATIENCE
    while server.monitor.get_stats()["samples"] < 5 and time.monotonic() < end:
        time.sleep(0.01)
    assert main(["top", "--once", server.url]) == 0
    out = capsys.readouterr().out
    assert "rank 3" in out
    assert "phase step 1" in out
    assert re.search(r"allocated +600\.0 MiB +60\.0 %", out)
    assert "25.0 % of it unused" in out
    assert re.search(r"not PyTorch's .* contexts, libraries, others", out)
    assert "70.0 % of 1,000 MiB is taken" in out
    assert "█" in out


@needs_selftest
def test_top_gives_json(
    server: neutracer.reports.MetricsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    port = server.url.rpartition(":")[2]
    assert main(["top", "--once", "--json", f":{port}", f"localhost:{port}/metrics"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["schema"] == "neutracer.tops/1"
    assert [job["rank"] for job in plain["jobs"]] == ["3", "3"]
    assert plain["silent"] == []
    device = plain["jobs"][0]["devices"][0]
    assert device["current_bytes"] == 600 * MIB
    assert max(device["curve"]["reserved"]) == 800 * MIB


@needs_selftest
@pytest.mark.parametrize("as_json", [False, True])
def test_top_goes_on_with_other_ranks(
    monitor: MemoryMonitor,
    as_json: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    def between_looks(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            dying.stop()
        elif looks == 3:
            raise KeyboardInterrupt
        living.monitor.mark(f"look {looks}")

    def serving(rank: int) -> neutracer.reports.MetricsServer:
        return neutracer.serve_metrics(
            monitor, port=0, rank=rank, layout_interval=None, garbage_interval=None
        )

    with serving(1) as dying, serving(0) as living:
        monkeypatch.setattr(
            cli_top, "time", SimpleNamespace(sleep=between_looks, monotonic=time.monotonic)
        )
        assert main(["top", *(["--json"] if as_json else []), living.url, dying.url]) == 0
    told = capsys.readouterr().out
    if as_json:
        pages = list(documents(told))
        ranks = [[job["rank"] for job in page["jobs"]] for page in pages]
        assert ranks == [["0", "1"], ["0"], ["0"]]
        assert pages[0]["silent"] == []
        for page in pages[1:]:
            (why,) = page["silent"]
            assert f"{dying.url}: no exporter answers there" in why
    else:
        assert "phase look 2" in told
        # The rank that died is shown as it was when it was seen last.
        assert told.count("rank 1") == 3
        assert told.count(f"{dying.url}: no exporter answers there") == 2


def documents(text: str) -> Iterator[Any]:
    """JSON documents that stand one behind the other."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        plain, at = decoder.raw_decode(text, at)
        at += 1
        yield plain


def test_top_says_where_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as silent:
        # Its own, so that nobody else answers there, and not listened on.
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        assert main(["top", "--once", f"http://127.0.0.1:{port}"]) == 2
    told = capsys.readouterr().err
    assert f"127.0.0.1:{port}: no exporter answers there" in told
    assert "neutracer.serve_metrics() starts one" in told
    assert main(["top", "file:///etc/passwd"]) == 2
    assert main(["top", "--interval", "0", ":1"]) == 2


NAN = b'{"schema": "neutracer.top/1", "pid": NaN}'


@pytest.mark.parametrize(
    "body",
    [b"[]", b"{", b'{"schema": "other/1"}', b"[" * 100_000, NAN, NAN.replace(b"NaN", b"1e999")],
)
def test_top_refuses_other_servers(body: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(environ: dict[str, Any], start: Any) -> list[bytes]:
        start("200 OK", [("Content-Type", "application/json")])
        return [body]

    application = Application(answer, dict)
    server = Server("127.0.0.1", 0, application)
    server._listener.set_app(answer)
    server.start()
    try:
        assert main(["top", "--once", server.url]) == 2
    finally:
        server.stop()
    assert "not a neutracer exporter" in capsys.readouterr().err


def test_top_waits_for_no_server_that_drips(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_top, "_MOST_S", 0.5)
    ended = threading.Event()

    def drip(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client, contextlib.suppress(OSError):
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while not ended.wait(0.05):
                client.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        dripping = threading.Thread(target=drip, args=(listener,))
        dripping.start()
        begin = time.monotonic()
        assert main(["top", "--once", f":{listener.getsockname()[1]}"]) == 2
        assert time.monotonic() - begin < 10
        ended.set()
        dripping.join()
    assert "no whole answer" in capsys.readouterr().err


def test_label_with_a_lone_surrogate_is_served() -> None:
    monitor = neutracer.MemoryMonitor(devices="cpu")
    with neutracer.serve_metrics(monitor, port=0, rank="rank\udce9", garbage_interval=None) as made:
        text = urllib.request.urlopen(f"{made.url}/metrics", timeout=PATIENCE).read()
    assert rb'rank="rank\\udce9"' in text


HOSTILE: dict[str, Any] = {
    "host": "\x1b[2J",
    "rank": ["x"],
    "devices": [
        3,
        {
            "device": "cuda:0\x1b]0;x\x07",
            "current_bytes": -5,
            "total_bytes": 10**400,
            "reserved_bytes": "many",
            "growth_bytes_per_s": True,
            "curve": {"time_us": [1, "x"], "allocated": [1, 10**400], "reserved": [None, 2]},
        },
    ],
    "alerts": [{"message": "a\nb\x1b[31m", "time_us": "x"}, None],
    "holders": [{"bytes": 1.5, "place": {}, "function": "\u202e"}],
}


@pytest.mark.parametrize("plain", [True, False])
def test_top_believes_nothing_it_is_told(plain: bool) -> None:
    lines = top_lines([HOSTILE, {}], 80, plain=plain)
    text = "\n".join("".join(span.text for span in line) for line in lines)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    if plain:
        assert "█" not in text


def test_top_goes_on_until_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [{"schema": "neutracer.top/1", "host": "one"}, None, {"host": "two"}]

    def fetch_next(url: str) -> Any:
        answer = answers.pop(0)
        if answer is None:
            raise neutracer.NeutracerError("it went away")
        return answer

    def sleep(seconds: float) -> None:
        if not answers:
            raise KeyboardInterrupt

    monkeypatch.setattr(cli_top, "_fetch", fetch_next)
    monkeypatch.setattr(cli_top.time, "sleep", sleep)
    assert main(["top", ":9435"]) == 0
    out = capsys.readouterr().out
    assert out.index("one") < out.index("it went away") < out.index("two")


@pytest.mark.parametrize("keys", [b"q", b"xyQ"])
def test_top_ends_at_q(
    keys: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = []

    def fetch_next(url: str) -> Any:
        looks.append(url)
        if len(looks) == 3:
            os.write(keyboard, keys)
        return {"schema": "neutracer.top/1", "host": f"look {len(looks)}"}

    keyboard, terminal = os.openpty()
    try:
        with os.fdopen(terminal, closefd=False) as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            monkeypatch.setattr(cli_top, "_fetch", fetch_next)
            before = termios.tcgetattr(terminal)
            assert main(["top", "--interval", "0.1", ":9435"]) == 0
            assert termios.tcgetattr(terminal) == before
    finally:
        os.close(keyboard)
        os.close(terminal)
    lines = capsys.readouterr().out.splitlines()
    assert len(looks) == 3
    assert lines[-1] == "q quits"


def test_curve_has_solid_and_shade() -> None:
    lines = curve_lines([0, 4, 8, 8], [8, 8, 8, 8], 8, width=15, height=2)
    text = ["".join(span.text for span in line) for line in lines]
    assert [line[11:] for line in text] == ["░░██", "░███"]
    plain = curve_lines([0, 4, 8, 8], [8, 8, 8, 8], 8, width=13, height=2, plain=True)
    assert ["".join(span.text for span in line)[11:] for line in plain] == [".#", "##"]
    assert curve_lines([], [], 8, width=20) == []


@needs_selftest
def test_scrapes_do_not_disturb_each_other(server: neutracer.reports.MetricsServer) -> None:
    texts: list[str] = []
    threads = [
        threading.Thread(target=lambda: texts.append(fetch(server.url + "/metrics")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 8
    assert all(samples(text)["neutracer_allocated_bytes"] == 600 * MIB for text in texts)


@pytest.mark.parametrize("port", [-1, 65_536, "9435"])
def test_ports_that_are_none_are_refused(port: Any) -> None:
    with pytest.raises(ValueError, match="0 to 65535"):
        neutracer.serve_metrics(port=port)


def test_monitor_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="MemoryMonitor"):
        neutracer.serve_metrics(object())  # type: ignore[arg-type]

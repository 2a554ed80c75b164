"""Failed runs and failed gates reach a webhook and a mail server; without them nothing is sent."""

import datetime as dt
import email
import http.server
import json
import logging
import socketserver
import ssl
import threading

import dagster as dg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import ValidationError

from rag_eval.core.errors import InputError
from rag_eval.core.settings import Alerts, Smtp
from rag_eval.defs.alerts import Alert, make_alert_sensors, read_failure, send
from rag_eval.defs.build import build_definitions

MAIL = {"host": "127.0.0.1", "tls": "none", "sender": "night@example.org"}


@pytest.fixture
def start():
    """Return a function that starts a server in a thread and returns its port."""
    servers = []

    def run(server: socketserver.BaseServer) -> int:
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server.server_address[1]

    yield run
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def webhook(start):
    """Yield the address of a web server, and the bodies that it received."""
    bodies = []

    class Receive(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            size = int(self.headers["Content-Length"])
            bodies.append(json.loads(self.rfile.read(size)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    port = start(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receive))
    return f"http://127.0.0.1:{port}/hook", bodies


@pytest.fixture
def mailbox(start):
    """Yield the port of a mail server, and the letters that it received."""
    letters = []

    class Receive(socketserver.StreamRequestHandler):
        def handle(self):
            self.wfile.write(b"220 ready\r\n")
            for line in self.rfile:
                word = line[:4].upper()
                if word == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    lines = list(iter(self.rfile.readline, b".\r\n"))
                    letters.append(email.message_from_bytes(b"".join(lines)))
                self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")

    return start(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Receive)), letters


def failed_run(instance: dg.DagsterInstance, failure: Exception, **tags) -> dg.SensorDefinition:
    """Run a job that fails at the verdict, and return the context of its failure sensors."""

    @dg.op(name="reporting__gate_verdict")
    def verdict():
        raise failure

    @dg.job
    def night():
        verdict()

    tags = {"dagster/partition": "handbook"} | {
        f"dagster/{name}": one for name, one in tags.items()
    }
    result = night.execute_in_process(instance=instance, raise_on_error=False, tags=tags)
    return dg.build_run_status_sensor_context(
        "alert",
        result.get_run_failure_event(),
        instance,
        result.dagster_run,
    ).for_run_failure()


GATES = dg.Failure(
    "required gates did not pass: acceptance.mrr, trust",
    metadata={"failed": "acceptance.mrr, trust"},
)


def tick(alerts: Alerts, context: dg.RunFailureSensorContext) -> None:
    for sensor in make_alert_sensors(alerts):
        sensor(context)


def test_installation_without_alerts_has_no_sensor(project):
    assert not list(build_definitions(project.settings).sensors or [])
    alerts = Alerts(webhook="http://127.0.0.1:1")
    settings = project.settings.model_copy(update={"alerts": alerts})
    sensors = list(build_definitions(settings).sensors)
    assert [sensor.name for sensor in sensors] == ["alert_run_failed", "alert_gates_failed"]
    assert {sensor.default_status for sensor in sensors} == {dg.DefaultSensorStatus.RUNNING}


def test_failed_gates_reach_both_receivers_once(instance, webhook, mailbox):
    address, bodies = webhook
    port, letters = mailbox
    mail = Smtp(**MAIL, port=port, to=("a@example.org", "b@example.org"))
    context = failed_run(instance, GATES)
    tick(Alerts(webhook=address, smtp=mail, dagster_url="http://dagster:3000/"), context)
    run_id = context.dagster_run.run_id
    link = f"http://dagster:3000/runs/{run_id}"
    assert bodies == [
        {
            "event": "gates_failed",
            "gold_set": "handbook",
            "run_id": run_id,
            "failed": ["acceptance.mrr", "trust"],
            "message": "required gates did not pass: acceptance.mrr, trust",
            "link": link,
            "text": f"rag_eval handbook: required gates did not pass: acceptance.mrr, trust {link}",
        }
    ]
    (letter,) = letters
    assert letter["Subject"] == "rag_eval handbook: required gates did not pass"
    assert letter["To"] == "a@example.org, b@example.org"
    assert {"acceptance.mrr", "trust", link} <= set(letter.get_payload().splitlines())


def test_failed_run_is_reported_without_the_text_of_foreign_errors(instance, webhook):
    address, bodies = webhook
    tick(Alerts(webhook=address), failed_run(instance, ValueError("a quote of the corpus")))
    (body,) = bodies
    assert (body["event"], body["failed"]) == ("run_failed", ["reporting__gate_verdict"])
    assert (body["link"], body["message"]) == (None, "Dagster shows the error")
    assert "quote" not in json.dumps(body)


def test_run_of_the_job_is_reported_with_its_masked_problem(project, instance):
    project.change("depth: 20", "depht: 20")
    alert = read_failure(project.run(instance).failed_context(instance), None)
    assert (alert.event, alert.gold_set) == ("run_failed", "smoke")
    assert alert.failed == ["corpus__corpus_snapshot"]
    assert "unknown_key" in alert.message


def test_a_run_that_is_tried_again_is_not_reported(instance, webhook):
    address, bodies = webhook
    tick(Alerts(webhook=address), failed_run(instance, GATES, will_retry="true"))
    assert bodies == []
    tick(Alerts(webhook=address), failed_run(instance, GATES, will_retry="false"))
    assert len(bodies) == 1


def test_texts_of_gold_sets_are_bounded_and_give_no_orders(webhook, mailbox):
    address, bodies = webhook
    port, letters = mailbox
    gates = [f"<!channel>{'x' * 500}"] + [f"gate_{number}" for number in range(50)]
    context = failed_run(
        dg.DagsterInstance.ephemeral(),
        dg.Failure("long " * 500, metadata={"failed": ", ".join(gates)}),
        partition="a\nTo: all@example.org",
    )
    mail = Smtp(**MAIL, port=port, to=("a@example.org",))
    tick(Alerts(webhook=address, smtp=mail), context)
    (body,), (letter,) = bodies, letters
    assert len(body["failed"]) == 20
    assert "<!channel>" not in body["text"]
    assert len(json.dumps(body)) < 3000
    assert letter["To"] == "a@example.org"


def test_unreachable_receivers_are_logged_without_secrets(caplog):
    alert = Alert("run_failed", "handbook", "1234", [], "", None)
    webhook = "http://bob:S3cretWord@127.0.0.1:1/"
    mail = Smtp(**MAIL, port=1, to=("a@example.org",))
    send(alert, Alerts(webhook=webhook, smtp=mail), logging.getLogger("alerts"))
    webhook_line, mail_line = [record.getMessage() for record in caplog.records]
    assert "alert of run 1234 did not reach the webhook of 127.0.0.1" in webhook_line
    assert "did not reach the mail server 127.0.0.1" in mail_line
    assert "S3cretWord" not in caplog.text


@pytest.fixture
def self_signed(tmp_path):
    """Return the TLS context of a server that no authority vouches for."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    start = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(days=36_500))
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    place = tmp_path / "server.pem"
    place.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
        + certificate.public_bytes(pem)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place)
    return context


def test_mail_server_needs_a_certificate_that_an_authority_vouches_for(start, self_signed, caplog):
    class Shake(socketserver.BaseRequestHandler):
        def handle(self):
            with pytest.raises(ssl.SSLError):
                self_signed.wrap_socket(self.request, server_side=True)

    port = start(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Shake))
    mail = Smtp(**MAIL | {"tls": "tls"}, port=port, to=("a@example.org",))
    alert = Alert("run_failed", "handbook", "1234", [], "", None)
    send(alert, Alerts(smtp=mail), logging.getLogger("alerts"))
    assert "certificate verify failed" in caplog.text


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"webhook": "file:///etc/passwd"}, "accepted: http:// or https://"),
        ({"smtp": {**MAIL, "to": []}}, "at least 1 item"),
        ({"smtp": {**MAIL, "to": ["a@b, c@d"]}}, "pattern"),
        ({"smtp": {**MAIL, "to": ["a@b"], "user": "bob"}}, "belong together"),
        ({"smtp": {**MAIL, "to": ["a@b"], "user": "bob", "password_env": "X"}}, "needs tls"),
    ],
)
def test_unusable_receivers_are_refused(given, reason):
    with pytest.raises(ValidationError, match=reason):
        Alerts(**given)


def test_missing_password_is_refused_when_the_definitions_load(monkeypatch):
    monkeypatch.delenv("MAIL_PASSWORD", raising=False)
    mail = {**MAIL, "tls": "tls", "to": ["a@b"], "user": "bob", "password_env": "MAIL_PASSWORD"}
    with pytest.raises(InputError, match="set the variable MAIL_PASSWORD"):
        make_alert_sensors(Alerts(smtp=mail))

"""Sensors that report failed runs and failed gates, by a webhook or by e-mail.

An installation without `alerts` in its settings has no sensor.
"""

import dataclasses
import html
import http.client
import json
import logging
import os
import smtplib
import ssl
import urllib.parse
import urllib.request
from collections.abc import Callable
from email.message import EmailMessage
from typing import Final, Literal

import dagster as dg

from rag_eval.core.errors import InputError, quoted
from rag_eval.core.settings import Alerts, Smtp
from rag_eval.storage.secrets import without_secrets

Event = Literal["run_failed", "gates_failed"]
EVENTS: Final[dict[Event, str]] = {
    "run_failed": "Reports a run that failed and that Dagster does not try again.",
    "gates_failed": "Reports a run whose required gates did not pass.",
}
TIMEOUT_S: Final = 10.0
"""Time-out of each connection. A sensor has 60 seconds in all."""
MAX_NAMES: Final = 20
"""Largest number of gates or steps that an alert names."""


@dataclasses.dataclass(frozen=True)
class Alert:
    """A failed run, as receivers see it.

    `failed` names the gates or the steps. `link` is the run in Dagster, if its address is known.
    """

    event: Event
    gold_set: str
    run_id: str
    failed: list[str]
    message: str
    link: str | None

    @property
    def title(self) -> str:
        """One line for a subject or a chat."""
        what = "required gates did not pass" if self.event == "gates_failed" else "the run failed"
        return f"rag_eval {self.gold_set}: {what}"


def read_failure(context: dg.RunFailureSensorContext, dagster_url: str | None) -> Alert:
    """Describe a failed run by its failed steps and blocking checks.

    Only failures of rag_eval are quoted, because their texts are masked.
    """
    steps, gates, reasons, run = list[str](), list[str](), list[str](), context.dagster_run
    for event in context.get_step_failure_events():
        told = event.step_failure_data.user_failure_data
        steps.append(quoted(event.step_key))
        if told is not None:
            reasons.append(quoted(told.description or "", 400))
            if "failed" in told.metadata:
                gates += str(told.metadata["failed"].value).split(", ")
    records = context.instance.get_records_for_run(
        run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION
    ).records
    for record in records:
        check = record.event_log_entry.get_dagster_event().asset_check_evaluation_data
        if not check.passed and check.severity == dg.AssetCheckSeverity.ERROR:
            reasons.append(f"the check {check.check_name} did not pass")
    if not steps:
        reasons = ["no step reported a failure: the worker was lost or did not start"]
    return Alert(
        "gates_failed" if gates else "run_failed",
        quoted(run.tags.get("dagster/partition", "without a gold set")),
        run.run_id,
        [quoted(name) for name in (gates or steps)[:MAX_NAMES]],
        "; ".join(reasons) or "Dagster shows the error",
        f"{dagster_url.rstrip('/')}/runs/{run.run_id}" if dagster_url else None,
    )


def post(alert: Alert, address: str) -> None:
    """Post an alert as JSON. `text` is the line that chat services show."""
    text = f"{alert.title}: {', '.join(alert.failed)} {alert.link or ''}".strip()
    # chat services read `<!channel>` in a text as a command
    body = {"text": html.escape(text, quote=False), **dataclasses.asdict(alert)}
    request = urllib.request.Request(  # noqa: S310 - the settings accept only http and https
        address, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310 - as above
        pass


def mail(alert: Alert, smtp: Smtp) -> None:
    """Send an alert as a plain text."""
    message = EmailMessage()
    message["Subject"], message["From"] = alert.title, smtp.sender
    message["To"] = ", ".join(smtp.to)
    lines = [alert.message, *alert.failed, f"run {alert.run_id}", alert.link or ""]
    message.set_content("\n".join(lines))
    place: tuple[str, int] = (smtp.host, smtp.port)
    safe = ssl.create_default_context()  # smtplib's own default checks no certificate
    with (
        smtplib.SMTP_SSL(*place, timeout=TIMEOUT_S, context=safe)
        if smtp.tls == "tls"
        else smtplib.SMTP(*place, timeout=TIMEOUT_S)
    ) as server:
        if smtp.tls == "starttls":
            server.starttls(context=safe)
        if smtp.user and smtp.password_env:
            server.login(smtp.user, os.environ[smtp.password_env])
        server.send_message(message)


def send(alert: Alert, alerts: Alerts, log: logging.Logger) -> None:
    """Send an alert to every receiver. A failure is logged, so that other receivers get theirs."""
    ways: dict[str, Callable[[], None]] = {}
    if alerts.webhook is not None:
        address = alerts.webhook.get_secret_value()
        ways[f"webhook of {urllib.parse.urlsplit(address).hostname}"] = lambda: post(alert, address)
    if alerts.smtp is not None:
        smtp = alerts.smtp
        ways[f"mail server {smtp.host}"] = lambda: mail(alert, smtp)
    for name, way in ways.items():
        try:
            way()
        except (OSError, ValueError, http.client.HTTPException, smtplib.SMTPException) as error:
            address = alerts.webhook.get_secret_value() if alerts.webhook else ""
            reason = quoted(without_secrets(f"{type(error).__name__}: {error}", address), 400)
            log.error(  # noqa: TRY400 - no traceback, because it may hold the address, which is a secret
                "the alert of run %s did not reach the %s: %s", alert.run_id, name, reason
            )


def make_alert_sensors(alerts: Alerts) -> list[dg.SensorDefinition]:
    """Make a sensor for each event; none if no receiver is configured.

    Raises InputError if the variable with the password of the mail server is missing.
    """
    if alerts.webhook is None and alerts.smtp is None:
        return []
    name = alerts.smtp.password_env if alerts.smtp else None
    if name is not None and name not in os.environ:
        raise InputError.of(
            "missing_variable",
            "the password of the mail server is not set",
            field="alerts.smtp.password_env",
            accepted=f"set the variable {name}",
        )
    return [_make_sensor(event, alerts) for event in EVENTS]


def _make_sensor(event: Event, alerts: Alerts) -> dg.SensorDefinition:
    @dg.run_failure_sensor(
        name=f"alert_{event}",
        description=EVENTS[event],
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    def sensor(context: dg.RunFailureSensorContext) -> None:
        if context.dagster_run.tags.get("dagster/will_retry") == "true":
            return  # the last try reports
        alert = read_failure(context, alerts.dagster_url)
        if alert.event == event:
            send(alert, alerts, context.log)

    return sensor

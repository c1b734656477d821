"""The log over OTLP, by the SDK of OpenTelemetry, without secrets.

This module is not loaded while the export is off.
"""

from __future__ import annotations

import logging
import traceback

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

from nakadi.app.logs import without_secrets
from nakadi.app.open_telemetry import CLOSE_TIMEOUT_MILLISECONDS, require_otlp, resource_of_process
from nakadi.http.application import current_flow_id

_SEVERITIES = (
    (logging.CRITICAL, SeverityNumber.FATAL),
    (logging.ERROR, SeverityNumber.ERROR),
    (logging.WARNING, SeverityNumber.WARN),
    (logging.INFO, SeverityNumber.INFO),
    (logging.NOTSET, SeverityNumber.DEBUG),
)

_SENDING_LOGGERS = ("opentelemetry", "urllib3", "requests")
"""The loggers of the code that sends log lines over OTLP. Sending their lines would log more such lines."""


def open_log_export(protocol: str) -> LogExport:
    """Begin to send what the process logs to the receiver that the variables `OTEL_…` name. Raises `BadSetting`."""
    require_otlp("NAKADI_LOGS", protocol)
    return LogExport(BatchLogRecordProcessor(OTLPLogExporter()))


class LogExport(logging.Handler):
    """Hands what the process logs to a processor of the SDK, until `close` is called.

    The SDK's own handler would send the texts of exceptions unchanged, and these may contain tokens.
    """

    def __init__(self, processor: LogRecordProcessor) -> None:
        super().__init__()
        self._provider = LoggerProvider(resource=resource_of_process(), shutdown_on_exit=False)
        self._provider.add_log_record_processor(processor)
        self._logger = self._provider.get_logger("nakadi")
        logging.getLogger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(_SENDING_LOGGERS):
            return
        try:
            self._logger.emit(_otlp_record(record))
        except Exception:  # noqa: BLE001  # whatever it was, what logs goes on
            self.handleError(record)

    def close(self) -> None:
        logging.getLogger().removeHandler(self)
        self._provider.force_flush(CLOSE_TIMEOUT_MILLISECONDS)
        self._provider.shutdown()
        super().close()


def _otlp_record(record: logging.LogRecord) -> LogRecord:
    attributes = {"logger.name": record.name}
    if flow_id := current_flow_id.get():
        attributes["nakadi.flow_id"] = flow_id
    if record.exc_info and record.exc_info[0] is not None:
        attributes["exception.type"] = record.exc_info[0].__name__
        attributes["exception.stacktrace"] = without_secrets("".join(traceback.format_exception(*record.exc_info)))
    return LogRecord(
        timestamp=round(record.created * 1e9),
        severity_text=record.levelname,
        severity_number=next(severity for level, severity in _SEVERITIES if record.levelno >= level),
        body=without_secrets(record.getMessage()),
        attributes=attributes,
    )

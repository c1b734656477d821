"""The failures that commands report, with the exit code of each."""

from __future__ import annotations

import click


class Failed(click.ClickException):
    """Raised if a command fails; the message is a sentence."""

    exit_code = 1

    def show(self, file: object = None) -> None:  # noqa: ARG002  # click's signature
        click.secho("Error: ", fg="red", nl=False, err=True)
        click.echo(self.message, err=True)


class CheckFoundProblems(Failed):
    """The result is negative: there are differences, a schema does not fit, or a broker is not healthy."""

    exit_code = 1


class BadInput(Failed):
    """A file, an option or the configuration cannot be used as it is."""

    exit_code = 2


class Refused(Failed):
    """The broker answered, and refused: 4xx."""

    exit_code = 3


class NotPermitted(Refused):
    """The broker does not know the caller, or does not let the caller do this: 401 and 403."""

    exit_code = 4


class NotFound(Refused):
    """A requested resource does not exist: 404."""

    exit_code = 5


class Conflict(Refused):
    """The name is taken, or another operation is in progress: 409."""


class NotAnswered(Failed):
    """The broker cannot be reached, or could not do its work: 5xx."""

    exit_code = 6


class PartlyFailed(Failed):
    """Part of the work was done, and part was not."""

    exit_code = 7

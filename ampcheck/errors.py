"""What can go wrong, as a tree.

AmpcheckError            expected, got, do this; the command line prints it and exits with 2
+-- TargetError          what is to be audited could not be loaded or built
+-- StepError            the user's model or loss raised during a step
+-- ReportError          a saved report could not be read or written
+-- ConfigError          what pyproject.toml or a command line asks for makes no sense
"""


class AmpcheckError(Exception):
    """A problem the user can act on: a message, the place in their code, and the lines that would fix it."""

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        """Keep the message, `where` as "file:line", and `hint` as the lines that would help."""
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        """Return the place and the message in one line."""
        return f"{self.where}: {self.message}" if self.where else self.message


class TargetError(AmpcheckError):
    """The thing to audit could not be loaded or built."""


class StepError(AmpcheckError):
    """The user's model, loss or optimizer raised while a step was running."""


class ReportError(AmpcheckError):
    """A saved report could not be read or written."""


class ConfigError(AmpcheckError):
    """What pyproject.toml or a command line asks for makes no sense."""

"""What happens before pytest collects anything, once one of our options is used."""

import pytest

from ampcheck.errors import AmpcheckError
from ampcheck.pytest_plugin.auditing import explained
from ampcheck.pytest_plugin.collecting import TargetCollection
from ampcheck.pytest_plugin.marking import wanted
from ampcheck.pytest_plugin.options import given


def start(config: pytest.Config) -> None:
    """Refuse options that make no sense, and have the targets collected that were asked for."""
    try:
        wanted(config, config.rootpath, ())
        if given(config, "ampcheck") or given(config, "files"):
            config.pluginmanager.register(TargetCollection(config), "ampcheck-targets")
    except AmpcheckError as error:
        raise pytest.UsageError(explained(error)) from error

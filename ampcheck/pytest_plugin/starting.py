"""What happens before pytest collects anything, once one of our options is used."""

import pytest

from ampcheck.compare.baseline_json import read
from ampcheck.errors import AmpcheckError, ConfigError
from ampcheck.pytest_plugin.auditing import explained
from ampcheck.pytest_plugin.collecting import TargetCollection
from ampcheck.pytest_plugin.marking import wanted
from ampcheck.pytest_plugin.options import given
from ampcheck.pytest_plugin.ratchet import UPDATE, BaselineUpdate


def start(config: pytest.Config) -> None:
    """Refuse options that make no sense, and have the targets collected that were asked for."""
    try:
        path = wanted(config, config.rootpath, ()).config.baseline
        if config.option.ampcheck_update_baseline:
            config.pluginmanager.register(BaselineUpdate(config), UPDATE)
            if path is None:
                raise ConfigError(
                    "expected a baseline to update, got none; name it with --ampcheck-baseline FILE"
                )
        if path is not None and path.exists():
            read(path)  # one that cannot be read is refused before anything is run
        if given(config, "ampcheck") or given(config, "files"):
            config.pluginmanager.register(TargetCollection(config), "ampcheck-targets")
    except AmpcheckError as error:
        raise pytest.UsageError(explained(error)) from error

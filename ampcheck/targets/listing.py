"""All targets that a user's file offers, by name, for those who want each of them."""

from types import ModuleType
from typing import Any

from torch import nn

from ampcheck.targets.modelfinder import candidates
from ampcheck.targets.scope import BATCH_NAMES, MODEL_NAMES, Scope
from ampcheck.targets.userfile import UserModule


def offered(user: UserModule) -> dict[str, Any]:
    """Return the names of an imported file that can be audited: `model` and objects that hold one, else its modules.

    Where a file says `model`, its other classes are taken for parts of that.
    """
    scope = Scope(vars(user.module), user)
    holders = {name: value for name, value in scope.names.items() if _holds_a_model(name, value)}
    named = scope.first(MODEL_NAMES)
    if named is not None:
        return {named[0]: named[1], **holders}
    return holders or candidates(scope)


def _holds_a_model(name: str, value: Any) -> bool:
    if name.startswith("_") or isinstance(value, ModuleType | nn.Module):
        return False
    if isinstance(value, type) and issubclass(value, nn.Module):
        return False
    has = value.__contains__ if isinstance(value, dict) else lambda wanted: hasattr(value, wanted)
    return has("model") and any(has(batch) for batch in BATCH_NAMES)

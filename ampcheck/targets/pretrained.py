"""Building a model whose pretrained weights cannot be downloaded here: with random ones, and that is said."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

#: Packages whose errors say that something could not be fetched.
_FETCHING = frozenset({"urllib", "requests", "httpx", "httpcore", "huggingface_hub"})


def unfetched(error: BaseException) -> BaseException | None:
    """Return the error behind another one that says that a download failed, if there is one."""
    found: BaseException | None = error
    while found is not None:
        if type(found).__module__.partition(".")[0].rstrip("0123456789") in _FETCHING:
            return found
        found = found.__cause__ or found.__context__
    return None


@contextmanager
def random_weights() -> Iterator[None]:
    """Let models keep their random weights where torch, torchvision or timm would download others."""
    load = nn.Module.load_state_dict

    def loads(self: nn.Module, state: Any, *args: Any, **kwargs: Any) -> Any:
        return load(self, state, *args, **kwargs) if state is not None else None

    places = [
        (torch.hub, "load_state_dict_from_url"),
        (sys.modules.get("timm.models._builder"), "load_pretrained"),
    ]
    api = sys.modules.get("torchvision.models._api")
    places.append((getattr(api, "WeightsEnum", None), "get_state_dict"))
    with ExitStack() as stack:
        stack.enter_context(patch.object(nn.Module, "load_state_dict", loads))
        for holder, name in places:
            if hasattr(holder, name):
                stack.enter_context(patch.object(holder, name, lambda *_, **__: None))
        yield

from .tcn import TemporalConvNet

REGISTRY = {"TemporalConvNet": TemporalConvNet}


def build(cfg):
    return REGISTRY[cfg["name"]](**cfg["args"])

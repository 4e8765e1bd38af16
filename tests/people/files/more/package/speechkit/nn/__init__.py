from .conformer import Conformer, ConformerBlock

__all__ = ["Conformer", "ConformerBlock"]

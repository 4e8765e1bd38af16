"""Models by name: those of torchvision, timm and transformers."""

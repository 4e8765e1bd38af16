"""What settles every claim about CUDA on the day a GPU is at hand; `settle.py` beside this folder runs it."""

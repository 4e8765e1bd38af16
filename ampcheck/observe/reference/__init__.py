"""The FP32 reference: the same operations a second time, and which of them must not run twice."""

"""The half of the bench that loads torch: precisions, timing, memory, accuracy, and the run of them all."""

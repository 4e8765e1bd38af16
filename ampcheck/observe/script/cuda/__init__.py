"""A CPU that acts as CUDA does for a whole script: devices, queries, jobs of several processes, graphs."""

"""What a script keeps from step to step: averages, counters and weights in half precision, and what is left behind."""

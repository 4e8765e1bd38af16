"""What the values of tensors are: measured in one pass, written down in rows, added up by site."""

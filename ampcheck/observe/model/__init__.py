"""What a model is made of, which of it is running, and how it is put back."""

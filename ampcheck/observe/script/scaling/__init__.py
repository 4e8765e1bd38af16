"""The loss scale of a script: its scalers, those made by hand, and the losses that they multiply."""

"""Running things under the recorder: an audit, a script, a training loop, many ranks."""

"""From traces to findings and a verdict: rules, loss scales, tables."""

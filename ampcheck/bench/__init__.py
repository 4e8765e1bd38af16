"""What mixed precision buys here, and what it costs: time, memory and accuracy, a row for each precision.

Reading order: `result` are the values, `intervals` and `verdicts` judge them, `table`, `markdown`, `page` and
`saved` write them down; `running` is the half that loads torch and measures.
"""

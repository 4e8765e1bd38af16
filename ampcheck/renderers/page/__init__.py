"""The parts of the HTML report: markup, the answer, the picture, the tables, and the numbers its script reads."""

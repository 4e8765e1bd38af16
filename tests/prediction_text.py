"""What the prediction report says around its tables."""

INTRODUCTION = """
Placeholder {torch} {python}
"""
HOW = WORDS = AGREEMENT = GAPS = ""
PUBLISHED = "{steps}"

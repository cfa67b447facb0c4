"""Facts about models and devices that need no measurement: shapes, data sheets, and the memory they leave."""

ROOFLINE = "roofline, never validated"
"""What a prediction from data sheets alone is called in every result."""

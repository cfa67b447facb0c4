"""Facts about models and devices that need no measurement: shapes, data sheets, and the memory they leave."""

"""BatchTwin: a digital twin of LLM continuous batching."""

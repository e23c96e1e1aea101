"""A server with the OpenAI interface: requests share continuous batches on one worker thread."""

"""The way in from AWS Lambda: what a function's handler is made of, so that the handler itself is a few lines."""

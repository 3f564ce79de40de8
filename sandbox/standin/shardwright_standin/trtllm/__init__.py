"""TensorRT-LLM's checkpoints, engines and options."""

"""Google's LiteRT: `.tflite` files, and the CPU runtime that runs them."""

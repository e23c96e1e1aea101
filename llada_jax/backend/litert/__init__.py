"""Google's LiteRT: writes `.tflite` files, and runs them on the CPU."""

"""The verb `against_llama_cpp`: a released model, decoded here and by llama.cpp."""

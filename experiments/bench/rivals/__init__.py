"""The suite `rivals`: our backends and other people's programs, in turns on one machine."""

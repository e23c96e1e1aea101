"""The suite `rivals`: our backends and other programs, timed in alternation on one machine."""

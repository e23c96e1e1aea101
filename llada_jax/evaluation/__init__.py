"""Tasks, metrics and reports: does a decoding idea keep the quality?"""

"""Answers to lab 24's exercises."""

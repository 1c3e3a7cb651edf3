"""A speedrun: a learner's engine and lab 7's, in turns, on prompts that neither has seen before.

The score is how many times as fast the learner's engine is, so runs on different machines can be
compared. A record is a file with the code, the machine and the score; docs/records.md explains how
to make one. Each engine runs in a process of its own, which the learner's code can't leave: prompts
are drawn, tokens are verified and time is measured outside.
"""

"""Reading a split: accepted texts, and what was not accepted and why.

A bad record is refused by itself; it neither stops the reading nor shifts its neighbours' numbers.
"""

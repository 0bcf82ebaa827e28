"""What other programs call: plain arguments in, plain and typed values out. `from oblivionis import …` finds it."""

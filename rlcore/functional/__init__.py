"""The mathematics: pure functions of tensors. One module per topic, no classes, no input or output.

B responses, T response tokens, N preference pairs. Masks are bool, True counts; what they leave out, NaN and inf
included, reaches neither a result nor a gradient. Results are float32, or float64 for float64 input.
"""

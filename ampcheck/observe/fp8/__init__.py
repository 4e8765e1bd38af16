"""FP8 and FP4 training emulated: the operands of linear layers rounded as a recipe says, products summed in FP32."""

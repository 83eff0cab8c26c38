"""Models as programs that others run: ONNX, torch.export, 8-bit integers."""

"""The smoke test of a wheel: the native engine is there, and a bidirectional LSTM and its gradients
agree with the reference."""

import numpy as np

import zstate as zs

rng = np.random.default_rng(0)
T, N, I, H = 9, 5, 7, 33
x, W, R, b, h0, dh = (
    rng.normal(size=shape).astype(np.float32) / 4
    for shape in [(T, N, I), (8 * H, I), (2, 4 * H, H), (8 * H,), (N, 2 * H), (T, N, 2 * H)]
)


def layer(backend: str) -> dict[str, np.ndarray]:
    """h and every gradient, by name."""
    inputs = {"input_weight": W, "bias": b, "init_state": h0}
    descriptor = zs.LSTMDescriptor(bidirectional=True, training=True)
    h, c, z = zs.lstm(x, R, **inputs, descriptor=descriptor, backend=backend)
    gradients = zs.lstm_gradients(
        x, R, dh, z, c, **inputs, descriptor=descriptor, backend=backend
    )._asdict()
    return {"state": h, **{name: g for name, g in gradients.items() if g is not None}}


expected = layer("reference")
for name, value in layer("native").items():
    np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
print(f"smoke test: native agrees with reference on {', '.join(expected)}")

"""The functions that a header has where it needs them; @ stands for the model's name."""

from __future__ import annotations

HELPERS = {
    "multiply": """\
/* y[r] = sum of w[r,k] x[k] */
static inline void @_multiply(const float *w, int rows, int columns, const float *x, float *y)
{
  for (int r = 0; r < rows; ++r) {
    float sum = 0.0f;
    for (int k = 0; k < columns; ++k) sum += w[(size_t)r * (size_t)columns + (size_t)k] * x[k];
    y[r] = sum;
  }
}
""",
    "quantise": """\
/* x in 8 bits, to nearest, ties to even; returns what one of its steps stands for */
static inline float @_quantise(const float *x, int count, int8_t *q)
{
  float largest = 0.0f;
  for (int k = 0; k < count; ++k) {
    const float size = fabsf(x[k]);
    if (!(size <= FLT_MAX)) {
      for (int n = 0; n < count; ++n) q[n] = 0;
      return NAN;
    }
    if (size > largest) largest = size;
  }
  const float factor = largest > 0.0f ? 127.0f / largest : INFINITY;
  const int usable = factor <= FLT_MAX;
  for (int k = 0; k < count; ++k) {
    const float value = usable ? rintf(x[k] * factor) : 0.0f;
    q[k] = (int8_t)(value > 127.0f ? 127.0f : value < -127.0f ? -127.0f : value);
  }
  return usable ? largest * (1.0f / 127.0f) : 0.0f;
}
""",
    "multiply_int8": """\
/* y[r] = scale[r] step sum of w[r,k] q[k], summed in integers */
static inline void @_multiply_int8(const int8_t *w, const float *scale, int rows, int columns,
                                   const int8_t *q, float step, float *y)
{
  for (int r = 0; r < rows; ++r) {
    int32_t sum = 0;
    for (int k = 0; k < columns; ++k) sum += w[(size_t)r * (size_t)columns + (size_t)k] * q[k];
    y[r] = (float)sum * (step * scale[r]);
  }
}
""",
    "soft_max": """\
static inline void @_soft_max(const float *x, int rows, int columns, float *y)
{
  for (int r = 0; r < rows; ++r, x += columns, y += columns) {
    float largest = x[0], sum = 0.0f;
    for (int k = 1; k < columns; ++k) largest = x[k] > largest ? x[k] : largest;
    for (int k = 0; k < columns; ++k) sum += y[k] = expf(x[k] - largest);
    for (int k = 0; k < columns; ++k) y[k] /= sum;
  }
}
""",
    "mean": """\
static inline float @_mean(const float *x, int count)
{
  float sum = 0.0f;
  for (int k = 0; k < count; ++k) sum += x[k];
  return sum / (float)count;
}
""",
    "spread": """\
static inline float @_spread(const float *x, float from, int count)
{
  float sum = 0.0f;
  for (int k = 0; k < count; ++k) sum += (x[k] - from) * (x[k] - from);
  return sum / (float)count;
}
""",
    "sigmoid": """\
static inline float @_sigmoid(float x)
{
  const float small = expf(-fabsf(x));
  return (x >= 0.0f ? 1.0f : small) / (1.0f + small);
}
""",
    "hard_sigmoid": """\
static inline float @_hard_sigmoid(float x)
{
  const float y = x * 0.2f + 0.5f;
  return y <= 0.0f ? 0.0f : y >= 1.0f ? 1.0f : y;
}
""",
    "relu": """\
static inline float @_relu(float x)
{
  return x < 0.0f ? 0.0f : x;
}
""",
    "softplus": """\
static inline float @_softplus(float x)
{
  return (x < 0.0f ? 0.0f : x) + log1pf(expf(-fabsf(x)));
}
""",
    "maximum": """\
static inline float @_maximum(float a, float b)
{
  return b > a || b != b ? b : a;
}
""",
    "minimum": """\
static inline float @_minimum(float a, float b)
{
  return b < a || b != b ? b : a;
}
""",
}
NEEDS = {"multiply_int8": ("quantise",)}


def texts(prefix: str, used: set[str]) -> list[str]:
    """The functions used, and those they call, in an order that C accepts."""
    every = used | {other for each in used for other in NEEDS.get(each, ())}
    return [text.replace("@", prefix) for name, text in HELPERS.items() if name in every]

// Carries an overflow from where it happens to the scores, so that it never becomes a label.
//
// fmaxf and max.f16x2 return the other operand if one is NaN, and ReLU turns minus infinity into zero. So a maximum
// alone would hide an overflow. Each product with ReLU therefore checks its sums. This takes one multiply-add for each
// sum, works the same on every architecture, and changes no bit of a finite value. (Sums before a norm need no check,
// since the norm's variance is then not finite.) docs/kernels.md explains this in full, and
// tests/engine/test_overflow.py tests it.
#pragma once

// Return `result`, or NaN if `value` is not finite: 0 * infinity is NaN. (result + 0 is result, except for a zero's
// sign.)
__device__ __forceinline__ float unless_overflow(float result, float value) { return fmaf(value, 0.f, result); }

// How an overflow is carried from where it happens to the scores, so that it never ends as a label.
//
// fmaxf and max.f16x2 return the other operand where one is NaN, and ReLU makes a zero of minus infinity; so a maximum
// alone would hide an overflow. Each product with ReLU therefore checks its sums: one multiply-add a sum, the same on every
// architecture, and no bit of a finite value changes. (Before a norm sums need no check: the norm's variance is not finite
// then.) docs/kernels.md has the whole argument.
#pragma once

// `result`, or NaN where `value` is not finite: 0 * infinity is NaN. (result + 0 is result, but for the sign of a zero.)
__device__ __forceinline__ float unless_overflow(float result, float value) { return fmaf(value, 0.f, result); }

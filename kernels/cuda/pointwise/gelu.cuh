// The exact GELU, x Phi(x), and its derivative, Phi(x) + x phi(x), of a value that is stored as T.
//
// f32 takes the error function. For bf16 both are made of what is left of 1 beyond |x|, a power of two times a polynomial in
// |x| or a power whose exponent is one: some ten instructions, which is what there is room for beside a product. The
// coefficients are capful's own, of the least largest error: relative to 1 - Phi(|x|) it is 2.5e-4 up to 5.5 (an eighth of
// what rounding to bf16 may do), of the derivative 6.3e-5.
#pragma once
#include "../ptx.cuh"

template <class T>
__device__ inline float gelu(float x);

template <class T>
__device__ inline float gelu_derivative(float x);

template <>
__device__ inline float gelu<float>(float x) {
    return 0.5f * x * (1.0f + erff(x * 0.70710678f));
}

template <>
__device__ inline float gelu_derivative<float>(float x) {
    return 0.5f * (1.0f + erff(x * 0.70710678f)) + x * 0.39894228f * expf(-0.5f * x * x);
}

template <>
__device__ inline float gelu<bf16>(float x) {
    float a = fabsf(x), p = -0.00023325125f * a + 0.0048697725f;
    p = p * a - 0.044599003f;
    p = p * a - 0.46968112f;
    p = p * a - 1.1462608f;
    p = p * a - 1.0003591f;
    return fmaxf(x, 0.0f) - a * power_of_two(p);
}

// Of |x|: 1 - Phi(|x|) - |x| phi(|x|) = exp(-x^2 / 2) q(|x|), which is added or left from 1 by x's sign.
template <>
__device__ inline float gelu_derivative<bf16>(float x) {
    // Beyond 8 it is nothing, and q's powers would not be numbers.
    float a = fminf(fabsf(x), 8.0f), q = -0.00273971f * a + 0.02528089f;
    q = q * a - 0.09966323f;
    q = q * a + 0.23543446f;
    q = q * a - 0.79551029f;
    q = q * a + 0.49993734f;
    float beyond = power_of_two(-0.5f * LOG2_E * a * a) * q;
    return 0.5f + copysignf(0.5f - beyond, x);
}

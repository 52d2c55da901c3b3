// The exact GELU, x Phi(x), and its derivative, Phi(x) + x phi(x), of a value that is stored as T.
//
// f32 uses the error function. For bf16 both are computed from 1 - Phi(|x|), as a power of two times a polynomial in
// |x|, or as a power whose exponent is a polynomial: some ten instructions, for which there is time next to a matrix
// multiplication. The coefficients are capful's own, with minimal maximum error: relative to 1 - Phi(|x|) it is 2.5e-4
// up to 5.5 (an eighth of the error of rounding to bf16), for the derivative 6.3e-5.
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

// For |x|: 1 - Phi(|x|) - |x| phi(|x|) = exp(-x^2 / 2) q(|x|), which is used as is or subtracted from 1, by the sign of
// x.
template <>
__device__ inline float gelu_derivative<bf16>(float x) {
    // Beyond 8 the result is negligible, and the powers in q would overflow.
    float a = fminf(fabsf(x), 8.0f), q = -0.00273971f * a + 0.02528089f;
    q = q * a - 0.09966323f;
    q = q * a + 0.23543446f;
    q = q * a - 0.79551029f;
    q = q * a + 0.49993734f;
    float beyond = power_of_two(-0.5f * LOG2_E * a * a) * q;
    return 0.5f + copysignf(0.5f - beyond, x);
}

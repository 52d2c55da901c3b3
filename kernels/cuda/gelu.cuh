// The exact GELU, x Phi(x), and its derivative, Phi(x) + x phi(x), of a value that is stored as T.
//
// f32 takes the error function. For bf16 what is left of 1 beyond |x| is a polynomial times exp(-x^2 / 2), off by less
// than 1e-7 (Abramowitz and Stegun, 7.1.26): a third of the instructions, which is what a pass over memory has room for.
#pragma once
#include "ptx.cuh"

// exp(-x^2 / 2).
__device__ inline float bell(float x) { return power_of_two(-0.5f * LOG2_E * x * x); }

// 1 - Phi(|x|), given bell(x).
__device__ inline float tail(float x, float bell) {
    float t = reciprocal(1.0f + 0.231641888f * fabsf(x));
    float sum = 1.061405429f * t - 1.453152027f;
    sum = sum * t + 1.421413741f;
    sum = sum * t - 0.284496736f;
    sum = sum * t + 0.254829592f;
    return 0.5f * bell * t * sum;
}

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
    return fmaxf(x, 0.0f) - fabsf(x) * tail(x, bell(x));
}

template <>
__device__ inline float gelu_derivative<bf16>(float x) {
    float b = bell(x), beyond = tail(x, b);
    return (x > 0 ? 1.0f - beyond : beyond) + x * 0.39894228f * b;
}

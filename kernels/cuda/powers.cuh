// What a logit's power is, of which a softmax is made, where the largest logit of the row is not known yet.
//
// The row's target stands in for the largest: exp(z - z_target) is 1 at the target, and what another logit has is its
// probability beside the target's. Powers are kept as exp(z - z_target - 40), so that they and a row's sum of them have room in
// bf16 and f32: those from 47 below the target's logit are 0, and from 109 above it they are all the same. A token's loss is exact up to
// 109 nats.
#pragma once
#include "ptx.cuh"

// 40 nats and the largest power, in bits.
#define POWERS_BELOW 57.7078016f
#define MOST_POWER 100.0f

// Of that in bits.
__device__ inline float power_of_bits(float bits) { return power_of_two(least(bits, MOST_POWER)); }

// Of a logit beside its target's.
__device__ inline float power_beside_target(float z) { return power_of_bits(z * LOG2_E - POWERS_BELOW); }

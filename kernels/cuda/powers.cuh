// Exponentials of logits for a softmax, where the largest logit of the row is not known yet.
//
// The row's target replaces the largest logit: exp(z - z_target) is 1 at the target, and for another logit the ratio of
// its probability to the target's. Exponentials are stored as exp(z - z_target - 40), so that they and a row's sum of
// them fit in bf16 and f32: those of logits 47 or more below the target's are 0, and those of logits 109 or more above
// it are all equal. A token's loss is exact up to 109 nats.
#pragma once
#include "ptx.cuh"

// 40 nats and the largest exponent, in bits.
#define POWERS_BELOW 57.7078016f
#define MOST_POWER 100.0f

// The exponential of an exponent in bits.
__device__ inline float power_of_bits(float bits) { return power_of_two(least(bits, MOST_POWER)); }

// The exponential of z, a logit minus its target's logit.
__device__ inline float power_beside_target(float z) { return power_of_bits(z * LOG2_E - POWERS_BELOW); }

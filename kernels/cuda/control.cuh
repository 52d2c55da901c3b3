// The settings and the results of a step: core/src/train/control.rs has the same structs.
#pragma once
#include <stddef.h>

#include "common.cuh"

const u32 GROUPS = 5;

struct Settings {
    float learning_rate;
    float clip;
    float loss_scale;
    float factored;  // 1 - beta^t, for the decoder's beta
    float decay;     // factor of every weight decay
    float average;   // the weight of this step in the average
    float corrections[GROUPS][2];  // of each group's rule: for AdamW 1 - beta1^t, 1 - beta2^t
};

struct Results {
    float loss;
    float squared_norm;
};

static_assert(sizeof(Settings) == 64 && sizeof(Results) == 8, "regions of sixteen and of two f32");
static_assert(offsetof(Settings, learning_rate) == 0 && offsetof(Settings, clip) == 4, "in core's order");
static_assert(offsetof(Settings, loss_scale) == 8 && offsetof(Settings, factored) == 12, "in core's order");
static_assert(offsetof(Settings, decay) == 16 && offsetof(Settings, average) == 20, "in core's order");
static_assert(offsetof(Settings, corrections) == 24, "in core's order");
static_assert(offsetof(Results, loss) == 0 && offsetof(Results, squared_norm) == 4, "in core's order");

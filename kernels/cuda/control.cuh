// What a step is told and what it says of itself: core/src/train/control.rs has the same structs.
#pragma once
#include <stddef.h>

#include "common.cuh"

struct Settings {
    float learning_rate;
    float correction1;  // 1 - beta1^t
    float correction2;  // 1 - beta2^t
    float clip;
    float loss_scale;
};

struct Results {
    float loss;
    float squared_norm;
};

static_assert(sizeof(Settings) == 20 && sizeof(Results) == 8, "regions of five and of two f32");
static_assert(offsetof(Settings, learning_rate) == 0 && offsetof(Settings, correction1) == 4, "in core's order");
static_assert(offsetof(Settings, correction2) == 8 && offsetof(Settings, clip) == 12, "in core's order");
static_assert(offsetof(Settings, loss_scale) == 16, "in core's order");
static_assert(offsetof(Results, loss) == 0 && offsetof(Results, squared_norm) == 4, "in core's order");

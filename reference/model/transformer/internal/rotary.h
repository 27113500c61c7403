// The angles of rotary positions, with every way of stretching them that a configuration can choose.
#pragma once

#include <cstdint>
#include <span>

#include <terrace/reference/model/transformer/model_config.h>

namespace terrace::decoder {

// Fills the factor of a position for each of a head's head_size / 2 pairs, as transformers computes it, in
// fp32 where it does. `sequence` matters only for RopeScalingKind::dynamic, and only beyond
// RopeScaling::original_context. Allocates nothing.
void fill_rotary_frequencies(const ModelConfig& config, uint64_t sequence, std::span<float> frequencies);

// Fills the values of a RotaryTable of any number of positions from `first` on: for each position, those of
// all pairs.
void fill_rotary_table(const ModelConfig& config, uint64_t first, std::span<const float> frequencies,
                       std::span<float> cosines, std::span<float> sines);

}  // namespace terrace::decoder

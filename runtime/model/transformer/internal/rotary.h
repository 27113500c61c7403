// The angles of rotary positions, with every way of stretching them that a configuration may ask for.
#pragma once

#include <cstdint>
#include <span>

#include <terrace/runtime/model/transformer/model_config.h>

namespace terrace::decoder {

// What a position is multiplied with for each of a head's head_size / 2 pairs, as transformers computes it,
// in fp32 where it does. `sequence` matters to RopeScalingKind::dynamic alone. Allocates nothing.
void fill_rotary_frequencies(const ModelConfig& config, uint64_t sequence, std::span<float> frequencies);

// RotaryTable's values: for each position, those of all pairs.
void fill_rotary_table(const ModelConfig& config, uint64_t sequence, std::span<const float> frequencies,
                       std::span<float> cosines, std::span<float> sines);

}  // namespace terrace::decoder

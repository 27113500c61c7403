// KeyValueCache: the keys and values that a model has computed for the tokens so far, so that the tokens
// after them cost no more than their own rows.
//
// Its memory is of a StackArena, in the frame of whoever makes it: fp32, [layers, 2, batch, capacity, width].
// In a dry run it has a size but no address. Models fill it (Model::next_token_logits()), and operations read
// it where they run. Not thread-safe.
#pragma once

#include <cstdint>
#include <span>

#include <terrace/base/assert.h>
#include <terrace/memory/host/stack_arena.h>

namespace terrace {

class KeyValueCache {
 public:
  struct Shape {
    uint32_t layers = 0;
    uint32_t batch = 0;
    uint32_t capacity = 0;  // tokens of each sample
    uint64_t width = 0;     // of a token's keys in a layer, those of all heads
    uint64_t elements_of_layer() const { return uint64_t{batch} * capacity * width; }
  };

  KeyValueCache(const Shape& shape, StackArena& arena)
      : shape_(shape), all_(arena.allocate<float>(2 * shape.layers * shape.elements_of_layer())) {}

  const Shape& shape() const { return shape_; }
  uint64_t bytes() const { return all_.size_bytes(); }

  // How many tokens of each sample are held.
  uint32_t tokens() const { return tokens_; }
  // Holds the first `count` tokens of each sample from now on: fewer than before, or those that were written.
  void hold(uint32_t count) {
    TERRACE_ASSERT(count <= shape_.capacity, "more tokens than a cache has room for");
    tokens_ = count;
  }

  // [batch, capacity, width]; the rows of tokens that are not held have no meaning.
  std::span<float> keys(uint32_t layer) const { return part(2 * uint64_t{layer}); }
  std::span<float> values(uint32_t layer) const { return part(2 * uint64_t{layer} + 1); }

 private:
  std::span<float> part(uint64_t index) const {
    const uint64_t size = shape_.elements_of_layer();
    return {all_.data() == nullptr ? nullptr : all_.data() + index * size, size};
  }

  Shape shape_;
  std::span<float> all_;
  uint32_t tokens_ = 0;
};

}  // namespace terrace

// SpaceLayout: where every tensor lies in the flat space, and which chunks it touches, by arithmetic alone.
// It has no table of chunks: with chunks of any size it takes time and memory for its tensors only, so that a
// plan may try many sizes. FlatSpace adds the tables.
//
// A section holds the tensors of one (dtype, trainable, home, by_matrix, counted_elsewhere) in the order in
// which they were given, each aligned to kTensorAlignment elements. A section is padded to a multiple of
// kTileElements and cut into chunks, the last one short. All full chunks have the same bytes of parameters,
// so that any slot fits any chunk: E elements (E a multiple of kTileElements) where the type is the widest of
// the model's, and proportionally more where it is narrower. The layout is immutable: any thread may read it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/base/record_layout.h>
#include <terrace/memory/space/tensor.h>

namespace terrace {

inline constexpr uint64_t kTensorAlignment = 64;  // elements
// Sixteen bytes of every element (a parameter, a gradient and a record) stay within a signed 64-bit offset.
inline constexpr uint64_t kMaxElements = uint64_t{1} << 59;

struct Section {
  DataType type = DataType::bf16;
  bool trainable = true;
  TensorHome home = TensorHome::managed;
  bool by_matrix = false;
  bool counted_elsewhere = false;
  uint64_t elements = 0;        // a multiple of kTileElements, padding included
  uint64_t chunk_elements = 0;  // of every chunk but the last; a multiple of kTileElements
  uint32_t first_chunk = 0;
  uint32_t chunk_count = 0;
};

struct TensorPlace {
  uint32_t section;
  uint64_t first_element;  // in the section
  uint64_t elements;
  uint32_t first_chunk;  // ChunkIds [first_chunk, first_chunk + chunk_count)
  uint32_t chunk_count;
};

class SpaceLayout {
 public:
  // `chunk_elements` is E, a positive multiple of kTileElements. Throws Error(config), naming the tensor,
  // when a shape is empty or has a zero or is no matrix's where it has to be, or when sizes overflow
  // (kMaxElements, 2^32 chunks).
  SpaceLayout(std::vector<TensorSpec> tensors, uint64_t chunk_elements);

  uint64_t chunk_elements() const { return chunk_elements_; }
  uint32_t tensor_count() const { return static_cast<uint32_t>(tensors_.size()); }
  uint32_t chunk_count() const { return chunk_count_; }
  std::span<const Section> sections() const { return sections_; }

  std::span<const TensorSpec> tensors() const { return tensors_; }
  std::span<const TensorPlace> places() const { return places_; }
  const TensorSpec& tensor(TensorId id) const { return tensors_[index_of(id)]; }
  const TensorPlace& place(TensorId id) const { return places_[index_of(id)]; }
  // The elements of the chunk with this place in a section.
  static uint64_t elements_of_chunk(const Section& section, uint32_t index_in_section) {
    return std::min(section.chunk_elements, section.elements - index_in_section * section.chunk_elements);
  }
  // The most elements of a chunk that is trained; E if none is.
  uint64_t largest_trainable_chunk() const;

  uint64_t parameter_count() const { return parameter_count_; }  // without padding
  uint64_t trainable_count() const { return trainable_count_; }  // without padding
  // Bytes of a slot that fits any chunk's parameters: E elements of the widest data type; 0 without tensors.
  uint64_t param_slot_bytes() const { return chunk_elements_ * widest_bytes_; }

 private:
  void place_tensors();
  void cut_chunks();

  std::vector<TensorSpec> tensors_;
  std::vector<TensorPlace> places_;
  std::vector<Section> sections_;
  uint64_t chunk_elements_;
  uint64_t widest_bytes_ = 0;  // of an element of the widest type
  uint32_t chunk_count_ = 0;
  uint64_t parameter_count_ = 0;
  uint64_t trainable_count_ = 0;
};

}  // namespace terrace

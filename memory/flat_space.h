// FlatSpace: every parameter laid end to end, cut into equal chunks. Pure arithmetic: it owns no memory.
//
// A section holds the tensors of one (dtype, trainable) pair in the order in which they were given, each
// aligned to kTensorAlignment elements. A section is padded to a multiple of kTileElements and cut into
// chunks of E elements (E a multiple of kTileElements), the last one short. Chunk i of every role (param,
// grad, state) covers the same elements. Invariants: see check(). The space is immutable: any thread may read
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <terrace/base/record_layout.h>
#include <terrace/memory/tensor.h>

namespace terrace {

inline constexpr uint64_t kTensorAlignment = 64;  // elements
// Sixteen bytes of every element (a parameter, a gradient and a record) stay within a signed 64-bit offset.
inline constexpr uint64_t kMaxElements = uint64_t{1} << 59;

struct Section {
  DataType type;
  bool trainable;
  uint64_t elements;  // a multiple of kTileElements, padding included
  uint32_t first_chunk;
  uint32_t chunk_count;
};

struct TensorPlace {
  uint32_t section;
  uint64_t first_element;  // in the section
  uint64_t elements;
  uint32_t first_chunk;  // ChunkIds [first_chunk, first_chunk + chunk_count)
  uint32_t chunk_count;
};

struct ChunkInfo {
  uint32_t section;
  uint32_t index_in_section;
  uint64_t first_element;  // in the section: index_in_section * E
  uint64_t elements;       // a multiple of kTileElements; E but for the last chunk of a section
  uint64_t tile_count() const { return elements / kTileElements; }
};

// A run of elements inside a chunk with one set of optimizer settings. Segments cover a chunk without holes:
// padding belongs to the tensor before it.
struct Segment {
  uint64_t first_element;  // in the chunk
  uint64_t elements;
  uint32_t group;
};

class FlatSpace {
 public:
  // `chunk_elements` is E, a positive multiple of kTileElements. Throws Error(config) when names repeat, a
  // shape is empty or has a zero, or sizes overflow (kMaxElements, 2^32 chunks); naming the tensor.
  FlatSpace(std::vector<TensorSpec> tensors, uint64_t chunk_elements);

  uint64_t chunk_elements() const { return chunk_elements_; }
  uint32_t tensor_count() const { return static_cast<uint32_t>(tensors_.size()); }
  uint32_t chunk_count() const { return static_cast<uint32_t>(chunks_.size()); }
  std::span<const Section> sections() const { return sections_; }

  const TensorSpec& tensor(TensorId id) const { return tensors_[index_of(id)]; }
  const TensorPlace& place(TensorId id) const { return places_[index_of(id)]; }
  const ChunkInfo& chunk(ChunkId id) const { return chunks_[index_of(id)]; }
  const Section& section_of(ChunkId id) const { return sections_[chunk(id).section]; }
  std::optional<TensorId> find(std::string_view name) const;

  // The tensors with at least one element in the chunk, in order.
  std::span<const TensorId> tensors_of(ChunkId id) const;
  std::span<const Segment> segments_of(ChunkId id) const;

  uint64_t parameter_count() const { return parameter_count_; }  // without padding
  uint64_t trainable_count() const { return trainable_count_; }  // without padding
  uint64_t param_bytes(ChunkId id) const;
  // Bytes of a slot that fits any chunk's parameters: E elements of the widest data type; 0 without tensors.
  uint64_t param_slot_bytes() const;

  // The invariants as equations; aborts on a violation. Cheap enough for tests after every construction.
  void check() const;

 private:
  void index_names();
  void place_tensors();
  void cut_chunks();
  void list_chunk_contents();
  void check_sections() const;
  void check_places() const;
  void check_chunks() const;
  void check_segments() const;

  std::vector<TensorSpec> tensors_;
  std::vector<TensorPlace> places_;
  std::vector<Section> sections_;
  std::vector<ChunkInfo> chunks_;
  std::vector<TensorId> chunk_tensors_;                    // concatenated; see chunk_tensor_begin_
  std::vector<uint32_t> chunk_tensor_begin_;               // chunk_count + 1 entries
  std::vector<Segment> segments_;                          // concatenated
  std::vector<uint32_t> segment_begin_;                    // chunk_count + 1 entries
  std::vector<std::pair<std::string, TensorId>> by_name_;  // sorted
  uint64_t chunk_elements_;
  uint64_t parameter_count_ = 0;
  uint64_t trainable_count_ = 0;
};

}  // namespace terrace

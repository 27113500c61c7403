// FlatSpace: every parameter laid end to end, cut into chunks of equal bytes. It is pure arithmetic and owns
// no memory.
//
// SpaceLayout says where tensors lie; FlatSpace adds a table of the chunks and their contents. Chunk i of
// every role (param, grad, state) covers the same elements. Invariants: see check(). The space is immutable:
// any thread may read it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <terrace/memory/space/space_layout.h>
#include <terrace/memory/space/tensor.h>

namespace terrace {

struct ChunkInfo {
  uint32_t section;
  uint32_t index_in_section;
  uint64_t first_element;  // in its section: index_in_section * Section::chunk_elements
  uint64_t elements;       // a multiple of kTileElements; Section::chunk_elements but for its last chunk
  uint64_t tile_count() const { return elements / kTileElements; }
};

// A run of elements inside a chunk with one set of optimizer settings. Segments cover a chunk without holes:
// padding belongs to the tensor before it.
struct Segment {
  uint64_t first_element;  // in the chunk
  uint64_t elements;
  uint32_t group;
};

class FlatSpace : public SpaceLayout {
 public:
  // Throws Error(config) as SpaceLayout does, and when names repeat.
  FlatSpace(std::vector<TensorSpec> tensors, uint64_t chunk_elements);

  const ChunkInfo& chunk(ChunkId id) const { return chunks_[index_of(id)]; }
  const Section& section_of(ChunkId id) const { return sections()[chunk(id).section]; }
  std::optional<TensorId> find(std::string_view name) const;

  // The tensors with at least one element in the chunk, in order.
  std::span<const TensorId> tensors_of(ChunkId id) const;
  std::span<const Segment> segments_of(ChunkId id) const;
  uint64_t param_bytes(ChunkId id) const;
  // The part of a tensor that lies in a chunk.
  struct Part {
    uint64_t first_in_chunk = 0;
    uint64_t first_in_tensor = 0;
    uint64_t elements = 0;  // without padding
  };
  Part part_of(TensorId tensor, ChunkId id) const;
  uint64_t elements_in_use(ChunkId id) const;  // without padding
  // The place in the chunk where the part of the tensor with this index in tensors_of() ends, with the
  // padding behind it: where the next one begins, or the chunk ends.
  uint64_t end_of_part(ChunkId id, size_t index) const;

  // The invariants as equations; aborts on a violation. Cheap enough for tests after every construction.
  void check() const;

 private:
  void index_names();
  void list_chunks();
  void list_chunk_contents();
  void check_sections() const;
  void check_places() const;
  void check_chunks() const;
  void check_segments() const;

  std::vector<ChunkInfo> chunks_;
  std::vector<TensorId> chunk_tensors_;                    // concatenated; see chunk_tensor_begin_
  std::vector<uint32_t> chunk_tensor_begin_;               // chunk_count + 1 entries
  std::vector<Segment> segments_;                          // concatenated
  std::vector<uint32_t> segment_begin_;                    // chunk_count + 1 entries
  std::vector<std::pair<std::string, TensorId>> by_name_;  // sorted
};

}  // namespace terrace

#include <terrace/memory/space/flat_space.h>

#include <algorithm>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>

namespace terrace {
namespace {

std::string id_text(const char* what, uint64_t id) {
  return std::string(what) + " " + std::to_string(id);
}

}  // namespace

FlatSpace::FlatSpace(std::vector<TensorSpec> tensors, uint64_t chunk_elements)
    : SpaceLayout(std::move(tensors), chunk_elements) {
  index_names();
  list_chunks();
  list_chunk_contents();
}

void FlatSpace::index_names() {
  by_name_.reserve(tensors().size());
  for (size_t i = 0; i < tensors().size(); ++i) {
    by_name_.emplace_back(tensors()[i].name, TensorId{static_cast<uint32_t>(i)});
  }
  std::sort(by_name_.begin(), by_name_.end());
  const auto twin = std::adjacent_find(by_name_.begin(), by_name_.end(),
                                       [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twin != by_name_.end()) {
    const uint32_t second = index_of((twin + 1)->second);
    throw Error(ErrorKind::config, {"cannot place the tensor", tensors()[second].name,
                                    "tensors " + std::to_string(index_of(twin->second)) + " and " +
                                        std::to_string(second) + " of the model have this name",
                                    "give every tensor a name of its own; a shared tensor is listed once"});
  }
}

void FlatSpace::list_chunks() {
  chunks_.reserve(chunk_count());
  for (uint32_t s = 0; s < sections().size(); ++s) {
    const Section& section = sections()[s];
    for (uint32_t i = 0; i < section.chunk_count; ++i)
      chunks_.push_back({s, i, i * section.chunk_elements, elements_of_chunk(section, i)});
  }
}

// Lists the tensors and segments of every chunk. The tensors of a section come in ascending order, so one
// walk over them per section visits its chunks in order too.
void FlatSpace::list_chunk_contents() {
  chunk_tensor_begin_.reserve(chunks_.size() + 1);
  segment_begin_.reserve(chunks_.size() + 1);
  for (uint32_t s = 0; s < sections().size(); ++s) {
    std::vector<uint32_t> members;
    for (uint32_t t = 0; t < places().size(); ++t) {
      if (places()[t].section == s) members.push_back(t);
    }
    size_t next = 0;  // the first member that may reach into the chunk
    for (uint32_t c = sections()[s].first_chunk; c < sections()[s].first_chunk + sections()[s].chunk_count;
         ++c) {
      chunk_tensor_begin_.push_back(static_cast<uint32_t>(chunk_tensors_.size()));
      segment_begin_.push_back(static_cast<uint32_t>(segments_.size()));
      const ChunkInfo& chunk = chunks_[c];
      for (size_t m = next; m < members.size() && places()[members[m]].first_chunk <= c; ++m) {
        const TensorPlace& place = places()[members[m]];
        const bool ends_here = place.first_chunk + place.chunk_count == c + 1;
        if (ends_here) next = m + 1;
        chunk_tensors_.push_back(TensorId{members[m]});
        const uint32_t group = tensors()[members[m]].group;
        const bool first_segment = segments_.size() == segment_begin_.back();
        if (!first_segment && segments_.back().group == group) continue;
        // The padding before a tensor belongs to the tensor before it, and no padding reaches over a chunk's
        // start.
        const uint64_t begin = first_segment ? 0 : place.first_element - chunk.first_element;
        if (!first_segment) segments_.back().elements = begin - segments_.back().first_element;
        segments_.push_back({begin, 0, group});
      }
      segments_.back().elements = chunk.elements - segments_.back().first_element;
    }
  }
  chunk_tensor_begin_.push_back(static_cast<uint32_t>(chunk_tensors_.size()));
  segment_begin_.push_back(static_cast<uint32_t>(segments_.size()));
  chunk_tensors_.shrink_to_fit();
  segments_.shrink_to_fit();
}

std::optional<TensorId> FlatSpace::find(std::string_view name) const {
  const auto entry = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                      [](const auto& a, std::string_view b) { return a.first < b; });
  if (entry == by_name_.end() || entry->first != name) return std::nullopt;
  return entry->second;
}

std::span<const TensorId> FlatSpace::tensors_of(ChunkId id) const {
  const uint32_t begin = chunk_tensor_begin_[index_of(id)];
  return std::span(chunk_tensors_).subspan(begin, chunk_tensor_begin_[index_of(id) + 1] - begin);
}

std::span<const Segment> FlatSpace::segments_of(ChunkId id) const {
  const uint32_t begin = segment_begin_[index_of(id)];
  return std::span(segments_).subspan(begin, segment_begin_[index_of(id) + 1] - begin);
}

uint64_t FlatSpace::param_bytes(ChunkId id) const {
  return chunk(id).elements * bytes_of(section_of(id).type);
}

FlatSpace::Part FlatSpace::part_of(TensorId tensor, ChunkId id) const {
  const TensorPlace& place = this->place(tensor);
  const ChunkInfo& chunk = this->chunk(id);
  const uint64_t first = std::max(place.first_element, chunk.first_element);
  const uint64_t end = std::min(place.first_element + place.elements, chunk.first_element + chunk.elements);
  return {first - chunk.first_element, first - place.first_element, end - first};
}

uint64_t FlatSpace::end_of_part(ChunkId id, size_t index) const {
  const std::span<const TensorId> tensors = tensors_of(id);
  const ChunkInfo& info = chunk(id);
  return index + 1 < tensors.size() ? place(tensors[index + 1]).first_element - info.first_element
                                    : info.elements;
}

uint64_t FlatSpace::elements_in_use(ChunkId id) const {
  uint64_t elements = 0;
  for (const TensorId tensor : tensors_of(id)) elements += part_of(tensor, id).elements;
  return elements;
}

void FlatSpace::check() const {
  check_sections();
  check_places();
  check_chunks();
  check_segments();
}

// The chunks of a section hold as many elements as the section, the sections' chunk ranges follow each other
// without a hole, and no two sections have the same type and the same `trainable`.
void FlatSpace::check_sections() const {
  uint32_t next_chunk = 0;
  for (uint32_t s = 0; s < sections().size(); ++s) {
    const Section& section = sections()[s];
    TERRACE_ASSERT(section.elements > 0 && section.elements % kTileElements == 0, id_text("section", s));
    TERRACE_ASSERT(section.first_chunk == next_chunk, id_text("section", s));
    TERRACE_ASSERT(section.chunk_elements % kTileElements == 0 &&
                       section.chunk_elements * bytes_of(section.type) == param_slot_bytes(),
                   id_text("section", s));
    TERRACE_ASSERT(section.chunk_count == divide_up(section.elements, section.chunk_elements),
                   id_text("section", s));
    next_chunk += section.chunk_count;
    TERRACE_ASSERT(next_chunk <= chunks_.size(), id_text("section", s));
    uint64_t sum = 0;
    for (uint32_t c = section.first_chunk; c < next_chunk; ++c) sum += chunks_[c].elements;
    TERRACE_ASSERT(sum == section.elements, id_text("section", s) + ": " + std::to_string(sum) + " elements");
    for (uint32_t other = 0; other < s; ++other) {
      TERRACE_ASSERT(
          sections()[other].type != section.type || sections()[other].trainable != section.trainable,
          id_text("section", s));
    }
  }
  TERRACE_ASSERT(next_chunk == chunks_.size(), id_text("chunk", next_chunk));
}

// Every tensor lies aligned in its own section, less than kTensorAlignment behind the one before it. The last
// tensor ends less than kTileElements before the section does, and the counts are sums.
void FlatSpace::check_places() const {
  TERRACE_ASSERT(places().size() == tensors().size() && by_name_.size() == tensors().size(), "counts differ");
  std::vector<uint64_t> end(sections().size(), 0);
  uint64_t parameters = 0;
  uint64_t trainable = 0;
  for (uint32_t t = 0; t < places().size(); ++t) {
    const TensorPlace& place = places()[t];
    const std::string& name = tensors()[t].name;
    TERRACE_ASSERT(place.section < sections().size(), name);
    TERRACE_ASSERT(sections()[place.section].type == tensors()[t].type, name);
    TERRACE_ASSERT(sections()[place.section].trainable == tensors()[t].trainable, name);
    TERRACE_ASSERT(place.elements == tensors()[t].element_count() && place.elements > 0, name);
    TERRACE_ASSERT(place.first_element == round_up(end[place.section], kTensorAlignment), name);
    end[place.section] = place.first_element + place.elements;
    parameters += place.elements;
    if (tensors()[t].trainable) trainable += place.elements;
    TERRACE_ASSERT(find(name) == TensorId{t}, name);
  }
  for (uint32_t s = 0; s < sections().size(); ++s) {
    TERRACE_ASSERT(round_up(end[s], kTileElements) == sections()[s].elements, id_text("section", s));
  }
  TERRACE_ASSERT(parameters == parameter_count(), std::to_string(parameters));
  TERRACE_ASSERT(trainable == trainable_count(), std::to_string(trainable));
}

// A chunk begins at index_in_section * section.chunk_elements. A tensor is listed by exactly the chunks of
// its range, and the elements that those chunks hold of it add up to its own.
void FlatSpace::check_chunks() const {
  std::vector<uint64_t> held(tensors().size(), 0);
  std::vector<uint32_t> listed(tensors().size(), 0);
  for (uint32_t c = 0; c < chunks_.size(); ++c) {
    const ChunkInfo& chunk = chunks_[c];
    const Section& section = sections()[chunk.section];
    TERRACE_ASSERT(c == section.first_chunk + chunk.index_in_section, id_text("chunk", c));
    TERRACE_ASSERT(chunk.first_element == chunk.index_in_section * section.chunk_elements,
                   id_text("chunk", c));
    TERRACE_ASSERT(chunk.elements > 0 && chunk.elements % kTileElements == 0, id_text("chunk", c));
    const bool last = chunk.index_in_section + 1 == section.chunk_count;
    TERRACE_ASSERT(last || chunk.elements == section.chunk_elements, id_text("chunk", c));
    const std::span<const TensorId> ids = tensors_of(ChunkId{c});
    TERRACE_ASSERT(!ids.empty(), id_text("chunk", c));
    for (size_t i = 0; i < ids.size(); ++i) {
      const TensorPlace& place = this->place(ids[i]);
      const std::string& name = tensor(ids[i]).name;
      TERRACE_ASSERT(i == 0 || ids[i - 1] < ids[i], name);
      TERRACE_ASSERT(place.section == chunk.section, name);
      TERRACE_ASSERT(place.first_chunk <= c && c < place.first_chunk + place.chunk_count, name);
      const uint64_t begin = std::max(place.first_element, chunk.first_element);
      const uint64_t end =
          std::min(place.first_element + place.elements, chunk.first_element + chunk.elements);
      TERRACE_ASSERT(begin < end, name);
      held[index_of(ids[i])] += end - begin;
      listed[index_of(ids[i])] += 1;
    }
  }
  for (uint32_t t = 0; t < tensors().size(); ++t) {
    TERRACE_ASSERT(held[t] == places()[t].elements, tensors()[t].name);
    TERRACE_ASSERT(listed[t] == places()[t].chunk_count, tensors()[t].name);
  }
}

// The segments of a chunk cover it without a hole, neighbours differ in their group, and every tensor's
// elements lie in segments of its group.
void FlatSpace::check_segments() const {
  for (uint32_t c = 0; c < chunks_.size(); ++c) {
    const std::span<const Segment> segments = segments_of(ChunkId{c});
    uint64_t covered = 0;
    for (size_t i = 0; i < segments.size(); ++i) {
      TERRACE_ASSERT(segments[i].first_element == covered && segments[i].elements > 0, id_text("chunk", c));
      TERRACE_ASSERT(i == 0 || segments[i - 1].group != segments[i].group, id_text("chunk", c));
      covered += segments[i].elements;
    }
    TERRACE_ASSERT(covered == chunks_[c].elements, id_text("chunk", c));
    for (TensorId id : tensors_of(ChunkId{c})) {
      const uint64_t origin = chunks_[c].first_element;
      const uint64_t begin = std::max(place(id).first_element, origin) - origin;
      const uint64_t end =
          std::min(place(id).first_element + place(id).elements - origin, chunks_[c].elements);
      const bool covered_by_group =
          std::any_of(segments.begin(), segments.end(), [&](const Segment& segment) {
            return segment.group == tensor(id).group && segment.first_element <= begin &&
                   end <= segment.first_element + segment.elements;
          });
      TERRACE_ASSERT(covered_by_group, tensor(id).name);
    }
  }
}

}  // namespace terrace

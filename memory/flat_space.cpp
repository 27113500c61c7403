#include <terrace/memory/flat_space.h>

#include <algorithm>
#include <limits>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>

namespace terrace {
namespace {

[[noreturn]] void refuse(const TensorSpec& tensor, std::string reason, std::string advice) {
  throw Error(ErrorKind::config,
              {"cannot place the tensor", tensor.name, std::move(reason), std::move(advice)});
}

std::string shape_text(const TensorSpec& tensor) {
  std::string text = "[";
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(tensor.shape[i]);
  }
  return text + "]";
}

// The product of the extents, refused where it is zero or leaves the space.
uint64_t checked_element_count(const TensorSpec& tensor) {
  if (tensor.shape.empty()) refuse(tensor, "its shape has no dimension", "give a scalar the shape [1]");
  uint64_t count = 1;
  for (uint64_t extent : tensor.shape) {
    if (extent == 0) refuse(tensor, "its shape " + shape_text(tensor) + " has a zero", "leave it out");
    if (extent > kMaxElements / count) {
      refuse(tensor, "its shape " + shape_text(tensor) + " has more than 2^59 elements", "check the shape");
    }
    count *= extent;
  }
  return count;
}

std::string id_text(const char* what, uint64_t id) {
  return std::string(what) + " " + std::to_string(id);
}

}  // namespace

FlatSpace::FlatSpace(std::vector<TensorSpec> tensors, uint64_t chunk_elements)
    : tensors_(std::move(tensors)), chunk_elements_(chunk_elements) {
  TERRACE_ASSERT(
      chunk_elements_ > 0 && chunk_elements_ % kTileElements == 0 && chunk_elements_ <= kMaxElements,
      "a chunk of " + std::to_string(chunk_elements_) + " elements is not made of whole tiles of " +
          std::to_string(kTileElements));
  index_names();
  place_tensors();
  cut_chunks();
  list_chunk_contents();
}

void FlatSpace::index_names() {
  by_name_.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    by_name_.emplace_back(tensors_[i].name, TensorId{static_cast<uint32_t>(i)});
  }
  std::sort(by_name_.begin(), by_name_.end());
  const auto twin = std::adjacent_find(by_name_.begin(), by_name_.end(),
                                       [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twin != by_name_.end()) {
    const uint32_t second = index_of((twin + 1)->second);
    refuse(tensors_[second],
           "tensors " + std::to_string(index_of(twin->second)) + " and " + std::to_string(second) +
               " of the model have this name",
           "give every tensor a name of its own; a shared tensor is listed once");
  }
}

// Fills sections_ (all but first_chunk) and places_ (all but the chunk ranges).
void FlatSpace::place_tensors() {
  places_.reserve(tensors_.size());
  uint64_t total_elements = 0;  // padding included
  uint64_t total_chunks = 0;
  for (const TensorSpec& tensor : tensors_) {
    const uint64_t count = checked_element_count(tensor);
    auto section = std::find_if(sections_.begin(), sections_.end(), [&](const Section& s) {
      return s.type == tensor.type && s.trainable == tensor.trainable;
    });
    if (section == sections_.end()) {
      section = sections_.insert(sections_.end(), Section{tensor.type, tensor.trainable, 0, 0, 0});
    }
    total_elements -= round_up(section->elements, kTileElements);
    total_chunks -= section->chunk_count;
    const uint64_t first = round_up(section->elements, kTensorAlignment);
    section->elements = first + count;  // without padding until all tensors are placed
    section->chunk_count = 0;
    total_elements += round_up(section->elements, kTileElements);
    const uint64_t section_chunks = divide_up(section->elements, chunk_elements_);
    total_chunks += section_chunks;
    if (total_elements > kMaxElements) {
      refuse(tensor, "with it the model has more than 2^59 elements", "check the shapes");
    }
    if (total_chunks + tensors_.size() > std::numeric_limits<uint32_t>::max()) {
      refuse(tensor, "with it the model has more than 2^32 chunks and tensors", "choose larger chunks");
    }
    section->chunk_count = static_cast<uint32_t>(section_chunks);
    places_.push_back({static_cast<uint32_t>(section - sections_.begin()), first, count, 0, 0});
    parameter_count_ += count;
    if (tensor.trainable) trainable_count_ += count;
  }
}

void FlatSpace::cut_chunks() {
  uint32_t next_chunk = 0;
  size_t count = 0;
  for (const Section& section : sections_) count += section.chunk_count;
  chunks_.reserve(count);
  for (uint32_t s = 0; s < sections_.size(); ++s) {
    Section& section = sections_[s];
    section.elements = round_up(section.elements, kTileElements);
    section.first_chunk = next_chunk;
    next_chunk += section.chunk_count;
    for (uint32_t i = 0; i < section.chunk_count; ++i) {
      const uint64_t first = i * chunk_elements_;
      chunks_.push_back({s, i, first, std::min(chunk_elements_, section.elements - first)});
    }
  }
  for (TensorPlace& place : places_) {
    const uint64_t first = place.first_element / chunk_elements_;
    const uint64_t last = (place.first_element + place.elements - 1) / chunk_elements_;
    place.first_chunk = sections_[place.section].first_chunk + static_cast<uint32_t>(first);
    place.chunk_count = static_cast<uint32_t>(last - first + 1);
  }
}

// Tensors and segments of every chunk. The tensors of a section come in ascending order, so one walk over
// them per section visits its chunks in order too.
void FlatSpace::list_chunk_contents() {
  chunk_tensor_begin_.reserve(chunks_.size() + 1);
  segment_begin_.reserve(chunks_.size() + 1);
  for (uint32_t s = 0; s < sections_.size(); ++s) {
    std::vector<uint32_t> members;
    for (uint32_t t = 0; t < places_.size(); ++t) {
      if (places_[t].section == s) members.push_back(t);
    }
    size_t next = 0;  // the first member that may reach into the chunk
    for (uint32_t c = sections_[s].first_chunk; c < sections_[s].first_chunk + sections_[s].chunk_count;
         ++c) {
      chunk_tensor_begin_.push_back(static_cast<uint32_t>(chunk_tensors_.size()));
      segment_begin_.push_back(static_cast<uint32_t>(segments_.size()));
      const ChunkInfo& chunk = chunks_[c];
      for (size_t m = next; m < members.size() && places_[members[m]].first_chunk <= c; ++m) {
        const TensorPlace& place = places_[members[m]];
        const bool ends_here = place.first_chunk + place.chunk_count == c + 1;
        if (ends_here) next = m + 1;
        chunk_tensors_.push_back(TensorId{members[m]});
        const uint32_t group = tensors_[members[m]].group;
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

uint64_t FlatSpace::param_slot_bytes() const {
  uint64_t bytes = 0;
  for (const Section& section : sections_) bytes = std::max(bytes, chunk_elements_ * bytes_of(section.type));
  return bytes;
}

void FlatSpace::check() const {
  check_sections();
  check_places();
  check_chunks();
  check_segments();
}

// sum(chunk.elements of a section) = section.elements; the sections' chunk ranges follow each other without a
// hole; (type, trainable) is unique.
void FlatSpace::check_sections() const {
  uint32_t next_chunk = 0;
  for (uint32_t s = 0; s < sections_.size(); ++s) {
    const Section& section = sections_[s];
    TERRACE_ASSERT(section.elements > 0 && section.elements % kTileElements == 0, id_text("section", s));
    TERRACE_ASSERT(section.first_chunk == next_chunk, id_text("section", s));
    TERRACE_ASSERT(section.chunk_count == divide_up(section.elements, chunk_elements_),
                   id_text("section", s));
    next_chunk += section.chunk_count;
    TERRACE_ASSERT(next_chunk <= chunks_.size(), id_text("section", s));
    uint64_t sum = 0;
    for (uint32_t c = section.first_chunk; c < next_chunk; ++c) sum += chunks_[c].elements;
    TERRACE_ASSERT(sum == section.elements, id_text("section", s) + ": " + std::to_string(sum) + " elements");
    for (uint32_t other = 0; other < s; ++other) {
      TERRACE_ASSERT(sections_[other].type != section.type || sections_[other].trainable != section.trainable,
                     id_text("section", s));
    }
  }
  TERRACE_ASSERT(next_chunk == chunks_.size(), id_text("chunk", next_chunk));
}

// Every tensor lies aligned in its own section behind the one before it, less than kTensorAlignment behind;
// the last ends less than kTileElements before the section does; the counts are sums.
void FlatSpace::check_places() const {
  TERRACE_ASSERT(places_.size() == tensors_.size() && by_name_.size() == tensors_.size(), "counts differ");
  std::vector<uint64_t> end(sections_.size(), 0);
  uint64_t parameters = 0;
  uint64_t trainable = 0;
  for (uint32_t t = 0; t < places_.size(); ++t) {
    const TensorPlace& place = places_[t];
    const std::string& name = tensors_[t].name;
    TERRACE_ASSERT(place.section < sections_.size(), name);
    TERRACE_ASSERT(sections_[place.section].type == tensors_[t].type, name);
    TERRACE_ASSERT(sections_[place.section].trainable == tensors_[t].trainable, name);
    TERRACE_ASSERT(place.elements == tensors_[t].element_count() && place.elements > 0, name);
    TERRACE_ASSERT(place.first_element == round_up(end[place.section], kTensorAlignment), name);
    end[place.section] = place.first_element + place.elements;
    parameters += place.elements;
    if (tensors_[t].trainable) trainable += place.elements;
    TERRACE_ASSERT(find(name) == TensorId{t}, name);
  }
  for (uint32_t s = 0; s < sections_.size(); ++s) {
    TERRACE_ASSERT(round_up(end[s], kTileElements) == sections_[s].elements, id_text("section", s));
  }
  TERRACE_ASSERT(parameters == parameter_count_, std::to_string(parameters));
  TERRACE_ASSERT(trainable == trainable_count_, std::to_string(trainable));
}

// chunk.first_element = index_in_section * E; a tensor is listed by exactly the chunks of its range, and the
// elements that those chunks hold of it add up to its own.
void FlatSpace::check_chunks() const {
  std::vector<uint64_t> held(tensors_.size(), 0);
  std::vector<uint32_t> listed(tensors_.size(), 0);
  for (uint32_t c = 0; c < chunks_.size(); ++c) {
    const ChunkInfo& chunk = chunks_[c];
    const Section& section = sections_[chunk.section];
    TERRACE_ASSERT(c == section.first_chunk + chunk.index_in_section, id_text("chunk", c));
    TERRACE_ASSERT(chunk.first_element == chunk.index_in_section * chunk_elements_, id_text("chunk", c));
    TERRACE_ASSERT(chunk.elements > 0 && chunk.elements % kTileElements == 0, id_text("chunk", c));
    const bool last = chunk.index_in_section + 1 == section.chunk_count;
    TERRACE_ASSERT(last || chunk.elements == chunk_elements_, id_text("chunk", c));
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
  for (uint32_t t = 0; t < tensors_.size(); ++t) {
    TERRACE_ASSERT(held[t] == places_[t].elements, tensors_[t].name);
    TERRACE_ASSERT(listed[t] == places_[t].chunk_count, tensors_[t].name);
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

#include <terrace/memory/space/space_layout.h>

#include <algorithm>
#include <limits>
#include <utility>

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

// Returns the product of the extents. It refuses an extent of zero and a product that leaves the space.
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
  if (tensor.by_matrix && (tensor.shape.size() != 2 || !tensor.trainable))
    refuse(tensor, "its shape is " + shape_text(tensor) + ", and Muon trains matrices",
           "train it by another optimizer, AdamW for example");
  return count;
}

}  // namespace

SpaceLayout::SpaceLayout(std::vector<TensorSpec> tensors, uint64_t chunk_elements)
    : tensors_(std::move(tensors)), chunk_elements_(chunk_elements) {
  TERRACE_ASSERT(
      chunk_elements_ > 0 && chunk_elements_ % kTileElements == 0 && chunk_elements_ <= kMaxElements,
      "a chunk of " + std::to_string(chunk_elements_) + " elements is not made of whole tiles of " +
          std::to_string(kTileElements));
  for (const TensorSpec& tensor : tensors_) widest_bytes_ = std::max(widest_bytes_, bytes_of(tensor.type));
  place_tensors();
  cut_chunks();
}

// Fills sections_ (all but first_chunk) and places_ (all but the chunk ranges).
void SpaceLayout::place_tensors() {
  places_.reserve(tensors_.size());
  uint64_t total_elements = 0;  // padding included
  uint64_t total_chunks = 0;
  for (const TensorSpec& tensor : tensors_) {
    const uint64_t count = checked_element_count(tensor);
    auto section = std::find_if(sections_.begin(), sections_.end(), [&](const Section& s) {
      return s.type == tensor.type && s.trainable == tensor.trainable && s.home == tensor.home &&
             s.by_matrix == tensor.by_matrix && s.counted_elsewhere == tensor.counted_elsewhere;
    });
    if (section == sections_.end()) {
      section = sections_.insert(sections_.end(), Section{.type = tensor.type,
                                                          .trainable = tensor.trainable,
                                                          .home = tensor.home,
                                                          .by_matrix = tensor.by_matrix,
                                                          .counted_elsewhere = tensor.counted_elsewhere});
      section->chunk_elements = chunk_elements_ * widest_bytes_ / bytes_of(tensor.type);
    }
    total_elements -= round_up(section->elements, kTileElements);
    total_chunks -= section->chunk_count;
    const uint64_t first = round_up(section->elements, kTensorAlignment);
    section->elements = first + count;  // the padding comes when all tensors are placed
    section->chunk_count = 0;
    total_elements += round_up(section->elements, kTileElements);
    const uint64_t section_chunks = divide_up(section->elements, section->chunk_elements);
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

void SpaceLayout::cut_chunks() {
  for (Section& section : sections_) {
    section.elements = round_up(section.elements, kTileElements);
    section.first_chunk = chunk_count_;
    chunk_count_ += section.chunk_count;
  }
  for (TensorPlace& place : places_) {
    const uint64_t chunk_elements = sections_[place.section].chunk_elements;
    const uint64_t first = place.first_element / chunk_elements;
    const uint64_t last = (place.first_element + place.elements - 1) / chunk_elements;
    place.first_chunk = sections_[place.section].first_chunk + static_cast<uint32_t>(first);
    place.chunk_count = static_cast<uint32_t>(last - first + 1);
  }
}

uint64_t SpaceLayout::largest_trainable_chunk() const {
  uint64_t elements = 0;
  for (const Section& section : sections_) {
    if (section.trainable) elements = std::max(elements, section.chunk_elements);
  }
  return elements == 0 ? chunk_elements_ : elements;
}

}  // namespace terrace

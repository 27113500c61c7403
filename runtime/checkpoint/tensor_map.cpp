// How tensors of one program are found among those of another. Declared in tensor_list.h.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include <terrace/base/assert.h>
#include <terrace/runtime/checkpoint/internal/tensor_list.h>

namespace terrace::checkpoint {
namespace {

std::string shape_text(const std::vector<uint64_t>& shape) {
  std::string text;
  for (const uint64_t extent : shape) text += fmt::format("{}{}", text.empty() ? "" : " x ", extent);
  return text;
}

// The name of the whole of which a tensor is the part with this number; empty where it is none.
std::string whole_of(const std::string& name, size_t part) {
  const std::string suffix = fmt::format("[{}]", part);
  return name.size() > suffix.size() && name.ends_with(suffix) ? name.substr(0, name.size() - suffix.size())
                                                               : "";
}

}  // namespace

// Parts of a whole follow each other in the list.
TensorMap::Wholes TensorMap::wholes_of(std::span<const TensorSpec> tensors) {
  std::set<std::string_view> names;
  for (const TensorSpec& tensor : tensors) names.insert(tensor.name);
  Wholes wholes;
  std::string open;  // the whole whose parts come
  for (uint32_t t = 0; t < tensors.size(); ++t) {
    const TensorSpec& tensor = tensors[t];
    if (tensor.name.starts_with('.')) continue;
    const size_t next = open.empty() ? 0 : wholes[open].parts.size();
    std::string name = whole_of(tensor.name, next);
    const bool goes_on = !open.empty() && name == open;
    if (!goes_on) name = whole_of(tensor.name, 0);
    const bool begins = !goes_on && !name.empty() && !wholes.contains(name) && !names.contains(name);
    open = goes_on || begins ? name : "";
    if (open.empty()) name = tensor.name;
    Whole& whole = wholes[name];
    if (whole.parts.empty()) {
      whole = {tensor.shape, tensor.type, tensor.trainable, tensor.by_matrix, {}, 0};
    } else {
      whole.shape.front() += tensor.shape.front();
    }
    whole.parts.push_back({TensorId{t}, whole.elements, tensor.element_count()});
    whole.elements += tensor.element_count();
  }
  return wholes;
}

std::string TensorMap::difference_of(const Wholes& from, const Wholes& to) {
  for (const auto& [name, whole] : to) {
    const auto found = from.find(name);
    if (found == from.end()) return fmt::format("\"{}\" is not there", name);
    const Whole& other = found->second;
    if (other.shape != whole.shape || other.elements != whole.elements)
      return fmt::format("\"{}\" is {} there, and {} here", name, shape_text(other.shape),
                         shape_text(whole.shape));
    if (other.type != whole.type)
      return fmt::format("\"{}\" is {} there, and {} here", name, name_of(other.type), name_of(whole.type));
    if (other.trainable != whole.trainable)
      return fmt::format("\"{}\" is {} there, and {} here", name, other.trainable ? "trained" : "frozen",
                         whole.trainable ? "trained" : "frozen");
  }
  for (const auto& [name, whole] : from) {
    if (!to.contains(name)) return fmt::format("\"{}\" is not here", name);
  }
  return "";
}

TensorMap::TensorMap(std::span<const TensorSpec> from, std::span<const TensorSpec> to)
    : from_(wholes_of(from)) {
  const Wholes wholes = wholes_of(to);
  difference_ = difference_of(from_, wholes);
  if (!difference_.empty()) return;
  places_.resize(to.size());
  for (const auto& [name, whole] : wholes) {
    if (updated_otherwise_.empty() && from_.at(name).by_matrix != whole.by_matrix) updated_otherwise_ = name;
    for (const Part& part : whole.parts)
      places_[index_of(part.tensor)] = {&from_.at(name), part.first_element};
  }
}

void TensorMap::for_each_piece(
    TensorId to, uint64_t first_element, uint64_t count,
    FunctionRef<void(TensorId from, uint64_t first, uint64_t at, uint64_t count)> piece) const {
  const auto& [whole, begin] = places_[index_of(to)];
  uint64_t element = begin + first_element, at = 0;
  auto part = std::ranges::upper_bound(whole->parts, element, {}, &Part::first_element) - 1;
  while (at < count) {
    TERRACE_ASSERT(part != whole->parts.end(), "elements beyond the end of a tensor");
    const uint64_t inside = element - part->first_element;
    const uint64_t here = std::min(count - at, part->elements - inside);
    piece(part->tensor, inside, at, here);
    at += here, element += here, ++part;
  }
}

}  // namespace terrace::checkpoint

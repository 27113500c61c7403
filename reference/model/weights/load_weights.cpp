#include <terrace/reference/model/weights/load_weights.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/progress.h>
#include <terrace/base/text/json_writer.h>

namespace terrace {
namespace {

constexpr size_t kMostListed = 10;
constexpr std::string_view kHeadName = "lm_head.weight";
// What a causal language model puts before the names of the model below its head.
constexpr std::array<std::string_view, 2> kPrefixes = {"transformer.", "model."};
// Names of token tables, without the prefix.
constexpr std::array<std::string_view, 2> kTokenTables = {"wte.weight", "embed_tokens.weight"};

// Constants that some versions of transformers saved with the weights: causal masks and rotary frequencies.
bool is_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

std::string shape_text(const std::vector<uint64_t>& shape) {
  std::string text;
  for (const uint64_t extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
  return "[" + text + "]";
}

WeightFolder::Place find_weight(const WeightFolder& folder, std::string_view name) {
  if (const WeightFolder::Place place = folder.find(name)) return place;
  for (const std::string_view prefix : kPrefixes) {
    if (name.starts_with(prefix)) return folder.find(name.substr(prefix.size()));
  }
  return {};
}

// What is wrong with the weights of a folder, of one kind.
class Complaint {
 public:
  explicit Complaint(std::string_view kind) : kind_(kind) {}
  void add(const std::string& what) {
    if (++count_ > kMostListed) return;
    list_ += (list_.empty() ? "" : ", ") + what;
  }
  size_t count() const { return count_; }
  void append_to(std::string& text) const {
    if (count_ == 0) return;
    text += fmt::format("{}{} {}: {}", text.empty() ? "" : "; ", count_, kind_, list_);
    if (count_ > kMostListed) text += fmt::format(" and {} more", count_ - kMostListed);
  }

 private:
  std::string_view kind_;
  std::string list_;
  size_t count_ = 0;
};

// Both as fp32, a piece at a time.
bool have_equal_values(const WeightFolder::Place& one, const WeightFolder::Place& other) {
  if (one.tensor->shape != other.tensor->shape) return false;
  std::vector<float> a(64 * 1024);
  std::vector<float> b(a.size());
  const uint64_t elements = one.tensor->element_count();
  for (uint64_t first = 0; first < elements; first += a.size()) {
    const size_t count = std::min<uint64_t>(a.size(), elements - first);
    one.file->read(*one.tensor, first, std::span(a).first(count));
    other.file->read(*other.tensor, first, std::span(b).first(count));
    if (std::memcmp(a.data(), b.data(), count * sizeof(float)) != 0) return false;
  }
  return true;
}

// A head in the file of a model that has none of its own: training would silently go on with another head.
void require_tied_head(const WeightFolder& folder, const WeightFolder::Place& head,
                       std::span<const WeightSpec> weights) {
  for (const WeightSpec& weight : weights) {
    const bool is_table = std::any_of(kTokenTables.begin(), kTokenTables.end(),
                                      [&](std::string_view table) { return weight.name.ends_with(table); });
    const WeightFolder::Place table = is_table ? find_weight(folder, weight.name) : WeightFolder::Place{};
    if (!table) continue;
    if (have_equal_values(head, table)) return;
    throw Error(ErrorKind::config,
                {"cannot use the weights in", folder.path().string(),
                 fmt::format("{} differs from {}, and the model uses one table for both", kHeadName,
                             table.tensor->name),
                 "set tie_word_embeddings to false in config.json if the head is one of its own"});
  }
}

// One such number spoils every loss, and nothing in the run would tell where it came from.
[[noreturn]] void refuse_number(const WeightFolder::Place& place, uint64_t element, float value,
                                DataType type) {
  const bool finite = std::isfinite(value);
  throw Error(ErrorKind::config,
              {"cannot use the weights in", place.file->path().string(),
               fmt::format("element {} of {} is {}{}", element, place.tensor->name, value,
                           finite ? fmt::format(", more than {} holds", name_of(type)) : ""),
               finite ? "train in bf16 or fp32" : "the weights are damaged: fetch or export them again"});
}

}  // namespace

WeightSource::WeightSource(const WeightFolder& folder, std::span<const WeightSpec> weights,
                           std::span<const TensorSpec> tensors)
    : places_(tensors.size()) {
  Complaint missing("missing");
  Complaint wrong_shape("of another shape");
  Complaint wrong_type("of a type that Terrace does not read");
  Complaint extra("not of this model");
  std::set<const SafetensorsTensor*> used;
  for (const WeightSpec& weight : weights) {
    const WeightFolder::Place place = find_weight(folder, weight.name);
    if (!place) {
      missing.add(weight.name);
      continue;
    }
    used.insert(place.tensor);
    if (place.tensor->shape != weight.shape) {
      wrong_shape.add(fmt::format("{} is {} and must be {}", place.tensor->name,
                                  shape_text(place.tensor->shape), shape_text(weight.shape)));
    } else if (!place.tensor->data_type()) {
      wrong_type.add(fmt::format("{} is {}", place.tensor->name, place.tensor->type));
    }
    uint64_t first = 0;
    for (const TensorId part : weight.parts) {
      const CodedWeight& coded = weight.coded;
      const TensorSpec& tensor = tensors[index_of(part)];
      places_[index_of(part)] = {place, first, coded.is_coded() ? coded.type : tensor.type, coded};
      first += coded.is_coded() ? coded.elements : tensor.element_count();
    }
    TERRACE_ASSERT(first == count_elements(weight.shape),
                   fmt::format("the parts of {} do not make it whole", weight.name));
  }
  const WeightFolder::Place head = folder.find(kHeadName);
  for (const WeightFolder::Place& place : folder.tensors()) {
    const bool known = used.contains(place.tensor) || place.tensor == head.tensor;
    if (!known && !is_buffer(place.tensor->name)) extra.add(json_quoted(place.tensor->name, 200));
  }
  std::string problems;
  for (const Complaint* complaint : {&missing, &wrong_shape, &wrong_type, &extra})
    complaint->append_to(problems);
  if (!problems.empty()) {
    throw Error(ErrorKind::config,
                {"cannot use the weights in", folder.path().string(), problems,
                 missing.count() == weights.size()
                     ? "they are of another kind of model: compare the folder's config.json"
                     : "weights and model must belong together: compare the folder's config.json"});
  }
  if (head && !used.contains(head.tensor)) require_tied_head(folder, head, weights);
}

void WeightSource::read(TensorId tensor, uint64_t first_element, std::span<float> values) const {
  const PartPlace& part = places_[index_of(tensor)];
  TERRACE_ASSERT(part.weight, "the tensor is part of no weight");
  if (!part.coded.is_coded()) return read_numbers(part, first_element, values);
  fill_words(part.coded, first_element, values,
             [&](uint64_t first, std::span<float> numbers) { read_numbers(part, first, numbers); });
}

void WeightSource::read_numbers(const PartPlace& part, uint64_t first_element,
                                std::span<float> values) const {
  part.weight.file->read(*part.weight.tensor, part.first_element + first_element, values);
  const DataType type = part.type;
  const auto misfit =
      std::find_if_not(values.begin(), values.end(), [type](float v) { return fits(v, type); });
  if (misfit == values.end()) return;
  const auto place = static_cast<uint64_t>(misfit - values.begin());
  refuse_number(part.weight, part.first_element + first_element + place, *misfit, type);
}

void load_weights(const WeightFolder& folder, const Model& model, Offloader& offloader, Log& log) {
  const std::vector<WeightSpec> weights = model.weights();
  const std::vector<TensorSpec> tensors = model.tensors();
  const WeightSource source(folder, weights, tensors);
  ProgressReport progress(log, fmt::format("loading the weights of {}", folder.path().string()),
                          model.parameter_count() * sizeof(float));
  offloader.state().initialise([&](TensorId tensor, uint64_t first, std::span<float> values) {
    progress.add(values.size_bytes());
    if (source.has(tensor)) {
      source.read(tensor, first, values);
    } else {
      model.initial_values(tensor, first, values);
    }
  });
}

}  // namespace terrace

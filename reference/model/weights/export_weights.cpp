#include <terrace/reference/model/weights/export_weights.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include <terrace/aio/file.h>
#include <terrace/base/assert.h>
#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/base/units.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/reference/model/weights/export_folder.h>
#include <terrace/runtime/safetensors/safetensors.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

// What a tokenizer, and generation, need beside the weights.
const std::vector<std::string> kCopiedNames = {"tokenizer.json",
                                               "tokenizer_config.json",
                                               "special_tokens_map.json",
                                               "added_tokens.json",
                                               "tokenizer.model",
                                               "vocab.json",
                                               "merges.txt",
                                               "vocab.txt",
                                               "chat_template.jinja",
                                               "chat_template.json",
                                               "generation_config.json"};

constexpr uint64_t kBlockBytes = 4096;  // what a file takes is rounded up to it

// The weights in the order in which their values arrive, cut into files.
struct Layout {
  std::vector<size_t> order;          // indexes of weights
  std::vector<size_t> first_of_file;  // positions in `order`, one more than there are files
  uint64_t data_bytes = 0;
};

uint64_t bytes_of_weight(const WeightSpec& weight, DataType type) {
  return count_elements(weight.shape) * bytes_of(type);
}

// The flat order of FlatSpace: its sections in the order of their first tensors.
std::vector<uint32_t> flat_ranks(std::span<const TensorSpec> tensors) {
  constexpr uint64_t kFewChunks = uint64_t{1} << 40;  // elements of a chunk: none of its memory is ever taken
  const FlatSpace space({tensors.begin(), tensors.end()}, kFewChunks);
  std::vector<uint32_t> order(tensors.size());
  for (uint32_t t = 0; t < order.size(); ++t) order[t] = t;
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return space.place(TensorId{a}).section < space.place(TensorId{b}).section;
  });
  std::vector<uint32_t> ranks(tensors.size());
  for (uint32_t position = 0; position < order.size(); ++position) ranks[order[position]] = position;
  return ranks;
}

Layout make_layout(std::span<const WeightSpec> weights, std::span<const TensorSpec> tensors,
                   const ExportOptions& options) {
  const std::vector<uint32_t> ranks = flat_ranks(tensors);
  Layout layout;
  for (size_t w = 0; w < weights.size(); ++w) {
    const std::vector<TensorId>& parts = weights[w].parts;
    for (size_t p = 1; p < parts.size(); ++p) {
      TERRACE_ASSERT(ranks[index_of(parts[p])] == ranks[index_of(parts[p - 1])] + 1,
                     fmt::format("the parts of {} are not neighbours", weights[w].name));
    }
    layout.order.push_back(w);
  }
  std::sort(layout.order.begin(), layout.order.end(), [&](size_t a, size_t b) {
    return ranks[index_of(weights[a].parts.front())] < ranks[index_of(weights[b].parts.front())];
  });
  uint64_t file_bytes = 0;
  for (size_t position = 0; position < layout.order.size(); ++position) {
    const uint64_t bytes = bytes_of_weight(weights[layout.order[position]], options.type);
    if (position == 0 || (file_bytes + bytes > options.max_shard_bytes && file_bytes > 0)) {
      layout.first_of_file.push_back(position);
      file_bytes = 0;
    }
    file_bytes += bytes;
    layout.data_bytes += bytes;
  }
  layout.first_of_file.push_back(layout.order.size());
  return layout;
}

// An upper bound: the weights, their headers and index, the small files and the list of them all.
uint64_t bytes_needed(std::span<const WeightSpec> weights, const Layout& layout,
                      const ExportOptions& options) {
  constexpr uint64_t kOfAWeight = 256;  // a line of a header, and one of the index
  const auto in_blocks = [](uint64_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes; };
  uint64_t bytes = layout.data_bytes + layout.first_of_file.size() * 2 * kBlockBytes + 2 * kBlockBytes;
  for (const WeightSpec& weight : weights) bytes += kOfAWeight + 2 * weight.name.size();
  for (const auto& [name, text] : options.texts) bytes += in_blocks(text.size());
  for (const std::string& name : kCopiedNames) {
    std::error_code absent;
    const uint64_t size = options.source.empty() ? 0 : fs::file_size(options.source / name, absent);
    if (!absent) bytes += in_blocks(size);
  }
  return bytes;
}

void require_space(const ExportFolder& folder, uint64_t bytes) {
  const uint64_t free_bytes = io::free_bytes_at(folder.path());
  if (bytes <= free_bytes) return;
  throw Error(ErrorKind::capacity,
              {"cannot export into", folder.target().string(),
               fmt::format("it takes {} and its file system has {} free", format_bytes(bytes),
                           format_bytes(free_bytes)),
               "free some space, or name a folder on another disk; an earlier export is replaced only when "
               "the new one is complete, so both must fit"});
}

// Takes values in their order and writes the files one after another.
class WeightFiles {
 public:
  WeightFiles(const ExportFolder& folder, std::span<const WeightSpec> weights,
              std::span<const TensorSpec> tensors, const ExportOptions& options, const Layout& layout)
      : folder_(folder), weights_(weights), options_(options), layout_(layout) {
    owner_.resize(tensors.size());
    for (size_t w = 0; w < weights.size(); ++w) {
      uint64_t first = 0;
      for (const TensorId part : weights[w].parts) {
        owner_[index_of(part)] = Owner{w, first};
        first += tensors[index_of(part)].element_count();
      }
      TERRACE_ASSERT(first == count_elements(weights[w].shape),
                     fmt::format("the parts of {} do not make it whole", weights[w].name));
    }
  }

  bool wants(TensorId tensor) const { return owner_[index_of(tensor)].has_value(); }

  void take(TensorId tensor, uint64_t first_element, std::span<const float> values) {
    TERRACE_ASSERT(wants(tensor), "a tensor came that belongs to no weight");
    const Owner& owner = *owner_[index_of(tensor)];
    while (!values.empty()) {
      const size_t count = std::min(values.size(), run_.size());
      const std::span<float> run = std::span(run_).first(count);
      std::copy_n(values.begin(), count, run.begin());
      take_run(owner.weight, owner.first_element + first_element, run);
      first_element += count;
      values = values.subspan(count);
    }
  }

  void finish() {
    TERRACE_ASSERT(position_ == layout_.order.size() && next_element_ == 0, "an export ended too early");
    close_file();
    TERRACE_ASSERT(file_ == file_count(), "a file of weights was not written");
  }

  size_t file_count() const { return layout_.first_of_file.size() - 1; }
  uint64_t written_bytes() const { return written_bytes_; }

  std::string file_name(size_t file) const {
    if (file_count() == 1) return options_.stem + ".safetensors";
    return fmt::format("{}-{:05}-of-{:05}.safetensors", options_.stem, file + 1, file_count());
  }

 private:
  struct Owner {
    size_t weight;
    uint64_t first_element;  // of the tensor, in the weight
  };

  void take_run(size_t weight, uint64_t first_element, std::span<float> run) {
    TERRACE_ASSERT(position_ < layout_.order.size() && layout_.order[position_] == weight &&
                       first_element == next_element_,
                   fmt::format("{} comes out of order", weights_[weight].name));
    if (!writer_) open_file();
    if (options_.transform) options_.transform(weight, first_element, run);
    require_fits(weights_[weight].name, first_element, run);
    writer_->write(run);
    next_element_ += run.size();
    if (next_element_ < count_elements(weights_[weight].shape)) return;
    next_element_ = 0;
    ++position_;
    if (position_ == layout_.first_of_file[file_ + 1]) close_file();
  }

  // A number that is not finite already is the model's own, and is written as it is.
  void require_fits(const std::string& name, uint64_t first_element, std::span<const float> run) const {
    for (size_t e = 0; e < run.size(); ++e) {
      if (fits(run[e], options_.type) || !std::isfinite(run[e])) continue;
      throw Error(ErrorKind::config,
                  {"cannot export into", folder_.target().string(),
                   fmt::format("element {} of {} is {}, more than {} holds", first_element + e, name, run[e],
                               name_of(options_.type)),
                   options_.type == DataType::fp16 ? "export as bf16 or fp32" : "export as fp32"});
    }
  }

  void open_file() {
    std::vector<SafetensorsSpec> specs;
    for (size_t p = layout_.first_of_file[file_]; p < layout_.first_of_file[file_ + 1]; ++p) {
      const WeightSpec& weight = weights_[layout_.order[p]];
      specs.push_back({weight.name, options_.type, weight.shape});
    }
    // Without "pt" transformers takes the file for one of another framework.
    writer_.emplace(folder_.path() / file_name(file_), specs,
                    std::map<std::string, std::string>{{"format", "pt"}});
  }

  void close_file() {
    if (!writer_) return;
    writer_->finish();
    written_bytes_ += writer_->file_bytes();
    writer_.reset();
    ++file_;
  }

  const ExportFolder& folder_;
  std::span<const WeightSpec> weights_;
  const ExportOptions& options_;
  const Layout& layout_;
  std::vector<std::optional<Owner>> owner_;  // by TensorId
  std::optional<SafetensorsWriter> writer_;
  size_t file_ = 0;
  size_t position_ = 0;        // in layout_.order, of the weight being written
  uint64_t next_element_ = 0;  // of it
  uint64_t written_bytes_ = 0;
  std::array<float, kTileElements> run_{};
};

std::string index_text(std::span<const WeightSpec> weights, const Layout& layout, const WeightFiles& files) {
  std::map<std::string, std::string> weight_map;
  for (size_t file = 0; file < files.file_count(); ++file) {
    for (size_t p = layout.first_of_file[file]; p < layout.first_of_file[file + 1]; ++p)
      weight_map[weights[layout.order[p]].name] = files.file_name(file);
  }
  JsonWriter json;
  json.begin_object(JsonLayout::lines).begin_object("metadata", JsonLayout::lines);
  json.member("total_size", layout.data_bytes).end().begin_object("weight_map", JsonLayout::lines);
  for (const auto& [name, file] : weight_map) json.member(name, file);
  return json.end().end().take() + "\n";
}

}  // namespace

ExportReport export_weights(const fs::path& target, std::span<const WeightSpec> weights,
                            std::span<const TensorSpec> tensors, const ExportOptions& options,
                            ValueSource source, Log& log) {
  TERRACE_ASSERT(!weights.empty(), "there is nothing to export");
  const SteadyClock clock;
  const uint64_t begun_ns = clock.now_ns();
  const Layout layout = make_layout(weights, tensors, options);
  ExportFolder folder(target, options.replace, log);
  require_space(folder, bytes_needed(weights, layout, options));
  WeightFiles files(folder, weights, tensors, options, layout);
  source([&](TensorId tensor) { return files.wants(tensor); },
         [&](TensorId tensor, uint64_t first, std::span<const float> values) {
           files.take(tensor, first, values);
         });
  files.finish();
  if (files.file_count() > 1)
    folder.write_text(options.stem + ".safetensors.index.json", index_text(weights, layout, files));
  if (!options.source.empty()) folder.copy_existing(options.source, kCopiedNames);
  for (const auto& [name, text] : options.texts) folder.write_text(name, text);
  folder.commit(options.step);
  log.info(fmt::format("exported {} weights as {} to {} ({} in {} file{}, {})", weights.size(),
                       name_of(options.type), folder.target().string(), format_bytes(files.written_bytes()),
                       files.file_count(), files.file_count() == 1 ? "" : "s",
                       format_duration(clock.now_ns() - begun_ns)));
  return {folder.target(), weights.size(), files.file_count(), files.written_bytes()};
}

}  // namespace terrace

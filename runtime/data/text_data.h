// TextData: bytes of text as training data, one token per byte. Which bytes a micro-batch holds is a function
// of the seed, the step and the micro-batch alone, so there is no position to save and nothing to restore.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include <terrace/runtime/data/text_files.h>

namespace terrace {

struct TextDataOptions {
  uint64_t context = 0;  // tokens of one sample, at least 1
  uint64_t seed = 42;
  // The last part of the bytes is never trained on. It is never shorter than one sample; 0: there is none.
  double validation_fraction = 0.05;
};

class TextData {
 public:
  static constexpr uint32_t kVocabulary = 256;

  // Throws Error when there is no text or too little of it for one sample per part.
  TextData(const std::filesystem::path& path, const TextDataOptions& options);

  const TextFiles& files() const { return files_; }
  uint64_t train_byte_count() const { return train_byte_count_; }  // [0, train_byte_count())
  uint64_t validation_byte_count() const { return files_.byte_count() - train_byte_count_; }

  // Fills tokens and targets[i], the token after tokens[i], with whole samples one after the other: windows
  // of the training part at uniformly random places, which depend on the arguments and the seed alone. Both
  // spans have the same size, a multiple of the context. Thread-safe; allocates nothing.
  void fill(uint64_t step, uint32_t micro_batch, std::span<int32_t> tokens, std::span<int32_t> targets) const;
  // Where sample number `sample` of that micro-batch begins, in bytes.
  uint64_t window_begin(uint64_t step, uint32_t micro_batch, uint32_t sample) const;

  // The same with samples first_sample, first_sample + 1, ... of `sample_count` windows that are spread
  // evenly over the validation part, from its first byte to its last. They overlap when there are more than
  // fit side by side.
  void fill_validation(uint64_t first_sample, uint64_t sample_count, std::span<int32_t> tokens,
                       std::span<int32_t> targets) const;

  // The loss, in nats per byte, of the best model that ignores context: the cross entropy between the
  // validation part (the training part where there is none) and the byte frequencies of the training part,
  // one added to each of the 256 counts. A model that has learned anything beyond frequencies is below it.
  // Reads all data once.
  double unigram_loss() const;

 private:
  void fill_window(uint64_t begin, std::span<int32_t> tokens, std::span<int32_t> targets) const;

  TextFiles files_;
  TextDataOptions options_;
  uint64_t train_byte_count_;
};

}  // namespace terrace

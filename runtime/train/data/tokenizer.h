// Tokenizer: text to tokens and back as a tokenizer.json of the tokenizers library says: BPE of the byte
// level (GPT-2, Llama 3, Qwen) and of SentencePiece (Llama 2, Mistral, Gemma). What a file asks for beyond
// that is refused by its key, never ignored: a text has the tokens that the library gives it, or there is an
// error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

namespace data {
struct TextCuts;
}

class Tokenizer {
 public:
  // Reads the file, or the tokenizer.json of a folder, and what tokenizer_config.json beside it says about
  // the end of a text. Throws Error(io) or Error(config).
  static Tokenizer load(const std::filesystem::path& path);
  // `name` stands for the text in messages. Memory is bounded by a small multiple of the text.
  static Tokenizer parse(std::string_view json, std::string_view name);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Every token is below it.
  uint32_t vocabulary() const;
  // Of all that decides about tokens.
  uint64_t fingerprint() const;
  // "byte-level BPE, 50257 tokens, NFC", "SentencePiece BPE, 32000 tokens".
  std::string description() const;
  // What stands between two texts.
  std::optional<int32_t> end_of_text() const;
  // The token as a file writes it: "<|endoftext|>".
  const std::string& name_of(int32_t token) const;

  // The bytes that a token stands for, not necessarily whole characters; at the beginning of a text without
  // the space that SentencePiece puts there. None for a number without a token.
  std::string_view bytes_of(int32_t token, bool begins_text = false) const;
  // The text of tokens as the library gives it, special ones included: what is no UTF-8 becomes U+FFFD.
  std::string decode(std::span<const int32_t> tokens) const;
  // What goes in front of and behind a text that stands by itself.
  const std::vector<int32_t>& prefix() const;
  const std::vector<int32_t>& suffix() const;

  // Where a text may be cut into segments, each with the tokens that it has within the whole.
  data::TextCuts cuts() const;

  class Encoder;
  class Decoder;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<Parts> parts);
  void set_end_of_text(const std::string& name);
  std::unique_ptr<Parts> parts_;
};

// What one thread needs to encode; the tokenizer outlives it.
class Tokenizer::Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer);
  Encoder(Encoder&&) noexcept;
  ~Encoder();

  // Appends the tokens of a text, without prefix and suffix. Broken UTF-8 counts as U+FFFD. Memory is bounded
  // by a multiple of the text. A continuation is not the beginning of its text: nothing is put in front of
  // it.
  void encode(std::string_view text, std::vector<int32_t>& tokens, bool is_continuation = false);

 private:
  struct Scratch;
  std::string_view prefixed(std::string_view text, size_t step);
  void cut(std::string_view text, size_t step, std::vector<int32_t>& tokens);

  const Parts& parts_;
  std::unique_ptr<Scratch> scratch_;
};

// Text of tokens that come one by one: all that it returns together is what decode() gives. Memory is bounded
// by the longest run of tokens that are bytes. The tokenizer outlives it.
class Tokenizer::Decoder {
 public:
  // `begins_text`: the first token is the first of its text.
  explicit Decoder(const Tokenizer& tokenizer, bool begins_text = true);

  // The text that is certain after one more token. It is empty while bytes may belong to a character that is
  // not whole, and within a run of SentencePiece's tokens of bytes, which is U+FFFD for each of them if the
  // run as a whole is no UTF-8.
  std::string add(int32_t token);
  // The rest, behind the last token.
  std::string finish();

 private:
  void end_run();
  std::string take(size_t bytes);

  const Tokenizer& tokenizer_;
  bool begins_text_;
  std::string run_;      // bytes of SentencePiece's tokens of bytes
  std::string pending_;  // bytes that were not returned
};

}  // namespace terrace

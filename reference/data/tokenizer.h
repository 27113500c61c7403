// Tokenizer converts text to tokens and back as a tokenizer.json of the tokenizers library says: BPE of the
// byte level (GPT-2, Llama 3, Qwen) and of SentencePiece (Llama 2, Mistral, Gemma). A key that asks for more
// is refused, never ignored: a text has the tokens that the library gives it, or there is an error.
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
  // Reads the file, or the tokenizer.json of a folder, and the end of a text from tokenizer_config.json
  // beside it. Throws Error(io) or Error(config).
  static Tokenizer load(const std::filesystem::path& path);
  // `name` stands for the text in messages. Memory is bounded by a small multiple of the text.
  static Tokenizer parse(std::string_view json, std::string_view name);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Returns a number above every token.
  uint32_t vocabulary() const;
  // Returns a hash of everything that decides about tokens.
  uint64_t fingerprint() const;
  // Returns "byte-level BPE, 50257 tokens, NFC", "SentencePiece BPE, 32000 tokens".
  std::string description() const;
  // Returns the token between two texts.
  std::optional<int32_t> end_of_text() const;
  // Returns the token as a file writes it: "<|endoftext|>".
  const std::string& name_of(int32_t token) const;

  // Returns the bytes of a token, not necessarily whole characters. At the beginning of a text they lack the
  // space that SentencePiece puts there. Empty for a number without a token.
  std::string_view bytes_of(int32_t token, bool begins_text = false) const;
  // Returns the text of tokens as the library gives it, special ones included; bytes that are no UTF-8 become
  // U+FFFD.
  std::string decode(std::span<const int32_t> tokens) const;
  // These return the tokens in front of and behind a whole text.
  const std::vector<int32_t>& prefix() const;
  const std::vector<int32_t>& suffix() const;

  // Returns the places at which a text may be cut into segments that keep the tokens of the whole.
  data::TextCuts cuts() const;

  class Encoder;
  class Decoder;

 private:
  struct Rules;
  explicit Tokenizer(std::unique_ptr<Rules> rules);
  void set_end_of_text(const std::string& name);
  std::unique_ptr<Rules> rules_;
};

// The memory in which one thread encodes; the tokenizer outlives it.
class Tokenizer::Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer);
  Encoder(Encoder&&) noexcept;
  ~Encoder();

  // Appends the tokens of a text, without prefix and suffix. Broken UTF-8 counts as U+FFFD. Memory is bounded
  // by a multiple of the text. A continuation is not the beginning of its text: nothing goes in front of it.
  void encode(std::string_view text, std::vector<int32_t>& tokens, bool is_continuation = false);

 private:
  struct Scratch;
  std::string_view prefixed(std::string_view text, size_t step);
  void cut(std::string_view text, size_t step, std::vector<int32_t>& tokens);

  const Rules& rules_;
  std::unique_ptr<Scratch> scratch_;
};

// Decodes tokens that come one by one; the returned texts together are that of decode(). Memory is bounded by
// the longest run of tokens that are bytes. The tokenizer outlives it.
class Tokenizer::Decoder {
 public:
  // `begins_text`: the first token is the first of its text.
  explicit Decoder(const Tokenizer& tokenizer, bool begins_text = true);

  // Returns the text that is certain after one more token. It is empty while bytes may belong to an
  // incomplete character, and within a run of SentencePiece's tokens of bytes. Such a run is U+FFFD for each
  // token if it is no UTF-8 as a whole.
  std::string add(int32_t token);
  // Returns the rest, behind the last token.
  std::string finish();

 private:
  void end_run();
  std::string take(size_t bytes);

  const Tokenizer& tokenizer_;
  bool begins_text_;
  std::string run_;      // bytes of a run of SentencePiece's byte tokens
  std::string pending_;  // bytes that were not returned
};

}  // namespace terrace

// A tokenizer.json. What is accepted also encodes: every token of any text is one of the vocabulary.
#include <terrace/reference/data/tokenizer.h>

#include <array>
#include <optional>
#include <vector>

#include "fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace terrace;
  std::optional<Tokenizer> tokenizer;
  const bool accepted = fuzz::accepts({ErrorKind::config, ErrorKind::corrupt}, [&] {
    tokenizer.emplace(Tokenizer::parse(fuzz::as_text(data, size), "tokenizer.json"));
  });
  if (!accepted) return 0;
  fuzz::require(!tokenizer->description().empty(), "a tokenizer describes itself");
  Tokenizer::Encoder encoder(*tokenizer);
  constexpr std::array<std::string_view, 5> kTexts = {"", "The river's water, 1234 of it.\n\n  Ends here ",
                                                      "\xe2\x82\xac e\xcc\x81 \xed\x95\x9c\xea\xb5\xad\t",
                                                      "<|endoftext|><s>don't",
                                                      "broken \xff\xc3 text\xf0\x9f"};
  for (const std::string_view text : kTexts) {
    std::vector<int32_t> tokens;
    fuzz::accepts({ErrorKind::config, ErrorKind::corrupt}, [&] { encoder.encode(text, tokens); });
    for (const int32_t token : tokens) {
      fuzz::require(token >= 0 && static_cast<uint32_t>(token) < tokenizer->vocabulary(),
                    "a token is one of the vocabulary");
      tokenizer->bytes_of(token);
    }
    tokenizer->decode(tokens);
  }
  for (const std::vector<int32_t>* fixed : {&tokenizer->prefix(), &tokenizer->suffix()}) {
    for (const int32_t token : *fixed)
      fuzz::require(static_cast<uint32_t>(token) < tokenizer->vocabulary(), "a fixed token is one as well");
  }
  return 0;
}

// encode_texts TOKENIZER: reads texts from stdin, each as its length in bytes on a line of its own and then
// the bytes; writes the tokens of each on a line, and with --decode the text of these tokens on the next, in
// hexadecimal digits. With --time: encodes stdin as one text and writes bytes per second. The other half of
// compare.py.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/reference/data/tokenizer.h>

namespace {

void encode_each(const terrace::Tokenizer& tokenizer, bool decodes) {
  terrace::Tokenizer::Encoder encoder(tokenizer);
  std::string line;
  std::vector<int32_t> tokens;
  while (std::getline(std::cin, line)) {
    std::string text(std::stoull(line), '\0');
    std::cin.read(text.data(), static_cast<std::streamsize>(text.size()));
    tokens.clear();
    encoder.encode(text, tokens);
    for (const int32_t token : tokens) std::printf("%d ", token);
    std::printf("\n");
    if (!decodes) continue;
    for (const char byte : tokenizer.decode(tokens)) std::printf("%02x", static_cast<uint8_t>(byte));
    std::printf("\n");
  }
}

void measure(const terrace::Tokenizer& tokenizer) {
  terrace::Tokenizer::Encoder encoder(tokenizer);
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  std::vector<int32_t> tokens;
  const terrace::SteadyClock clock;
  const uint64_t begin = clock.now_ns();
  encoder.encode(text, tokens);
  const double seconds = static_cast<double>(clock.now_ns() - begin) * 1e-9;
  std::printf("%zu bytes, %zu tokens, %.3f s, %.1f MB/s\n", text.size(), tokens.size(), seconds,
              static_cast<double>(text.size()) * 1e-6 / seconds);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: encode_texts TOKENIZER [--decode | --time]\n");
    return 2;
  }
  try {
    const terrace::Tokenizer tokenizer = terrace::Tokenizer::load(argv[1]);
    const std::string_view flag = argc > 2 ? argv[2] : "";
    flag == "--time" ? measure(tokenizer) : encode_each(tokenizer, flag == "--decode");
  } catch (const terrace::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

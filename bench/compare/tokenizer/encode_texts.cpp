// encode_texts TOKENIZER: reads texts from stdin, each as its length in bytes on a line of its own and then
// the bytes; writes the tokens of each on a line. With --time: encodes stdin as one text and writes bytes per
// second. The other half of compare.py.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/runtime/data/tokenizer.h>

namespace {

void encode_each(terrace::Tokenizer::Encoder& encoder) {
  std::string line;
  std::vector<int32_t> tokens;
  while (std::getline(std::cin, line)) {
    std::string text(std::stoull(line), '\0');
    std::cin.read(text.data(), static_cast<std::streamsize>(text.size()));
    tokens.clear();
    encoder.encode(text, tokens);
    for (const int32_t token : tokens) std::printf("%d ", token);
    std::printf("\n");
  }
}

void measure(terrace::Tokenizer::Encoder& encoder) {
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
    std::fprintf(stderr, "usage: encode_texts TOKENIZER [--time]\n");
    return 2;
  }
  try {
    const terrace::Tokenizer tokenizer = terrace::Tokenizer::load(argv[1]);
    terrace::Tokenizer::Encoder encoder(tokenizer);
    argc > 2 ? measure(encoder) : encode_each(encoder);
  } catch (const terrace::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>
#include <new>

#include <terrace/base/error.h>
#include <terrace/base/text/utf8.h>
#include <terrace/reference/data/internal/split_pattern.h>

namespace terrace::data {
namespace {

// Far more than any pattern in use takes on text that can be; a pattern that needs more is stopped.
constexpr uint32_t kMatchLimit = 100'000'000;
constexpr size_t kJitStackBytes = size_t{1} << 20;

template <typename T>
struct Pcre2Free {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};
template <typename T>
using Owned = std::unique_ptr<T, Pcre2Free<T>>;

template <typename T>
Owned<T> owned(T* pointer) {
  if (pointer == nullptr) throw std::bad_alloc();
  return Owned<T>(pointer);
}

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct SplitPattern::Code {
  std::string name;
  Owned<pcre2_code> code;
};

struct SplitPattern::Scratch::State {
  Owned<pcre2_match_data> data = owned(pcre2_match_data_create(1, nullptr));
  Owned<pcre2_match_context> context = owned(pcre2_match_context_create(nullptr));
  Owned<pcre2_jit_stack> stack;  // null where there is no JIT
};

SplitPattern::Scratch::Scratch() : state_(std::make_unique<State>()) {
  pcre2_set_match_limit(state_->context.get(), kMatchLimit);
  state_->stack.reset(pcre2_jit_stack_create(kJitStackBytes / 32, kJitStackBytes, nullptr));
  if (state_->stack) pcre2_jit_stack_assign(state_->context.get(), nullptr, state_->stack.get());
}
SplitPattern::Scratch::Scratch(Scratch&&) noexcept = default;
SplitPattern::Scratch::~Scratch() = default;

SplitPattern::SplitPattern(const std::string& pattern, std::string_view name)
    : code_(std::make_unique<Code>()) {
  code_->name = name;
  const Owned<pcre2_compile_context> context = owned(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                  PCRE2_UTF | PCRE2_UCP, &error, &offset, context.get()));
  if (!code_->code) {
    throw Error(ErrorKind::config,
                {"cannot use the pattern of", code_->name,
                 fmt::format("at {} of \"{}\": {}", offset, pattern, message_of(error)),
                 "give a tokenizer whose patterns are those of GPT-2, Llama 3, Qwen 2 or their like"});
  }
  // Without JIT the same matches are found, slower.
  pcre2_jit_compile(code_->code.get(), PCRE2_JIT_COMPLETE);
}
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern::~SplitPattern() = default;

std::optional<SplitPattern::Match> SplitPattern::find(std::string_view text, size_t offset,
                                                      Scratch& scratch) const {
  const int result =
      pcre2_match(code_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), offset,
                  PCRE2_NO_UTF_CHECK, scratch.state_->data.get(), scratch.state_->context.get());
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0) {
    throw Error(ErrorKind::config, {"cannot match the pattern of", code_->name,
                                    fmt::format("after byte {} of a text: {}", offset, message_of(result)),
                                    "give a tokenizer with a simpler pattern"});
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(scratch.state_->data.get());
  return Match{ends[0], ends[1]};
}

}  // namespace terrace::data

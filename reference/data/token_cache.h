// Text that is tokenized once: the tokens go to a file of a cache folder, which later runs over the same text
// with the same tokenizer read. Nothing is ever written beside the text. Files of the cache may be deleted at
// any time between runs.
#pragma once

#include <filesystem>
#include <memory>

#include <terrace/base/log.h>
#include <terrace/reference/data/text_files.h>
#include <terrace/reference/data/token_source.h>
#include <terrace/reference/data/tokenizer.h>

namespace terrace {

// Returns $XDG_CACHE_HOME/terrace, else $HOME/.cache/terrace. Throws Error(config) when neither is set.
std::filesystem::path default_cache_folder();

// Returns the tokens of all texts (a file is one, and so is a line of JSON). Each text has the tokenizer's
// prefix and suffix, and its end-of-text token behind it. Without a tokenizer a token is a byte, and a text
// of JSON lines ends with a newline. Unless the cache has the tokens, it tokenizes on all cores in memory
// that does not grow with the text; `log` gets progress and the bytes that are no UTF-8. Throws Error: io or
// capacity for the cache, io for the text.
std::unique_ptr<TokenSource> tokenize_cached(const TextFiles& files, const Tokenizer* tokenizer,
                                             const std::filesystem::path& cache_folder, Log& log);

}  // namespace terrace

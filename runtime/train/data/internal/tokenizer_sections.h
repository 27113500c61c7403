// The sections of a tokenizer.json around the vocabulary: small, nested, and with many keys of which few are
// understood here. Each function throws Error(config) naming the key that asks for something else.
#pragma once

#include <string>

#include <terrace/runtime/config/json/json_document.h>
#include <terrace/runtime/train/data/internal/tokenizer_file.h>

namespace terrace::data {

// `origin` stands for the file and what encloses the key.
[[noreturn]] void refuse_tokenizer(const std::string& origin, const std::string& key,
                                   const std::string& reason);

void read_added_tokens(const JsonNode& section, TokenizerFile& file);
void read_normalizer(const JsonNode& section, TokenizerFile& file);
void read_pre_tokenizer(const JsonNode& section, TokenizerFile& file);
void read_post_processor(const JsonNode& section, TokenizerFile& file);
void read_decoder(const JsonNode& section, TokenizerFile& file);

}  // namespace terrace::data

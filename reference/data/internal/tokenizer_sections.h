// The sections of a tokenizer.json around the vocabulary. They are small and nested; few of their many keys
// are understood here. Each function throws Error(config) naming a key that asks for something else.
#pragma once

#include <string>

#include <terrace/reference/data/internal/tokenizer_file.h>
#include <terrace/runtime/config/json/json_document.h>

namespace terrace::data {

// `origin` stands for the file and the sections around the key.
[[noreturn]] void refuse_tokenizer(const std::string& origin, const std::string& key,
                                   const std::string& reason);

void read_added_tokens(const JsonNode& section, TokenizerFile& file);
void read_normalizer(const JsonNode& section, TokenizerFile& file);
void read_pre_tokenizer(const JsonNode& section, TokenizerFile& file);
void read_post_processor(const JsonNode& section, TokenizerFile& file);
void read_decoder(const JsonNode& section, TokenizerFile& file);

}  // namespace terrace::data

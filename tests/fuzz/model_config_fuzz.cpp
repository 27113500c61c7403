// A config.json of a model. What is accepted can be written, and what is written is the same model again.
#include <terrace/reference/model/transformer/model_config.h>

#include "fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace terrace;
  ModelConfig config;
  std::vector<std::string> warnings;
  const bool accepted = fuzz::accepts({ErrorKind::config}, [&] {
    config = parse_model_config(fuzz::as_text(data, size), "config.json", &warnings);
  });
  if (!accepted) return 0;
  const std::string written = model_config_json(config, DataType::bf16);
  const ModelConfig again = parse_model_config(written, "written");
  fuzz::require(model_config_json(again, DataType::bf16) == written, "a model is written as it is read");
  return 0;
}

// The configuration file: DeepSpeed JSON with comments. What is accepted can also be shown.
#include <terrace/runtime/config/json/json_document.h>
#include <terrace/runtime/config/train_config.h>

#include "fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace terrace;
  TrainConfig config;
  const bool accepted = fuzz::accepts(
      {ErrorKind::config}, [&] { config = parse_train_config(fuzz::as_text(data, size), "fuzz.json"); });
  if (!accepted) return 0;
  fuzz::require(config.batch.train_batch_size() > 0, "a batch has sequences");
  fuzz::require(!config_table(config).empty(), "every configuration has values");
  parse_json(config_json(config), "--print-config --json");
  return 0;
}

#include <terrace/runtime/models/model_config.h>

#include <string>

#include <terrace/base/error.h>

namespace terrace {

std::string_view name_of(ModelFamily family) {
  return family == ModelFamily::gpt2 ? "gpt2" : family == ModelFamily::llama ? "llama" : "qwen2";
}

ModelConfig model_preset(std::string_view name) {
  ModelConfig config;
  if (name == "gpt2") return config;
  if (name == "gpt2-medium") {
    config.layers = 24, config.heads = 16, config.width = 1024;
    return config;
  }
  if (name == "gpt2-large") {
    config.layers = 36, config.heads = 20, config.width = 1280;
    return config;
  }
  if (name == "gpt2-xl") {
    config.layers = 48, config.heads = 25, config.width = 1600;
    return config;
  }
  throw Error(ErrorKind::config, {"cannot build the model", std::string(name), "there is no such size",
                                  "the sizes are gpt2, gpt2-medium, gpt2-large and gpt2-xl"});
}

}  // namespace terrace

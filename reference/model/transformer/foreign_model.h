// ForeignModelError: an Error(config) of a sound config.json whose model is not computed here. PyTorch may
// compute it.
#pragma once

#include <string>
#include <utility>

#include <terrace/base/error.h>

namespace terrace {

class ForeignModelError final : public Error {
 public:
  ForeignModelError(ErrorParts parts, std::string model_class)
      : Error(ErrorKind::config, std::move(parts)), model_class_(std::move(model_class)) {}
  // The class of transformers that the file names: "GemmaForCausalLM"; empty if it names none.
  const std::string& model_class() const { return model_class_; }

 private:
  std::string model_class_;
};

}  // namespace terrace

// The text by which checkpoints name a model, so that its tensors and weights are known without the command
// line that trained it: {"model_config": <config.json>, ...}, one line of JSON.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <terrace/reference/model/transformer/model.h>

namespace terrace {

// Returns all that Model::tensors() and Model::weights() depend on, except the data type of the parameters.
std::string architecture_text(const Model& model);

// Makes a model with the same tensors and weights. `name` is the checkpoint's, for messages. Throws
// Error(config) when the text is empty, when a part of it is not known here, or when it does not make a
// model.
std::unique_ptr<Model> make_model_of(std::string_view architecture, DataType type, std::string_view name);

}  // namespace terrace

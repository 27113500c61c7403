// Loads the weights of a Hugging Face folder into a model. They are matched by name, checked as a whole, and
// then read as the memory manager asks for them, so that no tensor is ever whole in memory.
#pragma once

#include <span>
#include <vector>

#include <terrace/memory/space/tensor.h>
#include <terrace/offload/offloader.h>
#include <terrace/reference/model/transformer/model.h>
#include <terrace/reference/model/weights/weight_folder.h>

namespace terrace {

// Finds the place of each tensor of a model in a folder. Reading is thread-safe and allocates nothing.
class WeightSource {
 public:
  // `folder` outlives the source. Throws Error(config) with every weight that is missing, that is not the
  // model's, or whose shape or element type does not fit: up to ten of each. The names of the files may lack
  // the prefix of the model ("wte.weight" for "transformer.wte.weight"). Buffers of attention that are no
  // weights are skipped. A head that is tied to the token table may be there if it equals it.
  WeightSource(const WeightFolder& folder, std::span<const WeightSpec> weights,
               std::span<const TensorSpec> tensors);

  // False for a tensor that is part of no weight.
  bool has(TensorId tensor) const { return static_cast<bool>(places_[index_of(tensor)].weight); }
  // Of a coded weight these are words. Throws Error(config) on a number that is not finite, or not in the
  // type of the tensor.
  void read(TensorId tensor, uint64_t first_element, std::span<float> values) const;

 private:
  struct PartPlace {
    WeightFolder::Place weight;
    uint64_t first_element = 0;      // in the weight
    DataType type = DataType::fp32;  // of its numbers
    CodedWeight coded = {};
  };
  void read_numbers(const PartPlace& part, uint64_t first_element, std::span<float> values) const;
  std::vector<PartPlace> places_;  // by TensorId
};

// Sets every tensor of `offloader`, which holds those of `model`, frozen ones included. Values come from the
// weights; a tensor that is part of no weight gets the model's first values. Moments start at 0.
void load_weights(const WeightFolder& folder, const Model& model, Offloader& offloader, Log& log);

}  // namespace terrace

// The tensors of a checkpoint as its manifest lists them: what decides where each of them lies in the data
// files, and how tensors of another program are found among them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/runtime/checkpoint/internal/json_members.h>

namespace terrace::checkpoint {

// Of every tensor name, shape, type, whether it is trained, its home, and whether Muon trains it.
std::vector<TensorSpec> listed_tensors(const FlatSpace& space);
uint64_t hash_of(std::span<const TensorSpec> tensors);

void write_tensors(JsonWriter& json, std::span<const TensorSpec> tensors);
std::vector<TensorSpec> read_tensors(Members& members);
// Empty where there are none.
std::vector<uint64_t> read_tensor_steps(Members& members);

// Throws Error(corrupt), naming `path`, where they make no flat space.
SpaceLayout placed(std::span<const TensorSpec> tensors, const std::filesystem::path& path);
// The bytes of states.bin and of frozen.bin.
std::pair<uint64_t, uint64_t> data_bytes(const SpaceLayout& tensors, const RecordLayout& layout);

// Where the elements of one list's tensors lie in another list. A tensor NAME may be cut along its first
// dimension into tensors "NAME[0]", "NAME[1]" and so on, by each program in its own way; lists may have their
// tensors in any order. A tensor whose name begins with a dot keeps a place in its list and means nothing.
class TensorMap {
 public:
  TensorMap(std::span<const TensorSpec> from, std::span<const TensorSpec> to);

  // Returns why the lists are not of the same tensors, with the same types and training; empty where they
  // are. Nothing else may be asked where they are not.
  const std::string& difference() const { return difference_; }
  // The first tensor by name that Muon trains as a matrix in one list and not in the other; empty where there
  // is none. Values are found all the same, but moments mean something else.
  const std::string& updated_otherwise() const { return updated_otherwise_; }
  // Whether a tensor of `to` means nothing.
  bool is_padding(TensorId to) const { return places_[index_of(to)].first == nullptr; }
  // Some elements of a tensor of `to` that is no padding: calls `piece` with where they lie in tensors of
  // `from`, in order. `at` counts from the first one.
  void for_each_piece(
      TensorId to, uint64_t first_element, uint64_t count,
      FunctionRef<void(TensorId from, uint64_t first, uint64_t at, uint64_t count)> piece) const;

 private:
  struct Part {
    TensorId tensor;
    uint64_t first_element;  // in the whole
    uint64_t elements;
  };
  struct Whole {
    std::vector<uint64_t> shape;
    DataType type = DataType::fp32;
    bool trainable = true;
    bool by_matrix = false;
    std::vector<Part> parts;
    uint64_t elements = 0;
  };
  using Wholes = std::map<std::string, Whole>;
  static Wholes wholes_of(std::span<const TensorSpec> tensors);
  static std::string difference_of(const Wholes& from, const Wholes& to);

  Wholes from_;
  std::vector<std::pair<const Whole*, uint64_t>>
      places_;  // by tensor of `to`: its whole there, its first element
  std::string difference_;
  std::string updated_otherwise_;
};

}  // namespace terrace::checkpoint

#include <terrace/offload/parameters/caller_tensors.h>

#include <string>

#include <terrace/base/error.h>
#include <terrace/base/option.h>

namespace terrace {
namespace {

void require_address(const TensorSpec& spec, const std::byte* address) {
  if (address != nullptr) return;
  throw Error(ErrorKind::misuse, {"cannot keep the parameters of", spec.name,
                                  "they are the program's, and their address is null",
                                  "set " + Option::tensor_memory + " to where the tensor lies"});
}

}  // namespace

CallerTensors::CallerTensors(const FlatSpace& space) : space_(space), memory_(space) {
  for (uint32_t t = 0; t < space.tensor_count(); ++t) {
    const TensorSpec& spec = space.tensor(TensorId{t});
    if (spec.home != TensorHome::caller) continue;
    require_address(spec, spec.memory);
    memory_.place(TensorId{t}, spec.memory);
  }
}

void CallerTensors::move(TensorId tensor, std::byte* address) {
  const TensorSpec& spec = space_.tensor(tensor);
  if (spec.home != TensorHome::caller)
    throw Error(ErrorKind::misuse, {"cannot move the parameters of", spec.name, "they are not the program's",
                                    "give " + Option::tensor_home + " and " + Option::tensor_memory});
  require_address(spec, address);
  memory_.place(tensor, address);
}

}  // namespace terrace

#include <terrace/offload/state/gradient_values.h>

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/base/units.h>
#include <terrace/optimizer_cpu/gradient.h>

namespace terrace {

void GradientValues::refuse(std::string_view action, TensorId tensor, std::string reason, Wording advice) {
  throw Error(ErrorKind::config,
              {std::string(action), run_.space.tensor(tensor).name, std::move(reason), std::move(advice)});
}

void GradientValues::for_each_own(std::string_view action, TensorId tensor, uint64_t first, uint64_t count,
                                  FunctionRef<void(const TensorRun&, std::byte*)> body) {
  if (run_.options.dry) return;
  if (run_.options.hooks.device_arithmetic != nullptr && run_.options.states == Placement::none)
    refuse(action, tensor, "it is in memory of the device that the host cannot reach",
           "place " + Option::states + " on cpu or nvme");
  for_each_run(run_.shards, run_.shards.rank(), tensor, first, count, [&](const TensorRun& run) {
    if (!gradients_.is_complete(run.chunk)) return body(run, nullptr);
    if (!gradients_.is_held(run.chunk))
      refuse(action, tensor, "it is on nvme, since host memory has no room for it",
             "set " + Option::holds_gradients);
    gradients_.open(run.chunk);
    body(run, gradients_.gradient(run.chunk));
    gradients_.close(run.chunk);
  });
}

void GradientValues::read(TensorId tensor, uint64_t first, std::span<float> values) {
  for_each_own("cannot read the gradient of", tensor, first, values.size(),
               [&](const TensorRun& run, std::byte* gradient) {
                 const std::span<float> mine = values.subspan(run.at, run.count);
                 std::ranges::fill(mine, 0.0f);
                 if (gradient == nullptr) return;
                 const DataType type = gradients_.type(run.chunk);
                 convert_to_float(run_.instruction_set, gradient + run.first_element * bytes_of(type), type,
                                  mine.data(), mine.size());
               });
  share_elements(run_, tensor, first, std::as_writable_bytes(values), sizeof(float));
}

void GradientValues::write(TensorId tensor, uint64_t first, std::span<const float> values) {
  constexpr std::string_view kAction = "cannot write the gradient of";
  for_each_own(kAction, tensor, first, values.size(), [&](const TensorRun& run, std::byte* gradient) {
    if (gradient == nullptr)
      throw Error(ErrorKind::misuse, {std::string(kAction), run_.space.tensor(tensor).name,
                                      "it has none in this step", "go backward through it first"});
    const DataType type = gradients_.type(run.chunk);
    convert_from_float(run_.instruction_set, values.data() + run.at,
                       gradient + run.first_element * bytes_of(type), type, run.count);
    gradients_.take_sums(run.chunk, run.first_element, run.count, gradient, run_.instruction_set);
  });
}

}  // namespace terrace

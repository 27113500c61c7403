#include <terrace/offload/update/update_agreement.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <bit>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <terrace/base/checksum.h>

namespace terrace {
namespace {

constexpr std::array<std::string_view, kOptimizerSettings> kNames{
    "kind",         "lr",         "beta1",           "beta2",         "eps",
    "weight_decay", "adamw_mode", "bias_correction", "momentum",      "dampening",
    "nesterov",     "iterations", "coefficient a",   "coefficient b", "coefficient c",
    "matches_adamw"};
constexpr size_t kLr = 1;

std::array<double, kOptimizerSettings> numbers_of(const OptimizerSettings& group) {
  return {static_cast<double>(group.kind),
          group.lr,
          group.beta1,
          group.beta2,
          group.eps,
          group.weight_decay,
          static_cast<double>(group.adamw_mode),
          static_cast<double>(group.bias_correction),
          group.momentum,
          group.dampening,
          static_cast<double>(group.nesterov),
          static_cast<double>(group.muon.iterations),
          group.muon.a,
          group.muon.b,
          group.muon.c,
          static_cast<double>(group.muon.matches_adamw)};
}

uint64_t sum_of(uint64_t before, double number) {
  const std::array<uint64_t, 2> chain{before, std::bit_cast<uint64_t>(number)};
  return checksum_of(std::as_bytes(std::span(chain)));
}

std::vector<std::string> differences(const UpdateBallot& first, const UpdateBallot& other) {
  std::vector<std::string> found;
  const auto compare = [&found](std::string_view name, auto mine, auto theirs) {
    if (mine != theirs) found.push_back(fmt::format("{} {} instead of {}", name, theirs, mine));
  };
  compare("lr", first.lr, other.lr);
  compare("clip_norm", first.clip_norm, other.clip_norm);
  compare("loss_scale", first.loss_scale, other.loss_scale);
  compare("step", first.step, other.step);
  for (size_t member = 0; member < kOptimizerSettings; ++member) {
    const bool is_said = member == kLr && first.lr != other.lr;
    if (first.settings[member] != other.settings[member] && !is_said)
      found.push_back(fmt::format("another {} of a parameter group", kNames[member]));
  }
  return found;
}

}  // namespace

UpdateBallot ballot_of(const GradientNorm& norm, const UpdateSettings& settings, uint64_t written) {
  UpdateBallot mine{norm, 0, settings.clip_norm, settings.loss_scale, settings.step, {}, written};
  if (!settings.groups.empty()) mine.lr = settings.groups.front().lr;
  for (const OptimizerSettings& group : settings.groups) {
    const std::array<double, kOptimizerSettings> numbers = numbers_of(group);
    for (size_t member = 0; member < kOptimizerSettings; ++member)
      mine.settings[member] = sum_of(mine.settings[member], numbers[member]);
  }
  return mine;
}

std::optional<Error> difference_of(std::span<const UpdateBallot> all) {
  const UpdateBallot& first = all.front();
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const UpdateBallot& other = all[rank];
    if (const std::vector<std::string> found = differences(first, other); !found.empty())
      return Error(ErrorKind::config,
                   {"cannot update", "the optimizer's settings",
                    fmt::format("rank {} has other ones than rank 0: {}", rank, fmt::join(found, ", ")),
                    "let all ranks set the same learning rates and clip alike; a schedule that follows a "
                    "loss needs the same loss on all of them"});
    if (first.written != other.written)
      return Error(ErrorKind::config,
                   {"cannot update", "values of the model",
                    fmt::format("since the update before, rank {} has written others than rank 0", rank),
                    "go on from the last commit or a checkpoint, and let all ranks write the same values"});
    if (first.part_differs != other.part_differs)
      return Error(
          ErrorKind::config,
          {"cannot update", "a part of the model",
           fmt::format("rank {} trains another part than rank 0, and the ranks of one of them differ", rank),
           "do what the error of that part says"});
  }
  return std::nullopt;
}

}  // namespace terrace

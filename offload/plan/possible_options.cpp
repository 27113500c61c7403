#include <terrace/offload/plan/possible_options.h>

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/offload/plan/rank_bytes.h>

namespace terrace {
namespace {

void require_accumulation_type(const SpaceLayout& space, DataType type) {
  for (const Section& section : space.sections()) {
    if (!section.trainable || type == DataType::fp32 || type == section.type) continue;
    throw Error(ErrorKind::config,
                {fmt::format("cannot accumulate gradients in {}", name_of(type)),
                 fmt::format("of {} parameters", name_of(section.type)),
                 "sums are kept in fp32 or in the precision of the gradients",
                 section.type == DataType::fp32
                     ? "accumulate them in fp32"
                     : fmt::format("accumulate them in fp32 or {}", name_of(section.type))});
  }
}

void require_comparable(const OffloadOptions& options) {
  if (!options.reads_past_host || !options.verify_checksums) return;
  throw Error(ErrorKind::config,
              {"cannot compare with checksums", "parameters that the device reads from nvme by itself",
               "checksums are the host's to compute, and these bytes do not pass through it",
               "set " + Option::reads_past_host + " or " + Option::verify_checksums + " to false"});
}

void require_caller_tensors(const SpaceLayout& space, const OffloadOptions& options) {
  const auto found = std::ranges::find(space.tensors(), TensorHome::caller, &TensorSpec::home);
  if (found == space.tensors().end()) return;
  const auto refuse = [&](std::string reason, Wording advice) {
    throw Error(ErrorKind::config, {"cannot train in memory of the program the tensor", found->name,
                                    std::move(reason), std::move(advice)});
  };
  for (const TensorSpec& tensor : space.tensors()) {
    if (tensor.home == TensorHome::caller && !tensor.trainable)
      refuse("a frozen one is never changed", "leave frozen tensors of the program out");
  }
  if (options.gradients == GradientOrigin::leases)
    refuse("no lease writes its gradient", "set " + Option::gradients + " to handed_over or borrowed");
  if (options.states == Placement::none)
    refuse("the optimizer states are on the device", "place optimizer states on cpu or nvme");
  if (options.record_layout.master == MasterForm::remainder)
    refuse("compact state keeps a part of each master in its parameter", "keep whole masters");
}

void require_borrowed(const SpaceLayout& space, const OffloadOptions& options) {
  if (options.gradients != GradientOrigin::borrowed) return;
  const auto refuse = [](std::string what, std::string reason, Wording advice) {
    throw Error(ErrorKind::config,
                {"cannot borrow gradients", std::move(what), std::move(reason), std::move(advice)});
  };
  if (accumulates(options))
    refuse(options.gradient_bits > 0 ? "that are rounded"
                                     : fmt::format("of {} micro-batches", options.micro_batches),
           "their sums need memory",
           "add them up in the program, or set " + Option::gradients + " to handed_over");
  for (const TensorSpec& tensor : space.tensors()) {
    if (tensor.trainable && tensor.home == TensorHome::managed)
      refuse("of " + tensor.name, "its parameters are not the program's",
             "give " + Option::tensor_home + ", or set " + Option::gradients + " to handed_over");
  }
}

void require_handed_over_on_device(const OffloadOptions& options) {
  if (options.gradients != GradientOrigin::handed_over_on_device) return;
  if (exchange_on_devices(options) && !pulls(options)) return;
  throw Error(
      ErrorKind::config,
      {"cannot take gradients", "that are handed over on the device",
       options.ranks == 1 ? "one rank takes them from the host" : "the ranks exchange them on the host",
       "copy them to the host and set " + Option::gradients +
           " to handed_over, or let several ranks exchange by NCCL (" + Option::transport + ")"});
}

void require_masters_in_parameters(const SpaceLayout& space, const OffloadOptions& options) {
  const auto refuse = [](std::string what, std::string reason, Wording advice) {
    throw Error(ErrorKind::config, {"cannot keep masters in the parameters", std::move(what),
                                    std::move(reason), std::move(advice)});
  };
  for (const TensorSpec& tensor : space.tensors()) {
    if (!tensor.trainable) continue;
    if (tensor.home == TensorHome::managed)
      refuse("of " + tensor.name, "they are not the program's", "keep whole masters");
    if (tensor.type != DataType::fp32)
      refuse("of " + tensor.name, fmt::format("they are {}", name_of(tensor.type)), "keep whole masters");
  }
  if (options.record_layout.moment_count == 0)
    refuse("of an optimizer without moments", "nothing would be left of the records", "keep whole masters");
}

void require_layout(const SpaceLayout& space, const OffloadOptions& options) {
  if (options.record_layout.master == MasterForm::whole) return;
  if (options.record_layout.master == MasterForm::parameter)
    return require_masters_in_parameters(space, options);
  const auto refuse = [](std::string what, std::string reason, Wording advice) {
    throw Error(ErrorKind::config, {"cannot keep the optimizer states in compact form", std::move(what),
                                    std::move(reason), std::move(advice)});
  };
  for (const Section& section : space.sections()) {
    if (!section.trainable || section.type == DataType::bf16) continue;
    refuse(fmt::format("of {} parameters", name_of(section.type)),
           "a master weight is a bf16 parameter and what is below it", "train in bf16, or without it");
  }
  if (options.states == Placement::none && options.parameters != Placement::none) {
    refuse(fmt::format("of parameters on {}", name_of(options.parameters)),
           "the states are on the device, and half of each master is not",
           "place parameters on the device too, or optimizer states on cpu or nvme");
  }
}

void require_possible_matrices(const SpaceLayout& space, const OffloadOptions& options) {
  const auto found = std::ranges::find(space.tensors(), true, &TensorSpec::by_matrix);
  if (found == space.tensors().end()) return;
  const auto refuse = [&](std::string reason, Wording advice) {
    throw Error(ErrorKind::config,
                {"cannot train by Muon the matrix", found->name, std::move(reason), std::move(advice)});
  };
  if (options.record_layout.moment_count == 0)
    refuse("records keep no moment", "give " + Option::masters + " one moment at least");
  if (options.processor_share < 1 || options.update_rates)
    refuse("the processor multiplies matrices, and the device would update a part of them",
           "set " + Option::processor_share + " to 1");
}

void require_possible_rounding(const SpaceLayout& space, const OffloadOptions& options) {
  const auto refuse = [](uint32_t bits, std::string_view what, std::string reason, Wording advice) {
    throw Error(ErrorKind::config, {fmt::format("cannot round to {} bits", bits), std::string(what),
                                    std::move(reason), std::move(advice)});
  };
  if (options.gradient_bits != 0 && options.gradient_bits != 8 && options.gradient_bits != 4)
    refuse(options.gradient_bits, "the gradients", "there are codes of 8 and of 4 bits",
           "set " + Option::gradient_bits + " to 8, 4 or 0");
  if (options.parameter_bits == 0) return;
  if (options.parameter_bits != 8)
    refuse(options.parameter_bits, "the parameters", "there are codes of 8 bits",
           "set " + Option::parameter_bits + " to 8 or 0");
  if (options.record_layout.master != MasterForm::whole)
    refuse(options.parameter_bits, "the parameters",
           "they are a part of their masters, which have to be exact",
           "keep whole masters (without compact state), or leave parameters exact");
  if (std::ranges::none_of(space.sections(), [&](const Section& section) {
        return bits_of(section, options.parameter_bits) > 0;
      }))
    refuse(options.parameter_bits, "the parameters", "no trained ones have 16 bits",
           "train in bf16 or fp16, or leave parameters exact");
}

void require_possible_pulls(const OffloadOptions& options) {
  if (!pulls(options)) return;
  const auto refuse = [](std::string what, std::string reason, Wording advice) {
    throw Error(ErrorKind::config, {"cannot let ranks pull", std::move(what), std::move(reason),
                                    advice + ", or set " + Option::rank_exchange + " to symmetric"});
  };
  if (options.layer_major && rounds_of(options).count() > 1)
    refuse("with micro-batches that are open together",
           "a rank could wait with its second one for another rank's first, which waits for this rank",
           "set " + Option::layer_major + " to false");
  if (options.states == Placement::none && options.exchanges_by_copies)
    refuse("with optimizer states on the device",
           "gradients are added beside the step, where the host adds them",
           "place optimizer states on cpu or nvme");
  if (options.states == Placement::none && !has_all_on_device(options))
    refuse("with optimizer states on the device and parameters that are divided",
           "an update there does not wait until the parameters are home, where other ranks read them",
           "place optimizer states on cpu or nvme");
  if (has_shares_on_device(options) && options.exchanges_by_copies)
    refuse("shares of parameters on the device", "their owner answers from memory that the host reaches",
           "place parameters on cpu or nvme");
  if (gather_on_devices(options))
    refuse("parameters that go from device to device", "all ranks have to ask for them in one order",
           "pass them through host memory");
  if (options.compare_ranks_every_steps > 0)
    refuse("and compare what has come", "ranks use other chunks in other orders",
           "leave the ranks uncompared");
}

// What a rank changes in memory of the program no other rank would see.
void require_possible_ranks(const SpaceLayout& space, const OffloadOptions& options) {
  if (options.ranks == 1) return;
  const auto refuse = [&](std::string what, std::string reason, Wording advice) {
    throw Error(ErrorKind::config, {fmt::format("cannot train with {} ranks", options.ranks), std::move(what),
                                    std::move(reason), std::move(advice)});
  };
  for (const TensorSpec& tensor : space.tensors()) {
    if (tensor.home == TensorHome::caller)
      refuse(tensor.name, "its parameters lie in memory of the program, which other ranks cannot reach",
             "leave " + Option::tensor_home + " managed, or train with one rank");
  }
  if (options.hosts == 0 || options.ranks % options.hosts != 0)
    refuse(fmt::format("on {} hosts", options.hosts), "each of them has to have as many ranks as the others",
           "give " + Option::hosts + " a number that divides the ranks, or 1");
  if (options.sub_group_hosts == 0 || options.hosts % options.sub_group_hosts != 0)
    refuse(fmt::format("in sub-groups of {} hosts", options.sub_group_hosts),
           fmt::format("they do not divide {} hosts", options.hosts),
           "give " + Option::sub_group_hosts + " a number that divides the hosts, or 1");
  if (gather_on_devices(options) && options.hosts > 1)
    refuse("whose parameters go from device to device",
           fmt::format("there are {} hosts, and what crosses between them passes through host memory",
                       options.hosts),
           "set " + Option::gathers_by_copies);
  if (options.hooks.device_arithmetic != nullptr && !options.exchanges_by_copies)
    refuse("in device memory", "the host cannot reach it, and ranks exchange what the host reaches",
           "set " + Option::exchanges_by_copies);
}

}  // namespace

void require_possible(const SpaceLayout& space, const OffloadOptions& options) {
  require_accumulation_type(space, options.accumulation_type);
  require_layout(space, options);
  require_possible_matrices(space, options);
  require_comparable(options);
  require_caller_tensors(space, options);
  require_borrowed(space, options);
  require_handed_over_on_device(options);
  require_possible_ranks(space, options);
  require_possible_pulls(options);
  require_possible_rounding(space, options);
}

}  // namespace terrace

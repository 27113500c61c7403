#include "inspect/sim_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/runtime/config/tuning/tuning.h>

#include "command_line.h"

namespace terrace {
namespace {

constexpr uint64_t kDefaultPrefetchDepth = 16;
constexpr const char* kTierAdvice =
    "write NAME=SIZE for the first, NAME,up=RATE,down=RATE for the last and "
    "NAME=SIZE,up=RATE,down=RATE,latency=TIME for others";

double rate(const std::string& text, const std::string& flag) {
  const uint64_t bytes = parse_bytes(text, flag);
  if (bytes == 0) refuse(flag, "it is 0", "give for example 3GB");
  return static_cast<double>(bytes);
}

// Parses a time such as "10us"; an empty text is 0.
uint64_t latency_ns(const std::string& text, const std::string& flag) {
  if (text.empty()) return 0;
  constexpr std::array<std::pair<std::string_view, double>, 4> kUnits = {
      {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}}};
  double count = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), count);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  for (const auto& [name, ns] : kUnits) {
    if (status == std::errc() && unit == name && count >= 0 && count * ns <= 1e12)
      return static_cast<uint64_t>(count * ns);
  }
  refuse(flag + " " + text, "it is not a time up to 1000 s", "give for example 10us");
}

// TierSpec: one --tier: its memory, if that has a bound, and the link to the tier above.
struct TierSpec {
  SimTier tier;
  std::optional<SimLink> link;
};

TierSpec parse_tier(const std::string& spec) {
  const std::string flag = "--tier " + spec;
  TierSpec parsed;
  std::string up, down, latency;
  for (size_t begin = 0, part = 0; begin <= spec.size(); ++part) {
    const size_t end = std::min(spec.find(',', begin), spec.size());
    const std::string text = spec.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = text.find('=');
    const std::string key = text.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : text.substr(equals + 1);
    if (part == 0) {
      parsed.tier.name = key;
      if (equals != std::string::npos) parsed.tier.capacity_bytes = parse_bytes(value, flag);
    } else if (key == "up" || key == "down" || key == "latency") {
      std::string& part_of_link = key == "up" ? up : key == "down" ? down : latency;
      if (!part_of_link.empty()) refuse(flag, fmt::format("it has two of \"{}\"", key), kTierAdvice);
      part_of_link = value;
    } else {
      refuse(flag, fmt::format("there is no \"{}\" of a tier", key), kTierAdvice);
    }
  }
  if (parsed.tier.name.empty()) refuse(flag, "it has no name", kTierAdvice);
  if (up.empty() != down.empty()) refuse(flag, "one direction of its link has no rate", kTierAdvice);
  if (up.empty() && !latency.empty()) refuse(flag, "a latency belongs to a link with rates", kTierAdvice);
  if (!up.empty()) parsed.link = SimLink{rate(up, flag), rate(down, flag), latency_ns(latency, flag)};
  return parsed;
}

SimMachine machine_of_tiers(const SimMachineFlags& flags) {
  for (const std::string* other : {&flags.device_memory, &flags.host_memory, &flags.nvme_path}) {
    if (!other->empty())
      refuse("--tier", "--device-memory, --host-memory and --nvme-path say the same otherwise",
             "describe all tiers with --tier, or none");
  }
  SimMachine machine;
  for (const std::string& spec : flags.tiers) {
    const TierSpec tier = parse_tier(spec);
    if (tier.link.has_value() == machine.tiers.empty())
      refuse("--tier " + spec,
             machine.tiers.empty() ? "above the first there is nothing to link to"
                                   : "its link to the tier above is missing",
             kTierAdvice);
    if (std::ranges::find(machine.tiers, tier.tier.name, &SimTier::name) != machine.tiers.end())
      refuse("--tier " + spec, "there is a tier of that name already", kTierAdvice);
    if (tier.link) machine.links.push_back(*tier.link);
    machine.tiers.push_back(tier.tier);
  }
  for (const SimTier& tier : machine.tiers) {
    const bool is_last = &tier == &machine.tiers.back();
    if ((tier.capacity_bytes == kUnboundedBytes) != is_last)
      refuse("--tier " + tier.name, is_last ? "the last tier has room for everything" : "it has no size",
             kTierAdvice);
  }
  return machine;
}

SimLink nvme_link(const SimMachineFlags& flags) {
  SimLink link = {rate(flags.nvme_read, "--nvme-read"), rate(flags.nvme_write, "--nvme-write"),
                  latency_ns(flags.nvme_latency, "--nvme-latency")};
  if (flags.nvme_path.empty()) return link;
  require_exists("--nvme-path", flags.nvme_path);
  std::string why_not = "nothing was measured there";
  const std::optional<PathTuning> tuning =
      find_tuning(tuning_folder(), find_tuned_place(flags.nvme_path), why_not);
  if (!tuning) refuse("--nvme-path " + flags.nvme_path, why_not, "measure it with `terrace tune` first");
  link.up_bytes_per_second = tuning->read_bytes_per_second;
  link.down_bytes_per_second = tuning->write_bytes_per_second;
  return link;
}

SimMachine machine_of_three(const SimMachineFlags& flags) {
  if (flags.device_memory.empty())
    refuse("no --device-memory", "policies differ where it is less than everything", "give for example 8GiB");
  SimMachine machine;
  machine.tiers = {{"device", parse_bytes(flags.device_memory, "--device-memory")},
                   {"host", kUnboundedBytes}};
  machine.links = {{rate(flags.h2d, "--h2d"), rate(flags.d2h, "--d2h"),
                    latency_ns(flags.link_latency, "--device-latency")}};
  const SimLink nvme = nvme_link(flags);
  if (flags.host_memory.empty()) return machine;
  machine.tiers[1].capacity_bytes = parse_bytes(flags.host_memory, "--host-memory");
  machine.tiers.push_back({"nvme", kUnboundedBytes});
  machine.links.push_back(nvme);
  return machine;
}

}  // namespace

void SimMachineFlags::add_to(const FlagGroup& group) {
  const auto text = [&](const char* flag, std::string& value, const char* type, const char* otherwise,
                        const char* help) {
    value = otherwise;
    group.text(flag, type, value, help);
  };
  text("--device-memory", device_memory, "SIZE", "", "Memory of the device");
  text("--host-memory", host_memory, "SIZE", "", "Memory of the host; without it everything has room there");
  text("--h2d", h2d, "RATE", "12GB", "To the device in a second (default 12GB)");
  text("--d2h", d2h, "RATE", "12GB", "From the device in a second (default 12GB)");
  text("--device-latency", link_latency, "TIME", "", "Of each transfer to or from it (default 0us)");
  text("--nvme-read", nvme_read, "RATE", "3GB", "From nvme in a second (default 3GB)");
  text("--nvme-write", nvme_write, "RATE", "2GB", "To nvme in a second (default 2GB)");
  text("--nvme-latency", nvme_latency, "TIME", "", "Of each transfer to or from it (default 0us)");
  text("--nvme-path", nvme_path, "DIR", "", "Take the rates that `terrace tune` measured there instead");
  group.texts("--tier", "SPEC", tiers,
              "Instead of these: NAME=SIZE,up=RATE,down=RATE,latency=TIME, once for each tier from the top, "
              "with the link to the tier above; the first has no link, the last no size");
  group.count("--prefetch-depth", 0, prefetch_depth,
              "Uses that a transfer may be ahead of its own; 0: on demand only (default 16)");
}

SimMachine sim_machine(const SimMachineFlags& flags) {
  SimMachine machine = flags.tiers.empty() ? machine_of_three(flags) : machine_of_tiers(flags);
  // Half of the largest number is as far ahead as any use, and a sum of two such numbers does not overflow.
  machine.prefetch_depth =
      std::min<uint32_t>(flags.prefetch_depth.value_or(kDefaultPrefetchDepth), UINT32_MAX / 2);
  return machine;
}

}  // namespace terrace

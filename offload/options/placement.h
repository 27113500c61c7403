// Placement: where parameters, states or activations live between uses, in the words of configuration files.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace terrace {

enum class Placement : uint8_t {
  none,  // device memory
  cpu,   // the host arena
  nvme,  // a tier file, with the host arena as its cache
};

constexpr std::string_view name_of(Placement placement) {
  return placement == Placement::none ? "none" : placement == Placement::cpu ? "cpu" : "nvme";
}

constexpr std::optional<Placement> placement_from_name(std::string_view name) {
  if (name == "none") return Placement::none;
  if (name == "cpu") return Placement::cpu;
  if (name == "nvme") return Placement::nvme;
  return std::nullopt;
}

}  // namespace terrace

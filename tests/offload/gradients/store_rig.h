// A store of gradients over places that a test makes, for one rank.
#pragma once

#include <functional>

#include <terrace/offload/gradients/gradient_store.h>

#include "offload/landing/gradient_rig.h"

namespace terrace {

struct StoreRig : GradientRig {
  using GradientRig::GradientRig;
  using Places = std::vector<std::unique_ptr<GradientPlace>>;
  // `staging` as GradientStaging::Slots; `landing` are the landing slots of the store.
  std::unique_ptr<GradientStore> make_store(const std::function<Places(GradientArithmetic&)>& make_places,
                                            std::span<std::byte* const> staging = {},
                                            std::vector<std::byte*> landing = {}) {
    GradientStore::Parts parts;
    parts.arithmetic = arithmetic();
    parts.places = make_places(*parts.arithmetic);
    parts.staging = std::make_unique<GradientStaging>(space, device, *cache, GradientStaging::Slots{staging},
                                                      std::make_unique<OwnSum>(watch));
    parts.landing_slots = std::move(landing);
    return std::make_unique<GradientStore>(space, std::move(parts));
  }
};

}  // namespace terrace

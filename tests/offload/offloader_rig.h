// The toy model trained under one combination of options, in a folder that goes with the rig.
#pragma once

#include "offload/toy_rig.h"

namespace terrace {

using toy::Reference;

using Case = ToyCase<RigKind::placement>;

class Rig : public OwnFolder, public ToyRig {
 public:
  explicit Rig(const Case& c) : ToyRig(c, {folder.path()}) {}
};

void expect_same_as_reference(Rig& rig, const Reference& reference);
// The first steps of the rig, beside those of plain vectors.
void expect_to_train(Rig& rig, uint64_t steps);

}  // namespace terrace

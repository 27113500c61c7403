// The toy model trained under one combination of options, in a folder that goes with the rig.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "offload/toy_rig.h"

namespace terrace {

using toy::Reference;

using Case = ToyCase<RigKind::placement>;

class Rig : public OwnFolder, public ToyRig {
 public:
  explicit Rig(const Case& c) : ToyRig(c, {folder.path()}) {}
};

// The cases of a parameterised test, each with the name that the test says.
struct NamedCase {
  const char* name;
  Case c;
};

class NamedCases {
 public:
  // What all cases have unless they say otherwise.
  explicit NamedCases(Case base) : base_(std::move(base)) {}

  void add(const char* name, Placement parameters, Placement states) {
    add(name, parameters, states, [](Case&) {});
  }
  template <typename Change>
  void add(const char* name, Placement parameters, Placement states, Change change) {
    Case& c = list_.emplace_back(NamedCase{name, base_}).c;
    c.parameters = parameters;
    c.states = states;
    change(c);
  }
  std::vector<NamedCase> take() { return std::move(list_); }
  static std::string name_of(const ::testing::TestParamInfo<NamedCase>& of) { return of.param.name; }

 private:
  const Case base_;
  std::vector<NamedCase> list_;
};

void expect_same_as_reference(Rig& rig, const Reference& reference);
// The first steps of the rig, beside those of plain vectors.
void expect_to_train(Rig& rig, uint64_t steps);

}  // namespace terrace

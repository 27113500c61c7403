#include <gtest/gtest.h>

#include "capi/c11_training.h"
#include "support/scratch_folder.h"

namespace terrace::c11_test {
namespace {

TEST(C11, TrainsInAProgramOfCAlone) {
  const ScratchFolder folder;
  EXPECT_EQ(c11_train(folder.path().c_str()), 0);
}

}  // namespace
}  // namespace terrace::c11_test

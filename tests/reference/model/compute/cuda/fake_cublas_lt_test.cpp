// What LibraryProducts asks of the library, and what becomes of its failures.
#include <terrace/reference/model/compute/cuda/library_products.h>

#include "cuda_cases.h"
#include "fake_cublas_lt.h"
#include "library_under_test.h"

namespace terrace::testing {

struct LibraryUnderTest::State {
  FakeCublasLt fake;
  std::unique_ptr<const CublasLt> calls = FakeCublasLt::table();
  std::string why_none;
};

LibraryUnderTest::LibraryUnderTest() : state_(std::make_unique<State>()) {}
LibraryUnderTest::~LibraryUnderTest() {
  EXPECT_GT(state_->fake.calls("cublasLtMatmul"), 0u);
  EXPECT_EQ(state_->fake.leftovers(), "");
}
const CublasLt* LibraryUnderTest::calls() const {
  return state_->calls.get();
}
const std::string& LibraryUnderTest::why_none() const {
  return state_->why_none;
}

namespace {

class FakeCublasLtTest : public CudaKernels {
 protected:
  // [8 x 6] of [8 x 4], fp32, by [4 x 6].
  void multiply(CudaProducts& products, DataType type = DataType::bf16, bool accumulate = false) {
    products.multiply({}, {8, 6, 4}, {a_.data(), 4, DataType::fp32, false}, {b_.data(), 6, type, false},
                      {.data = target_.data(), .stride = 6, .accumulate = accumulate}, memory_);
  }
  uint64_t asked() const { return fake_.calls("cublasLtMatmulAlgoGetHeuristic"); }
  uint64_t multiplied() const { return fake_.calls("cublasLtMatmul"); }

  FakeCublasLt fake_;
  std::unique_ptr<const CublasLt> library_ = FakeCublasLt::table();
  MemoryLog log_;
  OnDevice<float> a_{random_values(64, 1)}, b_{random_values(64, 2)}, target_{size_t{64}};
  static constexpr uint64_t kWorkspaceBytes = 4096;
  OnDevice<float> scratch_{size_t{1024}};
  ProductMemory memory_{taken_workspace(arena_, kWorkspaceBytes), scratch_};
};

TEST_F(FakeCublasLtTest, IsAskedOnceForAShapeAndUsedForEveryProductOfIt) {
  {
    LibraryProducts products(*library_, products_, kWorkspaceBytes, log_);
    for (int i = 0; i < 3; ++i) multiply(products, DataType::bf16, i > 0);
    EXPECT_EQ(asked(), 1u);
    EXPECT_EQ(multiplied(), 3u);
    multiply(products, DataType::fp32);  // its operand is aligned as scratch memory is, but may not be
    products.multiply({}, {4, 6, 4}, {a_.data(), 4, DataType::fp32, false},
                      {b_.data(), 6, DataType::fp32, false}, {.data = target_.data(), .stride = 6}, memory_);
    EXPECT_LE(asked(), 3u);
    EXPECT_GE(asked(), 2u);
    EXPECT_EQ(multiplied(), 5u);
  }
  EXPECT_EQ(fake_.leftovers(), "");
  EXPECT_TRUE(log_.lines().empty());
}

TEST_F(FakeCublasLtTest, TakesTheSameMemoryInADryRunAndNeedsNoMore) {
  LibraryProducts products(*library_, products_, kWorkspaceBytes, log_);
  const ProductShape shape{8, 6, 4};
  for (const ProductTypes& types : {ProductTypes{DataType::fp32, DataType::bf16, DataType::fp32},
                                    ProductTypes{DataType::fp32, DataType::fp32, DataType::bf16},
                                    ProductTypes{DataType::fp32, DataType::fp32, DataType::fp32}}) {
    StackArena dry = StackArena::dry_run();
    products.take_memory(shape, types, dry);
    const StackArena::Frame frame(arena_);
    const uint64_t before = arena_.used_bytes();
    const ProductMemory memory = products.take_memory(shape, types, arena_);
    EXPECT_EQ(arena_.used_bytes() - before, dry.used_bytes());
    EXPECT_EQ(memory.workspace.size(), kWorkspaceBytes);
    EXPECT_GE(dry.used_bytes(), kWorkspaceBytes);
    const Operand a{a_.data(), 4, types.a, false}, b{b_.data(), 6, types.b, false};
    OnDevice<Bf16> gradient(size_t{64});
    types.target == DataType::fp32
        ? products.multiply({}, shape, a, b, {.data = target_.data(), .stride = 6}, memory)
        : products.multiply_into({}, shape, a, b, gradient.into(), memory);
  }
  EXPECT_EQ(multiplied(), 3u);
  EXPECT_TRUE(log_.lines().empty());
}

TEST_F(FakeCublasLtTest, IsAskedTheSameWhereverMemoryOfTheArenaLies) {
  LibraryProducts products(*library_, products_, kWorkspaceBytes, log_);
  const auto first = round_up(reinterpret_cast<uintptr_t>(scratch_.data()), 256);
  for (const uint64_t offset : {0, 64, 128, 192}) {
    products.multiply({}, {4, 6, 4},
                      {reinterpret_cast<const float*>(first + offset), 4, DataType::fp32, false},
                      {b_.data(), 6, DataType::fp32, false}, {.data = target_.data(), .stride = 6}, memory_);
  }
  EXPECT_EQ(asked(), 1u);
  EXPECT_EQ(multiplied(), 4u);
}

TEST_F(FakeCublasLtTest, WhatItDoesNotDoIsDonePlainlyAndSaidOnce) {
  fake_.refuse_type(cublas_lt::kTypeFp32);
  LibraryProducts products(*library_, products_, kWorkspaceBytes, log_);
  multiply(products, DataType::fp32);
  multiply(products, DataType::fp32);
  EXPECT_EQ(multiplied(), 0u);
  EXPECT_EQ(asked(), 1u);
  ASSERT_EQ(log_.lines().size(), 1u);
  EXPECT_EQ(
      log_.lines()[0].text,
      "a product of 8 x 4 (fp32) and 4 x 6 (fp32) in fp32 goes without cuBLASLt, which is slower: it has "
      "no algorithm for it");
  OnDevice<float> expected(size_t{64});
  products_.multiply({}, {8, 6, 4}, {a_.data(), 4, DataType::fp32, false},
                     {b_.data(), 6, DataType::fp32, false}, {.data = expected.data(), .stride = 6});
  EXPECT_EQ(target_.read(), expected.read());
}

TEST_F(FakeCublasLtTest, TwoTypesOf16BitsAndALineWithoutRoomAreDonePlainly) {
  LibraryProducts products(*library_, products_, kWorkspaceBytes, log_);
  memory_.scratch = memory_.scratch.first(5);
  multiply(products);
  products.multiply({}, {8, 6, 4}, {a_.data(), 4, DataType::fp16, false},
                    {b_.data(), 6, DataType::bf16, false}, {.data = target_.data(), .stride = 6}, memory_);
  OnDevice<Bf16> gradient(size_t{64});
  products.multiply_into({}, {8, 6, 4}, {a_.data(), 4, DataType::fp32, false},
                         {b_.data(), 6, DataType::fp32, false}, gradient.into(), memory_);
  EXPECT_EQ(multiplied(), 0u);
  EXPECT_EQ(log_.lines().size(), 3u);
}

TEST_F(FakeCublasLtTest, EveryFailureNamesTheCallAndTheProduct) {
  for (const char* call :
       {"cublasLtMatmulDescCreate", "cublasLtMatmulDescSetAttribute", "cublasLtMatrixLayoutCreate",
        "cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceSetAttribute",
        "cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul"}) {
    {
      LibraryProducts products(*library_, products_, kWorkspaceBytes, log_);
      fake_.fail(call, 13);
      try {
        multiply(products);
        ADD_FAILURE() << call;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::device);
        EXPECT_EQ(error.parts().subject, "a product of 8 x 4 (fp32) and 4 x 6 (fp32) in fp32");
        EXPECT_EQ(error.parts().reason, std::string(call) + ": a failure (status 13)");
        EXPECT_FALSE(error.parts().advice.empty());
      }
    }
    EXPECT_EQ(fake_.leftovers(), "") << call;
  }
  fake_.fail("cublasLtCreate", 1);
  EXPECT_THROW(LibraryProducts(*library_, products_, kWorkspaceBytes, log_), Error);
}

TEST(CublasLt, IsNotTakenWhereTheDriverIsTooOldForIt) {
  const CublasLtFound found = CublasLt::find_installed(11080);
  EXPECT_EQ(found.library, nullptr);
  EXPECT_EQ(found.reason,
            "libcublasLt.so.13 needs a driver for CUDA 13 or later; libcublasLt.so.12 needs a driver for "
            "CUDA 12 or later");
}

TEST(CublasLt, SaysWhatIsMissing) {
  try {
    CublasLt::load("libterrace-no-such-library.so.1");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::device);
    EXPECT_EQ(error.parts().subject, "libterrace-no-such-library.so.1");
    EXPECT_NE(error.parts().reason.find("No such file"), std::string::npos) << error.what();
  }
  try {
    CublasLt::load("libm.so.6");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.parts().reason, "it lacks cublasLtGetVersion");
  }
}

}  // namespace
}  // namespace terrace::testing

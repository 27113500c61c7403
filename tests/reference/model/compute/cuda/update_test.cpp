// The optimizers' update on the device, bit for bit that of the scalar reference.
#include <random>

#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/optimizer_cpu/moment_codes.h>
#include <terrace/optimizer_cpu/quantization.h>

#include "cuda_cases.h"
#include "optimizer_cpu/update_problem.h"

namespace terrace::testing::cuda_update_test {
namespace {

// Tiles of records, gradients and parameters in host memory; any bits in them.
struct Records {
  RecordLayout layout;
  DataType gradient_type, parameter_type;
  size_t elements;
  std::vector<std::byte> record, gradients, parameters;

  TileRun run(std::byte* record_at, std::byte* gradients_at, std::byte* parameters_at, size_t first,
              size_t count) const {
    return {.layout = layout,
            .record = record_at,
            .gradients = gradients_at,
            .gradient_type = gradient_type,
            .parameters = parameters_at,
            .parameter_type = parameter_type,
            .old_parameters = layout.master == MasterForm::remainder ? parameters_at : nullptr,
            .first_element = first,
            .element_count = count,
            .rounding_place = kernels::rounding_place_of(5, 192)};
  }
};

// Ordinary numbers, or `any` bits: denormals, infinities and NaN among them.
Records make_records(const OptimizerSettings& settings, const Layout& types, bool any, std::mt19937& random) {
  Records r{.layout = {types.form, moment_count(settings.kind, settings.momentum), types.moment},
            .gradient_type = types.gradient,
            .parameter_type = types.parameter,
            .elements = 2 * kTileElements,
            .record = {},
            .gradients = {},
            .parameters = {}};
  r.record.resize(2 * r.layout.tile_bytes());
  r.gradients.resize(r.elements * bytes_of(types.gradient));
  r.parameters.resize(r.elements * bytes_of(types.parameter));
  std::normal_distribution<float> normal;
  const auto draw = [&](float size) {
    return any ? std::bit_cast<float>(static_cast<uint32_t>(random())) : size * normal(random);
  };
  for (size_t i = 0; i < r.elements; ++i) {
    std::byte* const tile = r.record.data() + i / kTileElements * r.layout.tile_bytes();
    const size_t in_tile = i % kTileElements;
    const float master = draw(1.0f);
    if (types.form == MasterForm::whole) {
      set_element(tile, DataType::fp32, in_tile, master);
    } else {
      split_masters(InstructionSet::scalar, MasterForm::remainder,
                    reinterpret_cast<const std::byte*>(&master), r.parameters.data() + i * sizeof(Bf16),
                    tile + in_tile * sizeof(int16_t), 1);
    }
    const bool is_square = settings.kind == OptimizerKind::adagrad;
    for (uint32_t k = 0; k < r.layout.moment_count; ++k) {
      if (r.layout.has_codes()) {  // any codes and scales
        tile[r.layout.moment_offset(k) + in_tile] = std::byte(static_cast<uint8_t>(any ? random() : 0));
        continue;
      }
      const float moment = draw(0.1f);
      set_element(tile + r.layout.moment_offset(k), number_type_of(types.moment), in_tile,
                  k == 1 || is_square ? std::abs(moment) : moment);
    }
    set_element(r.gradients.data(), types.gradient, i, draw(1.0f));
  }
  return r;
}

// Every number of the records: the same bits, but for which NaN stands in a moment.
void expect_same_records(const Records& a, const Records& b) {
  ASSERT_EQ(a.parameters, b.parameters);
  for (size_t i = 0; i < a.elements; ++i) {
    const size_t tile = i / kTileElements * a.layout.tile_bytes(), in_tile = i % kTileElements;
    const size_t bytes = a.layout.master_bytes() / kTileElements;
    ASSERT_EQ(std::memcmp(a.record.data() + tile + in_tile * bytes, b.record.data() + tile + in_tile * bytes,
                          bytes),
              0)
        << "master " << i;
    for (uint32_t k = 0; k < a.layout.moment_count; ++k) {
      if (a.layout.has_codes()) {
        ASSERT_EQ(a.record, b.record);
        break;
      }
      const size_t at = tile + a.layout.moment_offset(k);
      ASSERT_TRUE(same(element(a.record.data() + at, number_type_of(a.layout.moment_type), in_tile),
                       element(b.record.data() + at, number_type_of(b.layout.moment_type), in_tile)))
          << "moment " << k << " of " << i;
    }
  }
}

class CudaUpdate : public CudaKernels {
 protected:
  // Two steps of [first, first + count) by the reference, and in the way `way` on the device.
  void expect_reference(const OptimizerSettings& settings, Records reference, size_t first, size_t count,
                        const Way& way) {
    Records result = reference;
    OnDevice<std::byte> record(result.record), gradients(result.gradients), parameters(result.parameters);
    for (uint64_t number = 1; number <= 2; ++number) {
      const OptimizerStep step = make_optimizer_step(settings, number, 0.731f);
      update_tiles(InstructionSet::scalar, step,
                   reference.run(reference.record.data(), reference.gradients.data(),
                                 reference.parameters.data(), first, count));
      run_threads_backwards(way.backwards);
      cuda_update_tiles({.block_limit = way.block_limit}, step,
                        result.run(record.data(), gradients.data(), parameters.data(), first, count));
      run_threads_backwards(false);
    }
    result.record = record.read();
    result.parameters = parameters.read();
    expect_same_records(result, reference);
  }
};

TEST_F(CudaUpdate, HasTheBitsOfTheScalarReferenceForEverySettingAndLayout) {
  std::mt19937 random(3);
  size_t turn = 0;
  for (const OptimizerSettings& settings : every_settings()) {
    for_every_layout([&](const Layout& layout) {
      if (layout.output != Output::apart || HasFatalFailure()) return;
      if (layout.form == MasterForm::parameter)
        return;  // of the program's own tensors, which no device updates
      SCOPED_TRACE(name_of(settings) + ", " + name_of(layout));
      const bool any = turn % 2 == 1;
      // Runs that begin and end inside tiles, by fours and one by one.
      const size_t first = turn % 3 == 0 ? 0 : turn % 3 == 1 ? kTileElements - 60 : 3;
      const size_t count = turn % 5 == 0 ? 2 * kTileElements - first : 65 + turn % 67;
      expect_reference(settings, make_records(settings, layout, any, random), first, count, kWays[turn % 3]);
      ++turn;
    });
  }
}

TEST_F(CudaUpdate, HasTheBitsOfTheScalarReferenceWhereMomentsAreCodes) {
  std::mt19937 random(8);
  size_t turn = 0;
  for (const OptimizerSettings& settings : every_settings()) {
    for (const MasterForm form : {MasterForm::whole, MasterForm::remainder}) {
      for (const DataType gradient : kEveryType) {
        const DataType parameter = form == MasterForm::whole ? kEveryType[turn % 3] : DataType::bf16;
        const Layout layout{gradient, parameter, MomentType::int8, form, Output::apart};
        SCOPED_TRACE(name_of(settings) + ", " + name_of(layout));
        const size_t first = turn % 3 == 0 ? 0 : turn % 3 == 1 ? kTileElements - 64 : 128;
        const size_t count = turn % 5 == 0 ? 2 * kTileElements - first : 64 * (1 + turn % 40);
        expect_reference(settings, make_records(settings, layout, turn % 2 == 1, random), first, count,
                         kWays[turn % 3]);
        if (HasFatalFailure()) return;
        ++turn;
      }
    }
  }
}

TEST_F(CudaUpdate, WritesParametersOverTheGradients) {
  std::mt19937 random(4);
  const OptimizerSettings settings{.weight_decay = 0.1};
  for (const DataType type : kEveryType) {
    Records records = make_records(settings, {.gradient = type, .parameter = type}, false, random);
    OnDevice<std::byte> record(records.record), gradients(records.gradients);
    const OptimizerStep step = make_optimizer_step(settings, 5, 0.5f);
    cuda_update_tiles({}, step,
                      records.run(record.data(), gradients.data(), gradients.data(), 0, records.elements));
    update_tiles(InstructionSet::scalar, step,
                 records.run(records.record.data(), records.gradients.data(), records.gradients.data(), 0,
                             records.elements));
    EXPECT_EQ(gradients.read(), records.gradients) << name_of(type);
    EXPECT_EQ(record.read(), records.record) << name_of(type);
  }
}

TEST_F(CudaUpdate, SumsTheSquaresOfEveryBlockAsTheReferenceDoes) {
  for (const DataType type : kEveryType) {
    const size_t count =
        17 * kSumBlockElements + 77;  // one more than a block of threads takes, and a short one
    std::vector<std::byte> gradient(count * bytes_of(type));
    const std::vector<float> values = random_values(count, 1, 100.0f);
    convert_from_float(InstructionSet::scalar, values.data(), gradient.data(), type, count);
    std::vector<double> sums;
    for (size_t first = 0; first < count; first += kSumBlockElements) {
      sums.push_back(sum_of_squares_block(InstructionSet::scalar, gradient.data() + first * bytes_of(type),
                                          type, std::min(kSumBlockElements, count - first)));
    }
    const OnDevice<std::byte> device_gradient(gradient);
    for (const Way& way : kWays) {
      OnDevice<double> device_sums(sums.size());
      cuda_sums_of_squares({.block_limit = way.block_limit}, {device_gradient.view().data, type}, count,
                           device_sums);
      expect_bits(device_sums.read(), sums, "sums");
    }
  }
}

// Blocks of several magnitudes, one of zeros and one that is not finite; a last one is not whole.
std::vector<std::byte> gradients_to_round(DataType type, size_t count) {
  std::vector<float> values = random_values(count, 7, 3.0f);
  for (size_t i = 0; i < count; ++i) {
    const size_t block = i / kQuantizedBlock;
    values[i] = block % 8 == 3 ? 0.0f : std::ldexp(values[i], static_cast<int>(block % 12) - 6);
  }
  values[5 * kQuantizedBlock + 9] = std::numeric_limits<float>::infinity();
  std::vector<std::byte> bytes(count * bytes_of(type));
  convert_from_float(InstructionSet::scalar, values.data(), bytes.data(), type, count);
  return bytes;
}

// Every sum: the same bits, but for which NaN it is.
void expect_same_sums(const std::vector<std::byte>& a, const std::vector<std::byte>& b, DataType type) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size() / bytes_of(type); ++i)
    ASSERT_TRUE(same(element(a.data(), type, i), element(b.data(), type, i))) << "sum " << i;
}

TEST_F(CudaUpdate, AddsRoundedGradientsAsTheReferenceDoes) {
  constexpr size_t kCount = 35 * kQuantizedBlock + 13;
  for (const DataType type : kEveryType) {
    const std::vector<std::byte> gradient = gradients_to_round(type, kCount);
    OnDevice<std::byte> gradient_d(gradient);
    for (const DataType sum_type : {DataType::fp32, type}) {
      for (const uint32_t bits : {8u, 4u}) {
        std::vector<std::byte> sum = gradients_to_round(sum_type, kCount);
        OnDevice<std::byte> sum_d(sum);
        for (const bool first : {true, false}) {
          accumulate(InstructionSet::scalar,
                     {sum.data(), sum_type, gradient.data(), type, kCount, first, bits});
          cuda_accumulate({.block_limit = 2},
                          {sum_d.data(), sum_type, gradient_d.data(), type, kCount, first, bits});
        }
        SCOPED_TRACE(std::string(name_of(type)) + " into " + std::string(name_of(sum_type)));
        expect_same_sums(sum_d.read(), sum, sum_type);
      }
    }
  }
}

TEST_F(CudaUpdate, RoundsParametersAsTheReferenceDoes) {
  std::mt19937 random(8);
  for (const DataType type : {DataType::bf16, DataType::fp16}) {
    Records records = make_records({}, {.parameter = type}, false, random);
    OnDevice<std::byte> record(records.record), gradients(records.gradients), parameters(records.parameters);
    const OptimizerStep step = make_optimizer_step({}, 2, 0.5f);
    const size_t first = 3 * kQuantizedBlock, count = kTileElements + 5 * kQuantizedBlock;
    TileRun here =
        records.run(records.record.data(), records.gradients.data(), records.parameters.data(), first, count);
    TileRun there = records.run(record.data(), gradients.data(), parameters.data(), first, count);
    here.parameter_bits = there.parameter_bits = 8;
    cuda_update_tiles({.block_limit = 3}, step, there);
    update_tiles(InstructionSet::scalar, step, here);
    EXPECT_EQ(parameters.read(), records.parameters) << name_of(type);
    EXPECT_EQ(record.read(), records.record) << name_of(type);
  }
}

}  // namespace
}  // namespace terrace::testing::cuda_update_test

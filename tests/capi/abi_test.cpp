// The layout of every struct of terrace.h, as programs that exist were compiled with it. A row of this table
// never changes; a later member adds one behind the others of its struct, and changes the size of that alone.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <terrace.h>

namespace terrace::abi_test {
namespace {

struct Row {
  std::string_view owner;
  std::string_view member;
  size_t offset;    // frozen
  size_t size;      // frozen
  size_t now_size;  // of the member, or of the struct
  size_t now_offset = 0;
};

#define TERRACE_MEMBER(owner, member, offset, size)                               \
  Row {                                                                           \
#owner, #member, offset, size, sizeof(owner::member), offsetof(owner, member) \
  }

constexpr Row kRows[] = {
    {"terrace_error_parts", "", 0, 72, sizeof(terrace_error_parts)},
    TERRACE_MEMBER(terrace_error_parts, size, 0, 4),
    TERRACE_MEMBER(terrace_error_parts, kind, 4, 4),
    TERRACE_MEMBER(terrace_error_parts, what_failed, 8, 8),
    TERRACE_MEMBER(terrace_error_parts, subject, 16, 8),
    TERRACE_MEMBER(terrace_error_parts, reason, 24, 8),
    TERRACE_MEMBER(terrace_error_parts, advice, 32, 8),
    TERRACE_MEMBER(terrace_error_parts, least_bytes, 40, 8),
    TERRACE_MEMBER(terrace_error_parts, least_device_bytes, 48, 8),
    TERRACE_MEMBER(terrace_error_parts, least_host_bytes, 56, 8),
    TERRACE_MEMBER(terrace_error_parts, least_nvme_bytes, 64, 8),
    {"terrace_simulated_options", "", 0, 32, sizeof(terrace_simulated_options)},
    TERRACE_MEMBER(terrace_simulated_options, size, 0, 4),
    TERRACE_MEMBER(terrace_simulated_options, strict, 4, 4),
    TERRACE_MEMBER(terrace_simulated_options, budget_bytes, 8, 8),
    TERRACE_MEMBER(terrace_simulated_options, h2d_bytes_per_second, 16, 8),
    TERRACE_MEMBER(terrace_simulated_options, d2h_bytes_per_second, 24, 8),
    {"terrace_cuda_options", "", 0, 24, sizeof(terrace_cuda_options)},
    TERRACE_MEMBER(terrace_cuda_options, size, 0, 4),
    TERRACE_MEMBER(terrace_cuda_options, ordinal, 4, 4),
    TERRACE_MEMBER(terrace_cuda_options, budget_bytes, 8, 8),
    TERRACE_MEMBER(terrace_cuda_options, strict, 16, 4),
    TERRACE_MEMBER(terrace_cuda_options, reserved, 20, 4),
    {"terrace_tensor", "", 0, 64, sizeof(terrace_tensor)},
    TERRACE_MEMBER(terrace_tensor, size, 0, 4),
    TERRACE_MEMBER(terrace_tensor, rank, 4, 4),
    TERRACE_MEMBER(terrace_tensor, name, 8, 8),
    TERRACE_MEMBER(terrace_tensor, shape, 16, 8),
    TERRACE_MEMBER(terrace_tensor, type, 24, 4),
    TERRACE_MEMBER(terrace_tensor, frozen, 28, 4),
    TERRACE_MEMBER(terrace_tensor, group, 32, 4),
    TERRACE_MEMBER(terrace_tensor, backward_uses, 36, 4),
    TERRACE_MEMBER(terrace_tensor, address, 40, 8),
    TERRACE_MEMBER(terrace_tensor, rounding_place, 48, 8),
    TERRACE_MEMBER(terrace_tensor, by_matrix, 56, 4),
    TERRACE_MEMBER(terrace_tensor, counted_elsewhere, 60, 4),
    {"terrace_use", "", 0, 40, sizeof(terrace_use)},
    TERRACE_MEMBER(terrace_use, size, 0, 4),
    TERRACE_MEMBER(terrace_use, kind, 4, 4),
    TERRACE_MEMBER(terrace_use, key, 8, 8),
    TERRACE_MEMBER(terrace_use, tensors, 16, 8),
    TERRACE_MEMBER(terrace_use, tensor_count, 24, 4),
    TERRACE_MEMBER(terrace_use, micro_batch, 28, 4),
    TERRACE_MEMBER(terrace_use, encloses, 32, 4),
    TERRACE_MEMBER(terrace_use, reserved, 36, 4),
    {"terrace_options", "", 0, 176, sizeof(terrace_options)},
    TERRACE_MEMBER(terrace_options, size, 0, 4),
    TERRACE_MEMBER(terrace_options, parameters, 4, 4),
    TERRACE_MEMBER(terrace_options, states, 8, 4),
    TERRACE_MEMBER(terrace_options, nvme_path_count, 12, 4),
    TERRACE_MEMBER(terrace_options, nvme_paths, 16, 8),
    TERRACE_MEMBER(terrace_options, tier_name, 24, 8),
    TERRACE_MEMBER(terrace_options, host_bytes, 32, 8),
    TERRACE_MEMBER(terrace_options, work_bytes, 40, 8),
    TERRACE_MEMBER(terrace_options, chunk_elements, 48, 8),
    TERRACE_MEMBER(terrace_options, accumulation_steps, 56, 4),
    TERRACE_MEMBER(terrace_options, layer_major, 60, 4),
    TERRACE_MEMBER(terrace_options, gradients, 64, 4),
    TERRACE_MEMBER(terrace_options, unused_gradients, 68, 4),
    TERRACE_MEMBER(terrace_options, update_when, 72, 4),
    TERRACE_MEMBER(terrace_options, threads, 76, 4),
    TERRACE_MEMBER(terrace_options, optimizer, 80, 4),
    TERRACE_MEMBER(terrace_options, sgd_momentum, 84, 4),
    TERRACE_MEMBER(terrace_options, moment_type, 88, 4),
    TERRACE_MEMBER(terrace_options, masters, 92, 4),
    TERRACE_MEMBER(terrace_options, accumulation_type, 96, 4),
    TERRACE_MEMBER(terrace_options, durable, 100, 4),
    TERRACE_MEMBER(terrace_options, retained_commits, 104, 4),
    TERRACE_MEMBER(terrace_options, resume, 108, 4),
    TERRACE_MEMBER(terrace_options, discard_commits, 112, 4),
    TERRACE_MEMBER(terrace_options, io_engine, 116, 4),
    TERRACE_MEMBER(terrace_options, no_host_lock, 120, 4),
    TERRACE_MEMBER(terrace_options, no_checksums, 124, 4),
    TERRACE_MEMBER(terrace_options, log, 128, 8),
    TERRACE_MEMBER(terrace_options, log_context, 136, 8),
    TERRACE_MEMBER(terrace_options, ranks, 144, 8),
    TERRACE_MEMBER(terrace_options, divide_parameters, 152, 4),
    TERRACE_MEMBER(terrace_options, rank_exchange, 156, 4),
    TERRACE_MEMBER(terrace_options, saved_activations, 160, 4),
    TERRACE_MEMBER(terrace_options, hold_gradients, 164, 4),
    TERRACE_MEMBER(terrace_options, model_ranks, 168, 8),
    {"terrace_plan_result", "", 0, 88, sizeof(terrace_plan_result)},
    TERRACE_MEMBER(terrace_plan_result, size, 0, 4),
    TERRACE_MEMBER(terrace_plan_result, fits, 4, 4),
    TERRACE_MEMBER(terrace_plan_result, chunk_elements, 8, 8),
    TERRACE_MEMBER(terrace_plan_result, parameter_count, 16, 8),
    TERRACE_MEMBER(terrace_plan_result, trainable_count, 24, 8),
    TERRACE_MEMBER(terrace_plan_result, device_least_bytes, 32, 8),
    TERRACE_MEMBER(terrace_plan_result, host_least_bytes, 40, 8),
    TERRACE_MEMBER(terrace_plan_result, device_bytes, 48, 8),
    TERRACE_MEMBER(terrace_plan_result, host_bytes, 56, 8),
    TERRACE_MEMBER(terrace_plan_result, device_useful_bytes, 64, 8),
    TERRACE_MEMBER(terrace_plan_result, file_bytes, 72, 8),
    TERRACE_MEMBER(terrace_plan_result, chunk_count, 80, 4),
    TERRACE_MEMBER(terrace_plan_result, keeps_commits, 84, 4),
    {"terrace_array", "", 0, 24, sizeof(terrace_array)},
    TERRACE_MEMBER(terrace_array, size, 0, 4),
    TERRACE_MEMBER(terrace_array, tensor, 4, 4),
    TERRACE_MEMBER(terrace_array, data, 8, 8),
    TERRACE_MEMBER(terrace_array, type, 16, 4),
    TERRACE_MEMBER(terrace_array, reserved, 20, 4),
    {"terrace_file_part", "", 0, 32, sizeof(terrace_file_part)},
    TERRACE_MEMBER(terrace_file_part, size, 0, 4),
    TERRACE_MEMBER(terrace_file_part, tensor, 4, 4),
    TERRACE_MEMBER(terrace_file_part, path, 8, 8),
    TERRACE_MEMBER(terrace_file_part, offset, 16, 8),
    TERRACE_MEMBER(terrace_file_part, type, 24, 4),
    TERRACE_MEMBER(terrace_file_part, reserved, 28, 4),
    {"terrace_gradient_view", "", 0, 16, sizeof(terrace_gradient_view)},
    TERRACE_MEMBER(terrace_gradient_view, size, 0, 4),
    TERRACE_MEMBER(terrace_gradient_view, accumulate, 4, 4),
    TERRACE_MEMBER(terrace_gradient_view, data, 8, 8),
    {"terrace_optimizer", "", 0, 112, sizeof(terrace_optimizer)},
    TERRACE_MEMBER(terrace_optimizer, size, 0, 4),
    TERRACE_MEMBER(terrace_optimizer, kind, 4, 4),
    TERRACE_MEMBER(terrace_optimizer, lr, 8, 8),
    TERRACE_MEMBER(terrace_optimizer, beta1, 16, 8),
    TERRACE_MEMBER(terrace_optimizer, beta2, 24, 8),
    TERRACE_MEMBER(terrace_optimizer, eps, 32, 8),
    TERRACE_MEMBER(terrace_optimizer, weight_decay, 40, 8),
    TERRACE_MEMBER(terrace_optimizer, momentum, 48, 8),
    TERRACE_MEMBER(terrace_optimizer, dampening, 56, 8),
    TERRACE_MEMBER(terrace_optimizer, nesterov, 64, 4),
    TERRACE_MEMBER(terrace_optimizer, no_bias_correction, 68, 4),
    TERRACE_MEMBER(terrace_optimizer, exact, 72, 4),
    TERRACE_MEMBER(terrace_optimizer, iterations, 76, 4),
    TERRACE_MEMBER(terrace_optimizer, coefficient_a, 80, 8),
    TERRACE_MEMBER(terrace_optimizer, coefficient_b, 88, 8),
    TERRACE_MEMBER(terrace_optimizer, coefficient_c, 96, 8),
    TERRACE_MEMBER(terrace_optimizer, matches_adamw, 104, 4),
    TERRACE_MEMBER(terrace_optimizer, reserved, 108, 4),
    {"terrace_update_settings", "", 0, 40, sizeof(terrace_update_settings)},
    TERRACE_MEMBER(terrace_update_settings, size, 0, 4),
    TERRACE_MEMBER(terrace_update_settings, group_count, 4, 4),
    TERRACE_MEMBER(terrace_update_settings, groups, 8, 8),
    TERRACE_MEMBER(terrace_update_settings, step, 16, 8),
    TERRACE_MEMBER(terrace_update_settings, clip_norm, 24, 8),
    TERRACE_MEMBER(terrace_update_settings, loss_scale, 32, 8),
    {"terrace_update_result", "", 0, 24, sizeof(terrace_update_result)},
    TERRACE_MEMBER(terrace_update_result, size, 0, 4),
    TERRACE_MEMBER(terrace_update_result, applied, 4, 4),
    TERRACE_MEMBER(terrace_update_result, gradient_norm, 8, 8),
    TERRACE_MEMBER(terrace_update_result, partly_applied, 16, 4),
    TERRACE_MEMBER(terrace_update_result, reserved, 20, 4),
    {"terrace_counter", "", 0, 24, sizeof(terrace_counter)},
    TERRACE_MEMBER(terrace_counter, size, 0, 4),
    TERRACE_MEMBER(terrace_counter, unit, 4, 4),
    TERRACE_MEMBER(terrace_counter, key, 8, 8),
    TERRACE_MEMBER(terrace_counter, name, 16, 8),
};

#undef TERRACE_MEMBER

TEST(CAbi, KeepsThePlaceOfEveryMember) {
  for (const Row& row : kRows) {
    EXPECT_EQ(row.now_offset, row.offset) << row.owner << "." << row.member;
    EXPECT_EQ(row.now_size, row.size) << row.owner << "." << row.member;
  }
}

TEST(CAbi, HasNoPaddingThatCouldHoldWhatIsNotZero) {
  size_t size = 0, end = 0;
  for (const Row& row : kRows) {
    if (row.member.empty()) {
      EXPECT_EQ(end, size) << "before " << row.owner;
      size = row.size, end = 0;
      EXPECT_EQ(size % 8, 0u) << row.owner;
    } else {
      EXPECT_EQ(row.offset, end) << row.owner << "." << row.member;
      end = row.offset + row.size;
    }
  }
  EXPECT_EQ(end, size);
}

TEST(CAbi, KeepsTheValuesOfItsEnums) {
  EXPECT_EQ(TERRACE_ABI, 0);
  EXPECT_EQ(TERRACE_CONFIG, 1);
  EXPECT_EQ(TERRACE_INTERNAL, 8);
  EXPECT_EQ(TERRACE_PEER, 9);
  EXPECT_EQ(TERRACE_FP32, 0);
  EXPECT_EQ(TERRACE_FP16, 2);
  EXPECT_EQ(TERRACE_WORD, 3);
  EXPECT_EQ(TERRACE_UNIT, 3);
  EXPECT_EQ(TERRACE_NVME, 2);
  EXPECT_EQ(TERRACE_SGD, 4);
  EXPECT_EQ(TERRACE_MUON, 5);
  EXPECT_EQ(TERRACE_DURING_BACKWARD, 2);
  EXPECT_EQ(TERRACE_HANDED_OVER, 1);
  EXPECT_EQ(TERRACE_BORROWED, 2);
  EXPECT_EQ(TERRACE_HANDED_OVER_ON_DEVICE, 3);
  EXPECT_EQ(TERRACE_MASTERS_COMPACT, 1);
  EXPECT_EQ(TERRACE_MASTERS_PARAMETER, 2);
  EXPECT_EQ(TERRACE_UNUSED_SKIP, 1);
  EXPECT_EQ(TERRACE_IO_THREADS, 3);
  EXPECT_EQ(TERRACE_LOG_ERROR, 2);
  EXPECT_EQ(TERRACE_SECOND_MOMENT, 3);
  EXPECT_EQ(TERRACE_GRADIENT, 4);
  EXPECT_EQ(TERRACE_NANOSECONDS, 2);
  EXPECT_EQ(terrace_abi(), static_cast<uint32_t>(TERRACE_ABI));
}

}  // namespace
}  // namespace terrace::abi_test

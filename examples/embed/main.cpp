// A toy trainer that is not Terrace's: a residual tanh network learns a fixed rotation. Its parameters and
// optimizer states live on disk, and the device memory that it computes in is half the size of its
// parameters.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include <terrace/base/log.h>
#include <terrace/memory/device/simulated_device.h>
#include <terrace/offload/offloader.h>

namespace {

constexpr size_t kLayers = 8;
constexpr size_t kWidth = 256;
constexpr size_t kBatch = 8;
using terrace::TensorId;
using Matrix = std::vector<float>;  // kBatch rows of kWidth

// One layer: y = x + tanh(x W). The weights are whatever the lease says they are.
struct Layer {
  TensorId weight;
  std::string name;
  Matrix input, activation;

  Matrix forward(terrace::ParameterAccess& access, const Matrix& x, terrace::UseKind kind) {
    const terrace::Lease lease(access, name + (kind == terrace::UseKind::forward ? "/forward" : "/inference"),
                               {&weight, 1}, kind);
    const float* w = lease.parameter<float>(weight);
    input = x;
    activation.assign(kBatch * kWidth, 0.0f);
    for (size_t b = 0; b < kBatch; ++b) {
      for (size_t i = 0; i < kWidth; ++i) {
        for (size_t o = 0; o < kWidth; ++o)
          activation[b * kWidth + o] += x[b * kWidth + i] * w[i * kWidth + o];
      }
    }
    Matrix y = x;
    for (size_t k = 0; k < y.size(); ++k) y[k] += activation[k] = std::tanh(activation[k]);
    return y;
  }

  Matrix backward(terrace::ParameterAccess& access, const Matrix& dy) {
    const terrace::Lease lease(access, name + "/backward", {&weight, 1}, terrace::UseKind::backward);
    const float* w = lease.parameter<float>(weight);
    auto* dw = reinterpret_cast<float*>(lease.gradient(weight).data);  // used once per step: overwrite
    std::fill(dw, dw + kWidth * kWidth, 0.0f);
    Matrix dx = dy;
    for (size_t b = 0; b < kBatch; ++b) {
      for (size_t o = 0; o < kWidth; ++o) {
        const float a = activation[b * kWidth + o];
        const float dz = dy[b * kWidth + o] * (1 - a * a);
        for (size_t i = 0; i < kWidth; ++i) {
          dw[i * kWidth + o] += input[b * kWidth + i] * dz;
          dx[b * kWidth + i] += w[i * kWidth + o] * dz;
        }
      }
    }
    return dx;
  }
};

// In [-0.5, 0.5), the same for the same seed.
float noise(uint64_t seed) {
  seed = (seed ^ (seed >> 31)) * 0x9e3779b97f4a7c15u;
  return static_cast<float>(seed >> 40) / static_cast<float>(1 << 24) - 0.5f;
}

int train(const std::filesystem::path& folder) {
  std::vector<terrace::TensorSpec> tensors;
  std::vector<Layer> layers;
  for (uint32_t l = 0; l < kLayers; ++l) {
    tensors.push_back({"layer" + std::to_string(l), {kWidth, kWidth}, terrace::DataType::fp32});
    layers.push_back({TensorId{l}, "layer" + std::to_string(l), {}, {}});
  }
  const terrace::FlatSpace space(tensors, 4 * terrace::kTileElements);
  terrace::OffloadOptions options;
  options.parameters = options.states = terrace::Placement::nvme;
  options.parameter_paths = options.state_paths = {{folder}};
  options.device_budget_bytes = space.parameter_count() * sizeof(float) / 2;
  options.host_budget_bytes = 8 * terrace::kMiB;
  terrace::StderrLog log;
  options.io.kind = terrace::io::choose_engine(std::nullopt).kind;
  terrace::Workers workers(2);
  terrace::SimulatedDevice device({options.device_budget_bytes});
  terrace::Offloader offloader(space, options, {}, device, workers, log);
  offloader.state().initialise([](TensorId tensor, uint64_t first, std::span<float> values) {
    for (size_t e = 0; e < values.size(); ++e) values[e] = 0.05f * noise(index_of(tensor) * 7919 + first + e);
  });

  const std::vector<terrace::OptimizerSettings> groups = {{.lr = 2e-3, .weight_decay = 0.01}};
  float first_loss = 0, loss = 0;
  for (uint64_t step = 1; step <= 40; ++step) {
    Matrix x(kBatch * kWidth), target(kBatch * kWidth);
    // Four batches, again and again.
    for (size_t k = 0; k < x.size(); ++k) x[k] = noise(step % 4 * 4096 + k);
    for (size_t k = 0; k < x.size(); ++k) target[k] = x[(k / kWidth) * kWidth + (k + 1) % kWidth];
    offloader.begin_step();
    for (Layer& layer : layers) x = layer.forward(offloader, x, terrace::UseKind::forward);
    loss = 0;
    Matrix dx(x.size());
    for (size_t k = 0; k < x.size(); ++k) {
      const float error = x[k] - target[k];
      loss += error * error / static_cast<float>(x.size());
      dx[k] = 2 * error / static_cast<float>(x.size());
    }
    for (size_t l = kLayers; l-- > 0;) dx = layers[l].backward(offloader, dx);
    offloader.end_micro_batch();
    offloader.update({groups, step, 1.0});
    if (step == 1) first_loss = loss;
  }
  const terrace::OffloadCounters moved = offloader.report().counters();
  std::printf("parameters %zu KiB, device budget %zu KiB; loss %.4f -> %.4f; read %.1f MiB, wrote %.1f MiB\n",
              static_cast<size_t>(space.parameter_count() * sizeof(float) / 1024),
              static_cast<size_t>(options.device_budget_bytes / 1024), first_loss, loss,
              static_cast<double>(moved.param_read_bytes + moved.record_read_bytes) / terrace::kMiB,
              static_cast<double>(moved.param_write_bytes + moved.record_write_bytes) / terrace::kMiB);
  return loss < 0.5f * first_loss ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return train(argc > 1 ? argv[1] : ".");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "embed: %s\n", error.what());
    return 1;
  }
}

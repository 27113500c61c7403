// Tells whether a GPU can read files past the host (GPUDirect Storage), before a plan counts on it.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include <terrace/memory/cuda/cuda_gpu.h>

namespace terrace {

// Why cuFile cannot read files in one of these folders into the GPU's memory; empty when it can, as far as
// that is known before a read: the library is there, its driver opens, and it takes a file in each folder,
// which is made for a moment. Never throws for what is missing.
std::string why_no_file_reads(const CudaGpu& gpu, std::span<const std::filesystem::path> folders);

}  // namespace terrace

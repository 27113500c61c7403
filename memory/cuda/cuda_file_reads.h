// Whether a GPU can read files past the host (GPUDirect Storage): asked before anything is planned on it.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include <terrace/memory/cuda/cuda_gpu.h>

namespace terrace {

// Why files in one of these folders cannot be read into the GPU's memory by cuFile; empty when they can, as
// far as that is known before one is read: the library is there, its driver opens, and it takes a file of
// each folder, which is made for a moment. Never throws for what is missing.
std::string why_no_file_reads(const CudaGpu& gpu, std::span<const std::filesystem::path> folders);

}  // namespace terrace

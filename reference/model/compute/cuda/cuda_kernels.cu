// All kernels as one translation unit: nvcc reads the headers of CUDA and of the standard library once for
// each architecture and source, which is most of what it takes.
#include "attention.cu"
#include "elementwise.cu"
#include "library_products.cu"
#include "norms.cu"
#include "products.cu"
#include "update.cu"
#include "vocabulary.cu"
